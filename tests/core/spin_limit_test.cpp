// Threads of OpenMP that wait for each other while other processes use the CPUs.
#include "fulgur/core/system/spin_limit.h"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <sys/resource.h>

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "fulgur/core/system/cpu_waits.h"
#include "fulgur/core/system/parked_threads.h"
#include "fulgur/core/system/usable_cpus.h"
#include "fulgur/core/text/errors.h"
#include "support/busy_processes.h"
#include "support/busy_threads.h"
#include "support/counted_lines.h"
#include "support/cpu_time.h"

namespace spin_limit_test {

using namespace std::chrono_literals;
using fulgur::detail::CpuWaits;
using fulgur::detail::ParkedThreads;
using fulgur::detail::SpinLimit;
using fulgur::detail::SpinRule;
using fulgur::test::BusyProcesses;
using fulgur::test::BusyThreads;
using fulgur::test::CountedLines;
using fulgur::test::CpuTime;

TEST_CASE("spinning is limited while CPUs are taken, and after a second in which they are free it is not") {
  SpinRule rule;
  CHECK_FALSE(rule.limits(0));
  CHECK_FALSE(rule.limits(0.5));
  CHECK_FALSE(rule.limits(0));  // a single quarter says nothing
  CHECK_FALSE(rule.limits(0.5));
  CHECK(rule.limits(0.1));
  for (int i = 0; i < 3; ++i) CHECK(rule.limits(0));
  CHECK(rule.limits(0.05));  // free quarters count in a row
  for (int i = 0; i < 3; ++i) CHECK(rule.limits(0.02));
  CHECK_FALSE(rule.limits(0.02));
}

TEST_CASE("spinning is tried again after 4 s, 8 s, … 64 s, and 4 s after a minute without limits") {
  SpinRule rule;
  const auto quarters_limited = [&] {
    int64_t count = 0;
    while (!rule.limits(0.5)) {
    }
    do ++count;
    while (rule.limits(0.5));
    return count;
  };
  for (const int64_t seconds : {4, 8, 16, 32, 64, 64}) CHECK(quarters_limited() == 4 * seconds);
  for (int i = 0; i < 300; ++i) CHECK_FALSE(rule.limits(0));
  CHECK(quarters_limited() == 16);
}

TEST_CASE("threads that share CPUs wait for them, and a thread that sleeps does not") {
  CpuWaits waits;
  REQUIRE(waits.largest_share());
  {
    const BusyThreads busy(4 * std::thread::hardware_concurrency());
    waits.largest_share();
    std::this_thread::sleep_for(300ms);
    // Of four threads on a CPU, each waits for three quarters of the time.
    CHECK(waits.largest_share().value_or(0) > 0.4);
  }
  waits.largest_share();
  std::this_thread::sleep_for(300ms);
  CHECK(waits.largest_share() == 0);
}

TEST_CASE("CPUs that other processes use are not counted as those of this one") {
  CpuWaits waits;
  REQUIRE(waits.used_by_others());
  const auto used = [&] {
    waits.used_by_others();
    std::this_thread::sleep_for(1s);
    return waits.used_by_others().value_or(-1);
  };
  const auto cpus = static_cast<double>(fulgur::usable_cpus());
  double own = 0, others = 0;
  {
    const BusyThreads busy(4 * std::thread::hardware_concurrency());
    own = used();
  }
  {
    const BusyProcesses busy(4 * std::thread::hardware_concurrency());
    others = used();
  }
  CAPTURE(own, others, cpus);
  // Beside tests that run meanwhile.
  CHECK(others > 0.8 * cpus);
  CHECK(own < 0.9 * others);
}

TEST_CASE("a run that the system refuses further threads has no parked ones") {
  if (!ParkedThreads::are_possible(2)) SKIP("another OpenMP than GCC's, or too many CPUs");
  if (::geteuid() != 0) SKIP("needs another user, for the limit of processes");
  // 1: this thread alone; 2: the one that starts the team, but not the rest; then more.
  for (const rlim_t threads : {1, 2, 3, 4, 5}) {
    const pid_t child = ::fork();
    if (child == 0) {
      const rlimit limit{.rlim_cur = threads, .rlim_max = threads};
      if (::setuid(23456) != 0 || ::setrlimit(RLIMIT_NPROC, &limit) != 0) ::_exit(1);
      try {
        const ParkedThreads parked(2);
      } catch (const fulgur::Error&) {
      }
      ::_exit(0);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CAPTURE(threads);
    CHECK(status == 0);
  }
}

TEST_CASE("threads that wait for an operation spin, but hardly beside parked threads") {
  if (!ParkedThreads::are_possible(2)) SKIP("another OpenMP than GCC's, or too many CPUs");
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) SKIP("the environment decides how threads wait");
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  const at::Tensor x = at::ones({1 << 17});
  at::Tensor sum = at::ones({1 << 17});
  // CPU time of the other thread, which waits for the next operation.
  const auto spun = [&] {
    at::add_out(sum, x, x);
    const CpuTime time;
    for (int i = 0; i < 10; ++i) {
      at::add_out(sum, x, x);
      std::this_thread::sleep_for(20ms);
    }
    return time.of_others();
  };
  const double free = spun();
  double limited = 0;
  {
    const ParkedThreads parked(2);
    limited = spun();
  }
  const double free_again = spun();
  at::set_num_threads(threads);
  CAPTURE(free, limited, free_again);
  CHECK(limited < free / 3);
  CHECK(limited < free_again / 3);
}

TEST_CASE("a run with several threads limits spinning while others use the CPUs, and says so once") {
  if (!ParkedThreads::are_possible(2)) SKIP("another OpenMP than GCC's, or too many CPUs");
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) {
    CHECK_FALSE(SpinLimit::of_run(2));
    return;
  }
  CHECK_FALSE(SpinLimit::of_run(1));
  const CountedLines messages("threads: other processes use the CPUs");
  {
    const auto limit = SpinLimit::of_run(2);
    REQUIRE(limit);
    const BusyThreads own(2);
    const BusyProcesses others(2 * std::thread::hardware_concurrency());
    for (int i = 0; i < 300 && messages.count() == 0; ++i) std::this_thread::sleep_for(100ms);
    std::this_thread::sleep_for(600ms);
  }
  CHECK(messages.count() == 1);
}

}  // namespace spin_limit_test
