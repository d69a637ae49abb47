#pragma once

// Independent of LibTorch, so that it can be fuzzed on its own.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/checkpoint/origin.h"
#include "io/divided_tensors.h"
#include "io/file_record.h"

namespace fulgur::detail {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kStateTensorsFile = "state.safetensors";
inline constexpr uint64_t kMaxManifestBytes = 64u << 20, kMaxStateBytes = 256u << 20;

/// manifest.json: the contents of a checkpoint folder, to the byte.
struct Manifest {
  CheckpointOrigin origin;
  int64_t epoch = 0, global_step = 0;
  bool weights_only = false;
  std::map<std::string, FileRecord> files;
  DividedTensors divided;
};

/// Of the files of a checkpoint, those that one process has written, or all.
enum class ManifestScope { part, whole };

/// The text of the file; its last field is a hash of everything before it.
std::string manifest_to_text(const Manifest& manifest);

/// Reads and checks a manifest, its own hash first. Throws a CheckpointError that says what is wrong, without a path.
Manifest manifest_from_text(std::string_view text, ManifestScope scope = ManifestScope::whole);

}  // namespace fulgur::detail
