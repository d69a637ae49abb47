#include "fulgur/history/run.h"

#include <algorithm>

namespace fulgur::history {

std::string_view status_name(RunStatus status) {
  switch (status) {
    case RunStatus::running:
      return "running";
    case RunStatus::finished:
      return "finished";
    case RunStatus::failed:
      return "failed";
    case RunStatus::interrupted:
      break;
  }
  return "interrupted";
}

const MetricValues* Run::find_metric(std::string_view metric) const {
  const auto found = std::find_if(metrics.begin(), metrics.end(),
                                  [&](const MetricValues& one) { return one.name == metric && one.count > 0; });
  return found == metrics.end() ? nullptr : &*found;
}

std::optional<std::pair<double, int64_t>> Run::best() const {
  const MetricValues* const values = monitor ? find_metric(monitor->metric) : nullptr;
  if (!values || !values->least) return std::nullopt;
  return monitor->smaller_is_better ? std::pair(*values->least, values->least_step)
                                    : std::pair(*values->most, values->most_step);
}

std::vector<Run> read_runs(const std::filesystem::path& root) {
  std::vector<Run> runs;
  for (const std::filesystem::path& folder : find_runs(root)) {
    runs.push_back(read_run(folder, Damage::is_noted));
    const std::filesystem::path below = folder.lexically_relative(root);
    if (!below.empty() && below != ".") runs.back().name = below.string();
  }
  return runs;
}

std::string Run::status_text() const {
  const std::string text(status_name(status));
  return is_fit() ? text : verb + ", " + text;
}

std::optional<double> Run::steps_per_s() const {
  if (!duration_s || *duration_s <= 0 || steps == 0) return std::nullopt;
  return static_cast<double>(steps) / *duration_s;
}

}  // namespace fulgur::history
