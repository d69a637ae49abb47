// Pinned host memory that can be freed after the device has failed.
//
// LibTorch's allocator records an event when it frees memory that a copy has used. On a failed device, after a kernel
// assertion, that throws; from a tensor's destructor the exception would end the process, and no caller could handle
// it. Everything else is left to the allocator.
#include <ATen/core/CachingHostAllocator.h>

#include <atomic>
#include <exception>
#include <utility>

namespace fulgur {
namespace {

class PinnedMemory final : public at::HostAllocator {
 public:
  explicit PinnedMemory(at::HostAllocator& inner) : inner_(inner) {}

  at::DataPtr allocate(size_t bytes) override {
    at::DataPtr memory = inner_.allocate(bytes);
    free_ = memory.get_deleter();  // always the same
    [[maybe_unused]] const bool replaced = memory.compare_exchange_deleter(memory.get_deleter(), &free_or_leak);
    return memory;
  }
  at::DeleterFnPtr raw_deleter() const override { return inner_.raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { inner_.copy_data(to, from, bytes); }
  bool record_event(void* memory, void* context, c10::Stream stream) override {
    return inner_.record_event(memory, context, stream);
  }
  void empty_cache() override { inner_.empty_cache(); }
  at::HostStats get_stats() override { return inner_.get_stats(); }
  void reset_accumulated_stats() override { inner_.reset_accumulated_stats(); }
  void reset_peak_stats() override { inner_.reset_peak_stats(); }
  void begin_allocate_to_pool(c10::MempoolId_t pool, std::function<bool(c10::Stream)> filter) override {
    inner_.begin_allocate_to_pool(pool, std::move(filter));
  }
  void end_allocate_to_pool(c10::MempoolId_t pool) override { inner_.end_allocate_to_pool(pool); }
  void release_pool(c10::MempoolId_t pool) override { inner_.release_pool(pool); }

 private:
  static void free_or_leak(void* context) {
    try {
      free_.load()(context);
    } catch (const std::exception&) {
      // The device has failed; the next wait for it reports that.
    }
  }

  static inline std::atomic<at::DeleterFnPtr> free_ = nullptr;
  at::HostAllocator& inner_;
};

// Runs when libfulgur.so loads this library.
[[maybe_unused]] const bool registered_pinned_memory = [] {
  static PinnedMemory pinned(*at::getHostAllocator(at::kCUDA));
  at::setHostAllocator(at::kCUDA, &pinned, /*priority=*/1);
  return true;
}();

}  // namespace
}  // namespace fulgur
