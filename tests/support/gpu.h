#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "fulgur/core/device/accelerator.h"

namespace fulgur::test {

enum class GpuCheck { enough, skip, fail };

/// What a test does that needs `needed` GPUs on a machine with `there`. `required` is FULGUR_REQUIRE_GPU, the number of
/// GPUs that the machine is meant to have; nullptr or empty: none. Text that is not a number fails, since it would
/// require nothing.
inline GpuCheck check_gpus(int64_t there, int64_t needed, const char* required) {
  char* end = nullptr;
  const int64_t meant = required && *required ? std::strtoll(required, &end, 10) : 0;
  if (meant < 0 || (end && *end)) return GpuCheck::fail;
  if (there >= needed) return GpuCheck::enough;
  return meant >= needed ? GpuCheck::fail : GpuCheck::skip;
}

inline int64_t count_gpus() {
  Accelerator* const cuda = find_accelerator("cuda");
  return cuda ? cuda->device_count() : 0;
}

/// Skips the test with fewer than `count` devices, or fails it if FULGUR_REQUIRE_GPU says that the machine has as many.
inline void require_gpus_there(int64_t there, int64_t count, const std::string& why_not) {
  const char* const required = std::getenv("FULGUR_REQUIRE_GPU");
  const GpuCheck check = check_gpus(there, count, required);
  const std::string found =
      there > 0 ? "this machine has " + std::to_string(there) + " CUDA device(s), " + std::to_string(count) + " needed"
                : "no CUDA device: " + why_not;
  if (check == GpuCheck::fail) FAIL(found << "; FULGUR_REQUIRE_GPU is '" << required << "'");
  if (check == GpuCheck::skip) SKIP(found);
}

/// The CUDA accelerator, for a test tagged `[gpu]`. With fewer than `count` devices the test is skipped, or fails if
/// FULGUR_REQUIRE_GPU says that the machine has as many.
inline Accelerator& require_gpus(int64_t count) {
  const int64_t there = count_gpus();
  require_gpus_there(there, count, there > 0 ? "" : why_no_cuda());
  return *find_accelerator("cuda");
}

/// The same for a test whose processes, forks of this one, use the devices: this one must not open them.
inline void require_gpus_of_forks(int64_t count) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(static_cast<int>(std::min<int64_t>(count_gpus(), 100)));
  int status = 0;
  ::waitpid(child, &status, 0);
  require_gpus_there(WIFEXITED(status) ? WEXITSTATUS(status) : 0, count, "a process of its kind finds none");
}

}  // namespace fulgur::test
