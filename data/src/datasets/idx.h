#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace fulgur {

/// An array of unsigned bytes from an idx file, last dimension fastest.
struct IdxArray {
  std::vector<int64_t> dims;
  std::unique_ptr<uint8_t[]> values;
  size_t size = 0;  ///< product of dims, in bytes
};

inline constexpr size_t kIdxMaxDims = 4;
inline constexpr uint64_t kIdxMemoryLimit = uint64_t{2} << 30;

/// Reads an idx file of unsigned bytes with `dims` dimensions, plain or gzip. Every header field is validated and the
/// size checked against `memory_limit` before memory is allocated; data shorter or longer than the header says is an
/// error. Throws a DataError with the path, what was expected and what was found. Independent of LibTorch, so that it
/// can be fuzzed.
IdxArray read_idx(const std::filesystem::path& path, size_t dims, uint64_t memory_limit = kIdxMemoryLimit);

/// Only the dimensions, from the file's header; throws like `read_idx`.
std::vector<int64_t> read_idx_sizes(const std::filesystem::path& path, size_t dims);

/// The dimensions from a header of 4 + 4 * dims bytes; throws like `read_idx`, with `path` in its messages.
std::vector<int64_t> parse_idx_header(std::span<const uint8_t> header, size_t dims, uint64_t memory_limit,
                                      const std::filesystem::path& path);

}  // namespace fulgur
