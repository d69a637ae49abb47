#pragma once

// Independent of LibTorch, so that it can be fuzzed on its own.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/element_bytes.h"

namespace fulgur::detail {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  ///< `F32`, `I64`, …
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  ///< bytes inside the data part
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in the order of their data
  std::map<std::string, std::string> metadata;
};

/// Limits for reading and writing: the first is the format's, the others are ours.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr size_t kMaxTensors = 1u << 18;
inline constexpr size_t kMaxNameBytes = 1u << 16;

/// Checks and reads the JSON header of a file whose data part has `data_bytes` bytes: contiguous from 0, no gaps, no
/// overlap, sizes that match shapes, unique names. Throws a CheckpointError.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes);

/// The JSON header, padded with spaces to a multiple of 8 bytes. Throws a CheckpointError for names that it cannot
/// hold.
std::string make_safetensors_header(const SafetensorsHeader& header);

}  // namespace fulgur::detail
