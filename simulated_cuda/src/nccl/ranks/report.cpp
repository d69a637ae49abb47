#include "ranks/report.h"

#include <cstdio>
#include <mutex>

namespace fulgur::simulated_nccl {
namespace {

// Never freed, since LibTorch's threads may still report errors while the process exits.
std::mutex& mutex() {
  static auto* made = new std::mutex;
  return *made;
}
char g_last[512] = "";

}  // namespace

void say(const std::string& text) { std::fprintf(stderr, "[simulated nccl] %s\n", text.c_str()); }

ncclResult_t fail(ncclResult_t result, const std::string& text) {
  say(text);
  const std::lock_guard lock(mutex());
  std::snprintf(g_last, sizeof g_last, "%s", text.c_str());
  return result;
}

const char* last_failure() { return g_last; }

}  // namespace fulgur::simulated_nccl
