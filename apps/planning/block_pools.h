#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

namespace fulgur::cli {

/// Divides segments of device memory into blocks as LibTorch's CUDA allocator does with its default settings, without
/// any memory: blocks are at least 512 bytes, a segment is 2 MiB, 20 MiB or as large as its block, and the rest of a
/// block that is reused is given away only if it is large enough.
class BlockPools {
 public:
  using Block = int64_t;  ///< a number for `free`
  Block allocate(int64_t bytes);
  void free(Block block);
  /// In blocks that are in use, with what their tensors do not need.
  int64_t allocated_bytes() const { return allocated_; }
  /// In segments, which are never given back.
  int64_t reserved_bytes() const { return reserved_; }

 private:
  struct Part {
    int64_t segment, begin, size;
    bool is_small, is_free;
  };
  using Pool = std::set<std::tuple<int64_t, int64_t, int64_t>>;  // free: size, segment, begin
  Pool& pool_of(const Part& part) { return part.is_small ? small_ : large_; }

  Pool small_, large_;
  std::map<std::pair<int64_t, int64_t>, Part> parts_;  // by segment and begin
  std::unordered_map<Block, std::pair<int64_t, int64_t>> used_;
  int64_t segments_ = 0, blocks_ = 0, allocated_ = 0, reserved_ = 0;
};

}  // namespace fulgur::cli
