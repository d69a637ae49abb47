#include "reading/single_thread_guard.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace fulgur {
namespace {

// at::set_num_threads is for all threads; OpenMP's own setting is for the calling one. LibTorch brings its own OpenMP,
// so the function is looked up among the loaded libraries.
using SetThreads = void (*)(int);
SetThreads set_threads() {
  static const auto function = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  return function;
}

}  // namespace

SingleThreadGuard::SingleThreadGuard() : before_(at::get_num_threads()) {
  if (before_ > 1 && set_threads() != nullptr) set_threads()(1);
}

SingleThreadGuard::~SingleThreadGuard() {
  if (before_ > 1 && set_threads() != nullptr) set_threads()(before_);
}

}  // namespace fulgur
