#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstddef>

namespace fulgur::test {

/// While it lives, the CPU has no memory for a tensor of `bytes` bytes or more: LibTorch throws what it throws when
/// memory ends. Create it while no other thread allocates tensors.
class ScarceMemory final : public c10::Allocator {
 public:
  explicit ScarceMemory(size_t bytes) : bytes_(bytes), real_(c10::GetAllocator(c10::kCPU)) {
    c10::SetAllocator(c10::kCPU, this, kPriority);
  }
  ~ScarceMemory() override { c10::SetAllocator(c10::kCPU, real_, kPriority); }
  ScarceMemory(const ScarceMemory&) = delete;
  ScarceMemory& operator=(const ScarceMemory&) = delete;

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes >= bytes_) {
      ++refused_;
      TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", bytes,
                  " bytes. Error code 12 (Cannot allocate memory)");
    }
    return real_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return real_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }

  /// How many tensors found no memory.
  int refused() const { return refused_; }

 private:
  static constexpr uint8_t kPriority = 200;
  size_t bytes_;
  c10::Allocator* real_;
  std::atomic<int> refused_ = 0;
};

}  // namespace fulgur::test
