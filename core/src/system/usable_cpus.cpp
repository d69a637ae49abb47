#include "fulgur/core/system/usable_cpus.h"

#include <sched.h>

#include <algorithm>

namespace fulgur {

int64_t usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

}  // namespace fulgur
