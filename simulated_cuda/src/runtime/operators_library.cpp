#include "operators_library.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "settings.h"

namespace simulated_cuda {
namespace {

constexpr const char* kName = "libsimulated_cuda_operators.so";

std::atomic<bool> loaded{false};

// The path of the operators' library, which is in the folder of this library.
std::string path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&load_operators), &info) == 0 || info.dli_fname == nullptr) return kName;
  const std::string mine = info.dli_fname;
  const size_t slash = mine.rfind('/');
  return slash == mine.npos ? kName : mine.substr(0, slash + 1) + kName;
}

}  // namespace

void load_operators() {
  static std::atomic<bool> done{false};
  if (done) return;
  if (!settings().operators) {
    done = true;
    return;
  }
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD) == nullptr) return;
  if (done.exchange(true)) return;
  if (dlopen(path().c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) {
    loaded = true;
    return;
  }
  // Without the operators' library every result would be wrong.
  std::fprintf(stderr, "[simulated CUDA] %s\n", dlerror());
  std::abort();
}

bool operators_are_loaded() { return loaded; }

}  // namespace simulated_cuda
