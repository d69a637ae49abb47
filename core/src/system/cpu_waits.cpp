#include "fulgur/core/system/cpu_waits.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "fulgur/core/system/unique_fd.h"

namespace fulgur::detail {
namespace {

// Nanoseconds on a CPU and waiting for one, then the number of time slices (Documentation/scheduler/sched-stats.rst).
std::optional<std::pair<uint64_t, uint64_t>> times_in(const std::string& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  std::array<char, 128> text{};
  const ssize_t size = ::read(fd.get(), text.data(), text.size());
  if (size <= 0) return std::nullopt;
  const char* const end = text.data() + size;
  uint64_t ran = 0, waited = 0;
  const auto first = std::from_chars(text.data(), end, ran);
  if (first.ec != std::errc() || first.ptr == end) return std::nullopt;
  if (std::from_chars(first.ptr + 1, end, waited).ec != std::errc()) return std::nullopt;
  return std::pair(ran, waited);
}

}  // namespace

std::optional<double> CpuWaits::largest_share() {
  constexpr double kBusy = 0.2;
  const auto now = std::chrono::steady_clock::now();
  const double elapsed = std::chrono::duration<double, std::nano>(now - std::exchange(last_, now)).count();
  double largest = 0;
  std::unordered_map<int, Times> seen;
  std::error_code error;
  std::filesystem::directory_iterator task("/proc/self/task", error);
  for (; !error && task != std::filesystem::directory_iterator(); task.increment(error)) {
    const auto times = times_in(task->path().string() + "/schedstat");
    if (!times) continue;  // the thread has ended
    const std::string name = task->path().filename().string();
    int thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    seen[thread] = {times->first, times->second};
    const auto before = before_.find(thread);
    if (before == before_.end()) continue;
    const auto ran = static_cast<double>(times->first - before->second.ran),
               waited = static_cast<double>(times->second - before->second.waited);
    if (ran + waited >= kBusy * elapsed) largest = std::max(largest, waited / (ran + waited));
  }
  if (seen.empty()) return std::nullopt;
  before_ = std::move(seen);
  return std::min(largest, 1.0);
}

}  // namespace fulgur::detail
