#include "settings.h"

#include <cstdlib>
#include <cstring>
#include <string>

namespace simulated_cuda {
namespace {

const char* text(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

long long number(const char* name, long long otherwise) {
  const char* value = text(name);
  return value ? std::strtoll(value, nullptr, 0) : otherwise;
}

// CUDA_VISIBLE_DEVICES: a list of indices; the first that does not exist ends it, as in the driver.
int visible(int devices) {
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) return devices;
  int count = 0;
  while (*list != '\0') {
    char* end = nullptr;
    const long index = std::strtol(list, &end, 10);
    if (end == list || index < 0 || index >= devices) break;
    ++count;
    if (*end != ',') break;
    list = end + 1;
  }
  return count;
}

Settings read() {
  Settings s;
  s.devices = visible(static_cast<int>(number("SIMULATED_CUDA_DEVICES", 1)));
  s.device_bytes = static_cast<size_t>(number("SIMULATED_CUDA_MEMORY", 16LL << 30));
  s.poison = static_cast<int>(number("SIMULATED_CUDA_POISON", 0xFF));
  if (const char* schedule = text("SIMULATED_CUDA_SCHEDULE")) {
    if (std::strcmp(schedule, "late") == 0)
      s.schedule = 1;
    else if (std::strcmp(schedule, "immediate") != 0)
      s.schedule = std::strtoull(schedule, nullptr, 0);
  }
  s.print_counts = number("SIMULATED_CUDA_COUNTS", 0) != 0;
  s.log = static_cast<int>(number("SIMULATED_CUDA_LOG", 1));
  s.backtrace = number("SIMULATED_CUDA_BACKTRACE", 0) != 0;
  if (const char* broken = text("SIMULATED_CUDA_BREAK")) {
    s.break_wait = std::strcmp(broken, "wait") == 0;
    s.break_query = std::strcmp(broken, "query") == 0;
    s.break_sync = std::strcmp(broken, "sync") == 0;
  }
  return s;
}

}  // namespace

const Settings& settings() {
  static const Settings* const one = new Settings(read());
  return *one;
}

}  // namespace simulated_cuda
