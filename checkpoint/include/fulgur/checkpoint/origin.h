#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fulgur/core/export.h"

namespace fulgur {

/// Version of this library, such as `0.1.0`.
FULGUR_API std::string fulgur_version();
/// Version of LibTorch that this library was compiled with.
FULGUR_API std::string libtorch_version();

/// XXH3-64 of `bytes` as 16 hexadecimal digits, as `xxhsum -H3` prints it.
FULGUR_API std::string content_hash(std::string_view bytes);

/// Origin of a checkpoint: what a bit-exact resume depends on, besides the state itself.
struct FULGUR_API CheckpointOrigin {
  std::string config_hash;     ///< hash of the resolved config; empty if there is none
  int64_t world_size = 1;      ///< number of processes of the run
  std::string device;          ///< kind and model of the device, such as `cpu` or `cuda NVIDIA H200`
  int64_t threads = 0;         ///< number of intra-op threads; 0 if unknown
  bool deterministic = false;  ///< whether deterministic algorithms were requested
  int64_t save_counter = 0;    ///< number of saves of the run so far; orders checkpoints with the same global step
  std::string run = {};        ///< checkpoint folder in which the run began, which names it; empty if unknown
  std::string fulgur = fulgur_version();
  std::string libtorch = libtorch_version();
  bool operator==(const CheckpointOrigin&) const = default;
};

}  // namespace fulgur
