#include "fulgur/core/device/pinned_slabs.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <numeric>

namespace fulgur::detail {
namespace {

constexpr uint64_t kSlabKeptFor = 4;

// Powers of two, since more would be allocated anyway. The largest slab is filled first; the rest is rounded up once it
// is an eighth or less, so that there are few slabs and at most an eighth is wasted.
int64_t slab_size(int64_t left, int64_t total, int64_t largest) {
  const auto size = static_cast<uint64_t>(left);
  const uint64_t wanted = left <= total / 8 ? std::bit_ceil(size) : std::bit_floor(size);
  return static_cast<int64_t>(std::max(wanted, std::bit_ceil(static_cast<uint64_t>(largest))));
}

}  // namespace

Tensor PinnedSlabs::Place::as(at::IntArrayRef sizes, at::ScalarType dtype) const {
  const int64_t bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
  return slab->narrow(0, offset, bytes).view(dtype).view(sizes);
}

std::vector<PinnedSlabs::Place> PinnedSlabs::place(const std::vector<int64_t>& bytes) {
  ++calls_;
  for (Slab& slab : slabs_) slab.used = 0;
  std::vector<size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  int64_t total = 0;
  for (const int64_t size : bytes) total += align_up(size);
  std::vector<std::pair<size_t, int64_t>> found(bytes.size());
  int64_t left = total;
  for (const size_t i : order) {
    const int64_t size = align_up(bytes[i]);
    auto slab = std::ranges::find_if(slabs_, [&](const Slab& one) { return one.memory.numel() - one.used >= size; });
    if (slab == slabs_.end()) {
      const auto pinned = at::TensorOptions().dtype(at::kByte).pinned_memory(true);
      slabs_.push_back({.memory = at::empty({slab_size(left, total, std::max<int64_t>(size, 1))}, pinned)});
      slab = slabs_.end() - 1;
    }
    found[i] = {static_cast<size_t>(slab - slabs_.begin()), slab->used};
    slab->used += size;
    slab->last_used = calls_;
    left -= size;
  }
  // Only unused slabs at the end are freed, since places refer to slabs by index.
  while (!slabs_.empty() && slabs_.back().last_used + kSlabKeptFor <= calls_) slabs_.pop_back();
  std::vector<Place> places;
  for (const auto& [slab, offset] : found) places.push_back({&slabs_[slab].memory, offset});
  return places;
}

}  // namespace fulgur::detail
