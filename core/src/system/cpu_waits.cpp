#include "fulgur/core/system/cpu_waits.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
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

// Seconds in which the CPUs that this process may use were busy (proc(5), /proc/stat).
std::optional<double> busy_seconds() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  std::ifstream file("/proc/stat");
  if (!file || ::sched_getaffinity(0, sizeof usable, &usable) != 0) return std::nullopt;
  double ticks = 0;
  std::string line;
  while (std::getline(file, line) && line.starts_with("cpu")) {
    std::istringstream fields(line.substr(3));
    int cpu = -1;
    double user = 0, nice = 0, system = 0, idle = 0, waits = 0, irq = 0, softirq = 0;
    if (line[3] == ' ' || !(fields >> cpu >> user >> nice >> system >> idle >> waits >> irq >> softirq)) continue;
    if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &usable)) ticks += user + nice + system + irq + softirq;
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double own_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

std::optional<double> CpuWaits::used_by_others() {
  const auto busy = busy_seconds();
  if (!busy) return std::nullopt;
  const auto now = std::chrono::steady_clock::now();
  const double others = *busy - own_seconds(), elapsed = std::chrono::duration<double>(now - others_at_).count();
  const double used = others_before_ && elapsed > 0 ? (others - *others_before_) / elapsed : 0;
  others_before_ = others;
  others_at_ = now;
  return std::max(used, 0.0);
}

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
