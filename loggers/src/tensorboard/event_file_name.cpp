#include "tensorboard/event_file_name.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <optional>

#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr int64_t kLastTime = 9'999'999'999;  // names sort by time as long as it has ten digits

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  std::string host = name;
  for (char& c : host) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
    if (!plain) c = '_';
  }
  return host;
}

// The time in the name of an event file.
std::optional<int64_t> time_of(std::string_view name) {
  int64_t time = 0;
  if (!name.starts_with(kPrefix) ||
      std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), time).ec != std::errc())
    return std::nullopt;
  return time;
}

}  // namespace

std::vector<std::string> event_file_names(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (std::string name = entry->path().filename().string(); time_of(name)) names.push_back(std::move(name));
  std::sort(names.begin(), names.end());
  return names;
}

std::string event_file_name(const std::filesystem::path& folder) {
  static std::atomic<int64_t> count = 0;
  int64_t time =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (const std::string& other : event_file_names(folder))
    if (const int64_t taken = *time_of(other); taken >= time && taken < kLastTime) time = taken + 1;
  return cat(kPrefix, time, '.', host_name(), '.', ::getpid(), '.', count++);
}

}  // namespace fulgur
