#include "run/action_report.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

namespace {

nlohmann::ordered_json to_json(const std::vector<ActionTimes::Row>& rows, double elapsed_s) {
  auto actions = nlohmann::ordered_json::array();
  for (const ActionTimes::Row& row : rows) {
    nlohmann::ordered_json action = {{"action", row.action}, {"calls", row.calls}, {"host_s", row.host_s}};
    if (row.device_s) action["device_s"] = *row.device_s;
    actions.push_back(std::move(action));
  }
  return {{"elapsed_s", elapsed_s}, {"actions", std::move(actions)}};
}

}  // namespace

void report_actions(RunState& run) {
  if (!run.actions.is_started() || !run.is_global_zero()) return;
  const double elapsed_s = run.actions.elapsed_s();
  const std::vector<ActionTimes::Row> rows = run.actions.rows();
  run.print(cat("profile of ", name_of(run.fn), " (an action may contain others):\n", action_table(rows, elapsed_s)));
  if (run.run_dir.empty()) return;
  const std::filesystem::path path = run.run_dir / "profile.json";
  std::ofstream file(path);
  file << to_json(rows, elapsed_s).dump(2) << "\n";
  if (!file.flush()) log::warn("trainer.profile", cat("the profile cannot be written to ", path));
}

}  // namespace fulgur::detail
