#include <ATen/ops/ones.h>

#include "support/fake_device.h"

#include <catch2/catch_test_macros.hpp>

#include "fulgur/core/device/memory_stats.h"

namespace memory_stats_test {

using namespace fulgur;
using fulgur::test::FakeDevice;

TEST_CASE("memory of a device is what its allocator counts; the CPU has none that counts") {
  FakeDevice& fake = FakeDevice::get();
  CHECK_FALSE(device_memory(at::Device(at::kCPU)));
  fake.begun = false;
  CHECK_FALSE(device_memory(FakeDevice::device()));
  fake.begun = true;
  fake.stats = {};
  fake.stats.allocated_bytes[0].current = 100;
  fake.stats.allocated_bytes[0].peak = 300;
  fake.stats.reserved_bytes[0].current = 400;
  fake.stats.reserved_bytes[0].peak = 500;
  fake.stats.num_alloc_retries = 2;
  fake.stats.num_ooms = 1;
  const auto memory = device_memory(FakeDevice::device());
  REQUIRE(memory);
  CHECK(memory->allocated == 100);
  CHECK(memory->peak_allocated == 300);
  CHECK(memory->reserved == 400);
  CHECK(memory->peak_reserved == 500);
  CHECK(memory->alloc_retries == 2);
  CHECK(memory->ooms == 1);
  const int64_t before = fake.peak_resets;
  reset_peak_memory(FakeDevice::device());
  CHECK(fake.peak_resets == before + 1);
}

TEST_CASE("memory and time of the process grow with what it does") {
  const ProcessUsage before = process_usage();
  constexpr int64_t kBytes = int64_t{200} << 20;
  {
    const at::Tensor large = at::ones({kBytes}, at::kByte);
    const ProcessUsage now = process_usage();
    CHECK(now.resident >= before.resident + kBytes * 9 / 10);
    CHECK(now.minor_faults > before.minor_faults);
    CHECK(now.cpu_seconds > before.cpu_seconds);
  }
#ifdef __SANITIZE_ADDRESS__
  SKIP("AddressSanitizer keeps freed memory");
#endif
  const ProcessUsage after = process_usage();
  CHECK(after.resident < before.resident + kBytes / 2);
  CHECK(after.peak_resident >= before.resident + kBytes * 9 / 10);
  reset_peak_memory(at::Device(at::kCPU));
  const int64_t peak = process_usage().peak_resident;
  if (peak == after.peak_resident) SKIP("the kernel does not let a process set its peak back");
  CHECK(peak < before.resident + kBytes / 2);
}

TEST_CASE("memory of the machine") {
  const SystemMemory machine = system_memory();
  CHECK(machine.total > int64_t{64} << 20);
  CHECK(machine.available > 0);
  CHECK(machine.available < machine.total);
}

}  // namespace memory_stats_test
