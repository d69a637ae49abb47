#include "memory_plan.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>

namespace fulgur::detail {
namespace {

constexpr size_t kAlignment = 64;

struct Block {
  c10::StorageImpl* storage;
  size_t offset, size, first, last;  // first, last: indices of calls
  size_t number;
  bool overlaps(const Block& other) const { return first <= other.last && other.first <= last; }
};

size_t rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The lowest place beside the blocks that are alive at the same time.
size_t free_offset(const Block& block, const std::vector<Block>& placed) {
  std::vector<const Block*> near;
  for (const Block& other : placed)
    if (block.overlaps(other)) near.push_back(&other);
  std::ranges::sort(near, {}, &Block::offset);
  size_t offset = 0;
  for (const Block* const other : near) {
    if (offset + block.size <= other->offset) break;
    offset = std::max(offset, other->offset + other->size);
  }
  return offset;
}

int64_t peak_of(const std::vector<Block>& blocks, size_t calls) {
  std::vector<int64_t> change(calls + 1, 0);
  for (const Block& block : blocks) {
    change[block.first] += static_cast<int64_t>(block.size);
    change[block.last + 1] -= static_cast<int64_t>(block.size);
  }
  int64_t alive = 0, peak = 0;
  for (const int64_t one : change) peak = std::max(peak, alive += one);
  return peak;
}

void release_share(void* share) { delete static_cast<std::shared_ptr<c10::DataPtr>*>(share); }

}  // namespace

MemoryPlan plan_memory(size_t calls, const Lowered& lowered, bool move) {
  std::unordered_set<c10::StorageImpl*> exchanged;
  for (const ReplayCall& call : lowered.calls)
    for (const Tensor& tensor : call.exchanged)
      if (tensor.defined()) exchanged.insert(storage_of(tensor));

  std::vector<Block> blocks;
  for (const auto& [storage, made] : lowered.made)
    if (made.size > 0) blocks.push_back({storage, 0, rounded(made.size), made.first, made.last, made.number});
  // Large ones first; the numbers make the plan the same in each process.
  std::ranges::sort(blocks, [](const Block& one, const Block& other) {
    return one.size != other.size ? one.size > other.size : one.number < other.number;
  });
  MemoryPlan plan;
  plan.peak_live_bytes = peak_of(blocks, calls);
  std::vector<Block> placed;
  size_t end = 0;
  for (Block& block : blocks) {
    if (!move || lowered.made.at(block.storage).is_shared || exchanged.contains(block.storage) ||
        lowered.constants.contains(block.storage)) {
      plan.separate_bytes += static_cast<int64_t>(block.size);
      continue;
    }
    block.offset = free_offset(block, placed);
    end = std::max(end, block.offset + block.size);
    placed.push_back(block);
  }
  plan.planned_bytes = static_cast<int64_t>(end);
  if (end == 0) return plan;
  const auto memory = std::make_shared<c10::DataPtr>(c10::GetCPUAllocator()->allocate(end));
  for (const Block& block : placed)
    block.storage->set_data_ptr_noswap(c10::DataPtr(static_cast<std::byte*>(memory->get()) + block.offset,
                                                    new std::shared_ptr<c10::DataPtr>(memory), &release_share,
                                                    c10::Device(c10::kCPU)));
  return plan;
}

}  // namespace fulgur::detail
