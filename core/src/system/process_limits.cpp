#include "fulgur/core/system/process_limits.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

namespace fs = std::filesystem;

// What cgroup v1 writes for "no limit" is a number of this size.
constexpr int64_t kUnlimited = int64_t{1} << 60;

std::string first_line_of(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

template <class Number>
void tighten(std::optional<Number>& limit, Number found) {
  limit = limit ? std::min(*limit, found) : found;
}

void tighten_memory(ProcessLimits& limits, const fs::path& file) {
  const auto bytes = parse_whole<int64_t>(first_line_of(file));
  if (bytes && *bytes > 0 && *bytes < kUnlimited) tighten(limits.memory_bytes, *bytes);
}

void tighten_cpus(ProcessLimits& limits, const std::string& quota, const std::string& period) {
  const auto time = parse_whole<int64_t>(quota), of = parse_whole<int64_t>(period);
  if (time && of && *time > 0 && *of > 0) tighten(limits.cpus, static_cast<double>(*time) / static_cast<double>(*of));
}

/// The folder of `group` below `base`, and those above it. In a container the path of the group is that of the host,
/// which does not exist here, but its limits are in `base`.
std::vector<fs::path> folders_of(const fs::path& base, const std::string& group) {
  std::vector<fs::path> folders{base};
  fs::path folder = base;
  for (const std::string& part : split_text(group, '/')) {
    if (part.empty() || part == "..") continue;
    folder /= part;
    folders.push_back(folder);
  }
  return folders;
}

}  // namespace

ProcessLimits process_limits(const fs::path& root) {
  ProcessLimits limits;
  const fs::path groups = root / "sys/fs/cgroup";
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // NUMBER:CONTROLLERS:PATH; v2 has number 0 and no controllers.
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) {
      for (const fs::path& folder : folders_of(groups, group)) {
        tighten_memory(limits, folder / "memory.max");
        const std::vector<std::string> cpu = split_text(first_line_of(folder / "cpu.max"), ' ');
        if (cpu.size() == 2) tighten_cpus(limits, cpu[0], cpu[1]);
      }
      continue;
    }
    for (const std::string& controller : split_text(controllers, ','))
      // Controllers that are mounted together have one folder, and usually a link for each.
      for (const fs::path& base : {groups / controllers, groups / controller})
        for (const fs::path& folder : folders_of(base, group)) {
          if (controller == "memory") tighten_memory(limits, folder / "memory.limit_in_bytes");
          if (controller == "cpu")
            tighten_cpus(limits, first_line_of(folder / "cpu.cfs_quota_us"),
                         first_line_of(folder / "cpu.cfs_period_us"));
        }
  }
  return limits;
}

}  // namespace fulgur
