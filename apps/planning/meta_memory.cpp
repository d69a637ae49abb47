#include "planning/meta_memory.h"

#include <c10/core/Allocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "planning/block_pools.h"

namespace fulgur::cli {
namespace {

constexpr size_t kRounding = 512, kMapped = size_t{1} << 16;

struct MetaCounters {
  std::mutex mutex;
  MemoryUse use = MemoryUse::step;
  std::array<int64_t, 3> live{};
  int64_t peak = 0, peak_without_gradients = 0, peak_of_blocks = 0;
  BlockPools pools;

  void add(MemoryUse of, int64_t bytes) {
    live[static_cast<size_t>(of)] += bytes;
    const int64_t others = live[static_cast<size_t>(MemoryUse::step)] + live[static_cast<size_t>(MemoryUse::state)];
    peak = std::max(peak, others + live[static_cast<size_t>(MemoryUse::gradients)]);
    peak_without_gradients = std::max(peak_without_gradients, others);
    peak_of_blocks = std::max(peak_of_blocks, pools.allocated_bytes());
  }
};

MetaCounters& meta_counters() {
  static auto& all = *new MetaCounters;
  return all;
}

struct MetaBlock {
  int64_t bytes;
  MemoryUse use;
  void* memory;
  size_t mapped;  // 0: memory of malloc
  BlockPools::Block block;
};

void free_meta_block(void* context) {
  auto* const block = static_cast<MetaBlock*>(context);
  {
    MetaCounters& counters = meta_counters();
    const std::lock_guard<std::mutex> lock(counters.mutex);
    counters.pools.free(block->block);
    counters.add(block->use, -block->bytes);
  }
  if (block->mapped > 0)
    ::munmap(block->memory, block->mapped);
  else
    std::free(block->memory);
  delete block;
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    auto* const block = new MetaBlock{.bytes = static_cast<int64_t>((size + kRounding - 1) / kRounding * kRounding),
                                      .use = MemoryUse::step,
                                      .memory = nullptr,
                                      .mapped = 0,
                                      .block = 0};
    if (size >= kMapped) {
      void* const memory =
          ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      // Without an address, code that looks at values fails; shapes and sizes are all that the plan needs.
      if (memory != MAP_FAILED) {
        block->memory = memory;
        block->mapped = size;
      }
    } else if (size > 0) {
      block->memory = std::calloc(1, size);
    }
    MetaCounters& counters = meta_counters();
    {
      const std::lock_guard<std::mutex> lock(counters.mutex);
      block->use = counters.use;
      if (size > 0) block->block = counters.pools.allocate(static_cast<int64_t>(size));
      counters.add(block->use, block->bytes);
    }
    return {block->memory, block, &free_meta_block, at::Device(at::kMeta)};
  }
  void copy_data(void*, const void*, size_t) const override {}
};

}  // namespace

MetaMemory& MetaMemory::instance() {
  static auto& memory = *new MetaMemory;
  return memory;
}

MetaMemory::MetaMemory() { c10::SetAllocator(at::kMeta, new CountingAllocator, /*priority=*/1); }

void MetaMemory::set_use(MemoryUse use) {
  const std::lock_guard<std::mutex> lock(meta_counters().mutex);
  meta_counters().use = use;
}

void MetaMemory::mark(const at::Tensor& tensor, MemoryUse use) {
  if (!tensor.defined() || !tensor.has_storage() || !tensor.is_meta()) return;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  if (data.get_deleter() != &free_meta_block) return;
  auto* const block = static_cast<MetaBlock*>(data.get_context());
  MetaCounters& counters = meta_counters();
  const std::lock_guard<std::mutex> lock(counters.mutex);
  if (block->use == use) return;
  counters.live[static_cast<size_t>(block->use)] -= block->bytes;
  counters.live[static_cast<size_t>(use)] += block->bytes;
  block->use = use;
}

int64_t MetaMemory::bytes(MemoryUse use) const {
  const std::lock_guard<std::mutex> lock(meta_counters().mutex);
  return meta_counters().live[static_cast<size_t>(use)];
}

int64_t MetaMemory::peak() const { return meta_counters().peak; }
int64_t MetaMemory::peak_of_blocks() const { return meta_counters().peak_of_blocks; }
int64_t MetaMemory::reserved() const { return meta_counters().pools.reserved_bytes(); }
int64_t MetaMemory::peak_without_gradients() const { return meta_counters().peak_without_gradients; }

void MetaMemory::begin_peaks() {
  MetaCounters& counters = meta_counters();
  const std::lock_guard<std::mutex> lock(counters.mutex);
  counters.peak = counters.peak_without_gradients = counters.peak_of_blocks = 0;
  counters.add(MemoryUse::step, 0);
}

}  // namespace fulgur::cli
