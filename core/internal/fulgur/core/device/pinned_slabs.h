#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// Pinned host memory in a few large pieces, which are kept and reused: the driver takes milliseconds per allocation,
/// however small, and LibTorch rounds each up to a power of two.
class FULGUR_API PinnedSlabs {
 public:
  /// A part of a slab.
  struct FULGUR_API Place {
    const Tensor* slab = nullptr;  ///< as bytes; valid until the next call
    int64_t offset = 0;
    /// The place as a tensor with these sizes.
    Tensor as(at::IntArrayRef sizes, at::ScalarType dtype) const;
  };

  /// Places with this many bytes each; those of the previous call become invalid. Slabs that none of the last four
  /// calls needed are released.
  std::vector<Place> place(const std::vector<int64_t>& bytes);

 private:
  struct Slab {
    Tensor memory;
    int64_t used = 0;
    uint64_t last_used = 0;
  };
  std::vector<Slab> slabs_;
  uint64_t calls_ = 0;
};

/// Where the next tensor may start.
constexpr int64_t align_up(int64_t offset) { return (offset + 63) / 64 * 64; }

}  // namespace fulgur::detail
