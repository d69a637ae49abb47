#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>

namespace fulgur::test {

/// Bytes of tensors on the CPU that this thread allocated and that still live, while an object lives; exact, unlike
/// what the system says of a process.
class LiveMemory {
 public:
  int64_t bytes() const { return count_->bytes; }
  int64_t peak() const { return count_->peak; }
  void reset_peak() { count_->peak = count_->bytes; }

 private:
  struct Count final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* at, int64_t size, size_t, size_t, c10::Device) override {
      if (size > 0) {
        sizes[at] = size;
        bytes += size;
      } else if (const auto found = sizes.find(at); found != sizes.end()) {  // what was there before is not counted
        bytes -= found->second;
        sizes.erase(found);
      }
      peak = std::max(peak, bytes);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::unordered_map<void*, int64_t> sizes;
    int64_t bytes = 0, peak = 0;
  };
  std::shared_ptr<Count> count_ = std::make_shared<Count>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, count_};
};

}  // namespace fulgur::test
