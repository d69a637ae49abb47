// Threads of operations that sleep while they wait for each other.
#include "fulgur/core/device/short_waits.h"

#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "fulgur/core/system/usable_cpus.h"

namespace short_waits_test {

using namespace fulgur;
using fulgur::detail::wait_without_spinning;

namespace {

int64_t threads_of_process() {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

}  // namespace

TEST_CASE("wait_without_spinning: the process keeps more OpenMP threads than it has CPUs, once") {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr)
    SKIP("the environment decides how threads wait");
  const int64_t before = threads_of_process(), cpus = usable_cpus();
  wait_without_spinning(2);
  // Another thread makes them.
  for (int i = 0; i < 500 && threads_of_process() <= before + 1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const int64_t after = threads_of_process();
  // With the first team of two threads, they are more than the CPUs.
  CHECK(after >= before + std::max<int64_t>(2, cpus));
  wait_without_spinning(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(threads_of_process() == after);
}

}  // namespace short_waits_test
