#include "fulgur/core/system/granted_threads.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <atomic>

namespace fulgur::detail {

int granted_threads(int threads) {
#ifdef _OPENMP
  omp_set_dynamic(0);
  if (omp_get_max_active_levels() < 1) omp_set_max_active_levels(1);
  std::atomic<int> started = 0;
#pragma omp parallel num_threads(threads)
  ++started;
  return std::clamp(started.load(), 1, threads);
#else
  return threads;
#endif
}

}  // namespace fulgur::detail
