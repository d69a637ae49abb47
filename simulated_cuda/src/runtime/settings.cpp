#include "settings.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

namespace simulated_cuda {
namespace {

const char* text(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// With a misspelt setting, a test could pass for the wrong reason.
[[noreturn]] void refuse(const char* name, const std::string& allowed) {
  std::fprintf(stderr, "[simulated CUDA] %s is '%s'; it must be %s\n", name, text(name), allowed.c_str());
  std::_Exit(2);
}

long long number(const char* name, long long otherwise, long long least, long long most) {
  const char* const value = text(name);
  if (value == nullptr) return otherwise;
  char* end = nullptr;
  errno = 0;
  const long long parsed = std::strtoll(value, &end, 0);
  if (errno != 0 || *end != '\0' || parsed < least || parsed > most)
    refuse(name,
           "a number from " + std::to_string(least) +
               (most < std::numeric_limits<long long>::max() ? " to " + std::to_string(most) : std::string(" on")));
  return parsed;
}

uint64_t schedule() {
  const char* const value = text("SIMULATED_CUDA_SCHEDULE");
  if (value == nullptr || std::strcmp(value, "immediate") == 0) return 0;
  if (std::strcmp(value, "late") == 0) return 1;
  char* end = nullptr;
  const unsigned long long seed = std::strtoull(value, &end, 0);
  if (*value == '-' || *end != '\0' || seed < 2)
    refuse("SIMULATED_CUDA_SCHEDULE", "'immediate', 'late' or a number from 2 on");
  return seed;
}

// CUDA_VISIBLE_DEVICES is a list of indices. The first invalid one ends the list, as in the driver.
std::vector<int> visible(int devices) {
  std::vector<int> places;
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (int place = 0; place < devices; ++place) places.push_back(place);
    return places;
  }
  while (*list != '\0') {
    char* end = nullptr;
    const long place = std::strtol(list, &end, 10);
    if (end == list || place < 0 || place >= devices) break;
    places.push_back(static_cast<int>(place));
    if (*end != ',') break;
    list = end + 1;
  }
  return places;
}

Settings read() {
  Settings s;
  constexpr long long kAny = std::numeric_limits<long long>::max();
  s.devices = visible(static_cast<int>(number("SIMULATED_CUDA_DEVICES", 1, 0, 64)));
  s.device_bytes = static_cast<size_t>(number("SIMULATED_CUDA_MEMORY", 16LL << 30, 1 << 20, kAny));
  s.poison = static_cast<int>(number("SIMULATED_CUDA_POISON", 0xFF, -1, 255));
  s.schedule = schedule();
  s.print_counts = number("SIMULATED_CUDA_COUNTS", 0, 0, 1) != 0;
  s.log = static_cast<int>(number("SIMULATED_CUDA_LOG", 1, 0, 3));
  s.backtrace = number("SIMULATED_CUDA_BACKTRACE", 0, 0, 1) != 0;
  s.operators = number("SIMULATED_CUDA_OPERATORS", 1, 0, 1) != 0;
  if (const char* broken = text("SIMULATED_CUDA_BREAK")) {
    const auto known = {"wait", "query", "sync", "record_stream"};
    if (std::none_of(known.begin(), known.end(), [&](const char* name) { return std::strcmp(broken, name) == 0; }))
      refuse("SIMULATED_CUDA_BREAK", "'wait', 'query', 'sync' or 'record_stream'");
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
