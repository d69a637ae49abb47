#include "fulgur/core/device/short_waits.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>

#include "fulgur/core/system/no_signals.h"
#include "fulgur/core/system/usable_cpus.h"

namespace fulgur::detail {
namespace {

// libgomp reads GOMP_SPINCOUNT when it is loaded, which is before any code of ours. But if a process has more OpenMP
// threads than CPUs, its threads spin only a thousand times: so a second team of threads, which never works again,
// makes all of them sleep soon. LibTorch brings its own OpenMP, so the function is looked up.
void keep_idle_team(int64_t threads) {
  using SetThreads = void (*)(int);
  const auto set_threads = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set_threads == nullptr || dlsym(RTLD_DEFAULT, "GOMP_parallel") == nullptr) return;
  at::get_num_threads();  // LibTorch sets the number of a new thread at its first call
  set_threads(static_cast<int>(threads));
  constexpr int64_t kShareOfThread = 32768;  // at::internal::GRAIN_SIZE
  at::zeros({threads * kShareOfThread}).add_(1);
}

}  // namespace

void wait_without_spinning(int64_t threads) {
  static std::once_flag once;
  std::call_once(once, [&] {
    if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
    const int64_t team = std::max<int64_t>(2, usable_cpus() - threads + 2);
    const NoSignals blocked;
    try {
      std::thread([team] {
        keep_idle_team(team);
        for (;;) ::pause();
      }).detach();
    } catch (const std::system_error&) {
      // Without it, threads spin as usual.
    }
  });
}

}  // namespace fulgur::detail
