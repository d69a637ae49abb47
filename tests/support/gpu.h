#pragma once

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "fulgur/core/accelerator.h"

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

/// The CUDA accelerator, for a test tagged `[gpu]`. With fewer than `count` devices the test is skipped, or fails if
/// FULGUR_REQUIRE_GPU says that the machine has as many.
inline Accelerator& require_gpus(int64_t count) {
  Accelerator* const cuda = find_accelerator("cuda");
  const int64_t there = cuda ? cuda->device_count() : 0;
  const char* const required = std::getenv("FULGUR_REQUIRE_GPU");
  const GpuCheck check = check_gpus(there, count, required);
  const std::string found =
      cuda ? "this machine has " + std::to_string(there) + " CUDA device(s), " + std::to_string(count) + " needed"
           : "no CUDA device: " + why_no_cuda();
  if (check == GpuCheck::fail) FAIL(found << "; FULGUR_REQUIRE_GPU is '" << required << "'");
  if (check == GpuCheck::skip) SKIP(found);
  return *cuda;
}

}  // namespace fulgur::test
