#include "fulgur/history/run.h"

#include <algorithm>
#include <map>

#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/history/sweep_state.h"

namespace fulgur::history {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSweepState = "sweep.json";
constexpr int kDeepestTrial = 5;  // folders between a sweep and the run of a trial

// By which metric the sweep in `folder` ranks its trials; nullopt if there is no sweep, or none that can be read.
std::optional<Monitor> sweep_monitor(const fs::path& folder) {
  try {
    const auto text = read_regular_file(folder / kSweepState);
    if (!text) return std::nullopt;
    const SweepSpec spec = plan_of(parse_sweep_json(*text, folder / kSweepState)).spec;
    return Monitor{spec.metric, spec.mode == MonitorMode::min};
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// The metrics of the sweeps whose trials the runs are. Each sweep is read once.
class SweepMonitors {
 public:
  std::optional<Monitor> of_run(const fs::path& run) {
    fs::path folder = fs::absolute(run).lexically_normal();
    for (int i = 0; i < kDeepestTrial && folder.has_relative_path(); ++i) {
      folder = folder.parent_path();
      const auto [known, is_new] = found_.try_emplace(folder);
      if (is_new) known->second = sweep_monitor(folder);
      if (known->second) return known->second;
    }
    return std::nullopt;
  }

 private:
  std::map<fs::path, std::optional<Monitor>> found_;
};

}  // namespace

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
  SweepMonitors sweeps;
  for (const std::filesystem::path& folder : find_runs(root)) {
    runs.push_back(read_run(folder, Damage::is_noted));
    if (auto monitor = sweeps.of_run(folder)) runs.back().monitor = std::move(monitor);
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
