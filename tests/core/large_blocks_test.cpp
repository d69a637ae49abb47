#include "fulgur/core/system/large_blocks.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace large_blocks_test {
namespace {

using fulgur::Tensor;
using fulgur::detail::keep_large_blocks;

constexpr int64_t kMiB = 1 << 20;

Tensor bytes(int64_t count) { return at::empty({count}, at::kByte); }

void skip_with_address_sanitizer() {
#ifdef __SANITIZE_ADDRESS__
  SKIP("AddressSanitizer keeps freed memory");
#endif
}

int64_t resident_bytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int64_t virtual_bytes() {
  int64_t size = 0;
  std::ifstream("/proc/self/statm") >> size;
  return size * ::sysconf(_SC_PAGESIZE);
}

// Where a tensor of that size lay.
const void* address_of(int64_t count) { return bytes(count).const_data_ptr(); }

struct Keeping {
  Keeping() { keep_large_blocks(true); }
  ~Keeping() { keep_large_blocks(false); }
};

}  // namespace

TEST_CASE("the next tensor of about the same size gets the memory of a large tensor that was freed") {
  const Keeping keeping;
  bytes(300 * kMiB);  // the peak
  const void* const first = address_of(64 * kMiB);
  CHECK(address_of(64 * kMiB) == first);
  CHECK(address_of(57 * kMiB) == first);
  CHECK(address_of(64 * kMiB) == first);  // the block has kept its size
  // Not if it would be much too large, or too small.
  CHECK(address_of(50 * kMiB) != first);
  CHECK(address_of(65 * kMiB) != first);
  CHECK(address_of(64 * kMiB) == first);
}

TEST_CASE("of several kept blocks, the smallest that is large enough is taken") {
  const Keeping keeping;
  const void *large = nullptr, *small = nullptr;
  {
    const Tensor a = bytes(70 * kMiB), b = bytes(66 * kMiB);
    large = a.const_data_ptr();
    small = b.const_data_ptr();
  }
  const Tensor c = bytes(65 * kMiB), d = bytes(65 * kMiB);
  CHECK(c.const_data_ptr() == small);
  CHECK(d.const_data_ptr() == large);
}

TEST_CASE("a tensor of 32 MiB, which malloc would map each time, is kept; smaller ones are malloc's") {
  const Keeping keeping;
  const auto deleter = [](int64_t count) { return bytes(count).storage().data_ptr().get_deleter(); };
  const auto mallocs = c10::GetDefaultCPUAllocator()->raw_deleter();
  CHECK(deleter(32 * kMiB) != mallocs);
  CHECK(deleter(kMiB) == mallocs);
  keep_large_blocks(false);
  CHECK(deleter(32 * kMiB) == mallocs);
}

TEST_CASE("kept blocks do not raise the peak: the oldest are freed for a tensor of another size") {
  skip_with_address_sanitizer();
  const Keeping keeping;
  const auto resident_after = [](int64_t count) {
    Tensor tensor = bytes(count);
    tensor.zero_();
    return resident_bytes();
  };
  const int64_t before = resident_bytes();
  {
    Tensor a = bytes(100 * kMiB), b = bytes(200 * kMiB);
    a.zero_();
    b.zero_();
  }
  CHECK(resident_bytes() - before > 290 * kMiB);
  // All three would be 450 MiB; the block of 200, which was freed first, goes.
  CHECK(resident_after(150 * kMiB) - before < 310 * kMiB);
  // A size that is kept needs no more.
  CHECK(resident_after(100 * kMiB) - before > 240 * kMiB);
}

TEST_CASE("at most 1 GiB is kept, and nothing once it is switched off") {
  skip_with_address_sanitizer();
  const int64_t before = resident_bytes();
  {
    const Keeping keeping;
    std::vector<Tensor> tensors;
    for (int i = 0; i < 5; ++i) tensors.push_back(bytes(250 * kMiB).zero_());
    CHECK(resident_bytes() - before > 1200 * kMiB);
    tensors.clear();
    CHECK(resident_bytes() - before > 900 * kMiB);
    CHECK(resident_bytes() - before < 1050 * kMiB);
  }
  CHECK(resident_bytes() - before < 100 * kMiB);
}

TEST_CASE("kept blocks are freed if memory is short") {
  skip_with_address_sanitizer();
  const Keeping keeping;
  const int64_t before = resident_bytes();
  bytes(200 * kMiB).zero_();
  CHECK(resident_bytes() - before > 190 * kMiB);
  CHECK_THROWS_AS(bytes(int64_t{1} << 50), c10::Error);
  CHECK(resident_bytes() - before < 100 * kMiB);
}

TEST_CASE("kept blocks are freed for small tensors, too, if memory is short") {
  skip_with_address_sanitizer();
  const Keeping keeping;
  bytes(200 * kMiB);
  // In a child, whose address space is limited to 50 MiB more than it has.
  const pid_t child = ::fork();
  if (child == 0) {
    rlimit limit{};
    limit.rlim_cur = limit.rlim_max = static_cast<rlim_t>(virtual_bytes() + 50 * kMiB);
    ::setrlimit(RLIMIT_AS, &limit);
    std::vector<Tensor> tensors;
    try {
      for (int i = 0; i < 10; ++i) tensors.push_back(bytes(20 * kMiB));
    } catch (const c10::Error&) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("a child of a fork can allocate large tensors, whatever other threads do") {
  const Keeping keeping;
  std::atomic<bool> ends = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (!ends) bytes(40 * kMiB);
    });
  for (int i = 0; i < 100; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);  // ends a child that hangs
      ::_exit(bytes(64 * kMiB).defined() ? 0 : 1);
    }
    int status = -1;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("profilers see what tensors have, not what is kept") {
  struct Watch final : c10::MemoryReportingInfoBase {
    int64_t now = 0, peak = 0;
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
      now += size;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
  };
  const Keeping keeping;
  {
    std::vector<Tensor> tensors;
    for (int i = 0; i < 3; ++i) tensors.push_back(bytes(300 * kMiB));
  }
  const auto watch = std::make_shared<Watch>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, watch);
  {
    const Tensor one = bytes(280 * kMiB);  // in a block of 300
    CHECK(watch->now == 280 * kMiB);
    const Tensor two = bytes(90 * kMiB);  // for which kept blocks are freed
    CHECK(watch->now == 370 * kMiB);
  }
  CHECK(watch->now == 0);
  CHECK(watch->peak == 370 * kMiB);
}

TEST_CASE("threads may allocate and free large tensors at the same time: no two have the same memory") {
  const Keeping keeping;
  std::atomic<int> overwritten = 0;
  std::vector<std::thread> threads;
  for (uint8_t own = 0; own < 4; ++own)
    threads.emplace_back([own, &overwritten] {
      Tensor kept;
      for (int round = 0; round < 200; ++round) {
        const Tensor tensor = bytes((40 + (own + round) % 5) * kMiB);
        auto* const mark = tensor.mutable_data_ptr<uint8_t>();
        *mark = own;
        if (round % 3 == 0) kept = tensor;
        std::this_thread::yield();
        overwritten += *mark != own || *kept.const_data_ptr<uint8_t>() != own ? 1 : 0;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(overwritten == 0);
}

}  // namespace large_blocks_test
