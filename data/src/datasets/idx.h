#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace fulgur {

/// An array of unsigned bytes as an idx file holds it, last dimension fastest.
struct IdxArray {
  std::vector<int64_t> dims;
  std::unique_ptr<uint8_t[]> values;
  size_t size = 0;  ///< product of dims, in bytes
};

inline constexpr size_t kIdxMaxDims = 4;
inline constexpr uint64_t kIdxMemoryLimit = uint64_t{2} << 30;

/// Reads an idx file of unsigned bytes with `dims` dimensions, plain or gzip. Every field of the header is checked and
/// the size held against `memory_limit` before memory is taken; data shorter or longer than the header says is an
/// error. Throws a DataError with path, what was expected and what came. Knows nothing of LibTorch, so that it can be
/// fuzzed.
IdxArray read_idx(const std::filesystem::path& path, size_t dims, uint64_t memory_limit = kIdxMemoryLimit);

/// The dimensions alone, from the file's header; throws as `read_idx`.
std::vector<int64_t> read_idx_sizes(const std::filesystem::path& path, size_t dims);

/// The dimensions from a header of 4 + 4 * dims bytes; throws as `read_idx`, which names `path` in its messages.
std::vector<int64_t> parse_idx_header(std::span<const uint8_t> header, size_t dims, uint64_t memory_limit,
                                      const std::filesystem::path& path);

}  // namespace fulgur
