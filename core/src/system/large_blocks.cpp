#include "fulgur/core/system/large_blocks.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fulgur::detail {
namespace {

constexpr size_t kKeptBytes = size_t{1} << 30;

// In front of LibTorch's allocator for the CPU. All members but `inner_` are guarded by `mutex_`.
class LargeBlocks final : public c10::Allocator {
 public:
  // It lives as long as the process: tensors are freed by it until its end.
  static LargeBlocks& instance() {
    static auto* const only = new LargeBlocks;
    return *only;
  }

  void keep(bool on) {
    std::vector<Block> dropped;
    {
      const std::lock_guard lock(mutex_);
      keeps_ = on;
      peak_ = in_use_;
      if (!on) dropped = std::exchange(kept_, {});
    }
    free(dropped);
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes <= kLargestHeapTensor) return allocate_fresh(bytes);
    if (void* const memory = take(bytes)) return of(memory);
    c10::DataPtr fresh = allocate_fresh(bytes);
    const std::lock_guard lock(mutex_);
    if (!keeps_) return fresh;
    void* const memory = fresh.release_context();
    use({memory, bytes});
    return of(memory);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }

 private:
  struct Block {
    void* memory;
    size_t bytes;
  };

  LargeBlocks() : inner_(c10::GetDefaultCPUAllocator()) {
    // The child of a fork must not find the mutex locked by a thread that it does not have.
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().mutex_.unlock(); });
  }

  static c10::DataPtr of(void* memory) { return {memory, memory, &release, c10::Device(c10::kCPU)}; }

  // Also of small blocks, for raw_deallocate.
  static void release(void* memory) { instance().give_back(memory); }

  // LibTorch's profilers see a kept block as free: it is reported when it is kept and when it is taken again.
  static void free(const std::vector<Block>& blocks) {
    for (const Block& block : blocks) c10::free_cpu(block.memory);
  }

  // A kept block that is at most an eighth too large, the smallest of them, or nullptr. Without one, kept blocks are
  // freed, the oldest first, as far as the peak would rise otherwise.
  void* take(size_t bytes) {
    std::vector<Block> dropped;
    Block found{};
    {
      const std::lock_guard lock(mutex_);
      auto best = kept_.end();
      for (auto block = kept_.begin(); block != kept_.end(); ++block)
        if (block->bytes >= bytes && block->bytes - bytes <= bytes / 8 &&
            (best == kept_.end() || block->bytes < best->bytes))
          best = block;
      if (best != kept_.end()) {
        found = *best;
        kept_.erase(best);
        use(found);
      } else {
        const size_t most = std::max(peak_, in_use_ + bytes);
        while (!kept_.empty() && kept_bytes() + in_use_ + bytes > most) drop_oldest(dropped);
      }
    }
    free(dropped);
    if (found.memory != nullptr) c10::profiledCPUMemoryReporter().New(found.memory, bytes);
    return found.memory;
  }

  // If memory is short, what is kept is freed first.
  c10::DataPtr allocate_fresh(size_t bytes) {
    try {
      return inner_->allocate(bytes);
    } catch (const c10::Error&) {
      std::vector<Block> dropped;
      {
        const std::lock_guard lock(mutex_);
        dropped = std::exchange(kept_, {});
      }
      if (dropped.empty()) throw;
      free(dropped);
    }
    return inner_->allocate(bytes);
  }

  void give_back(void* memory) {
    std::vector<Block> dropped;
    const bool is_kept = put_back(memory, dropped);
    free(dropped);
    if (!is_kept) inner_->raw_deallocate(memory);
  }

  bool put_back(void* memory, std::vector<Block>& dropped) {
    const std::lock_guard lock(mutex_);
    const auto used = sizes_.find(memory);
    if (used == sizes_.end()) return false;
    const Block block{memory, used->second};
    sizes_.erase(used);
    in_use_ -= block.bytes;
    if (!keeps_ || block.bytes > kKeptBytes) return false;
    while (kept_bytes() + block.bytes > kKeptBytes) drop_oldest(dropped);
    c10::profiledCPUMemoryReporter().Delete(memory);  // before another thread can take it
    kept_.push_back(block);
    return true;
  }

  void use(const Block& block) {
    sizes_[block.memory] = block.bytes;
    in_use_ += block.bytes;
    peak_ = std::max(peak_, in_use_);
  }
  size_t kept_bytes() const {
    size_t sum = 0;
    for (const Block& block : kept_) sum += block.bytes;
    return sum;
  }
  void drop_oldest(std::vector<Block>& dropped) {
    dropped.push_back(kept_.front());
    kept_.erase(kept_.begin());
  }

  c10::Allocator* const inner_;
  std::mutex mutex_;
  bool keeps_ = false;
  std::vector<Block> kept_;  // at most 32 of them, the oldest first
  std::unordered_map<void*, size_t> sizes_;
  size_t in_use_ = 0, peak_ = 0;
};

}  // namespace

void keep_large_blocks(bool keep) {
  LargeBlocks& blocks = LargeBlocks::instance();
  blocks.keep(keep);
  if (keep && c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) c10::SetCPUAllocator(&blocks);
}

}  // namespace fulgur::detail
