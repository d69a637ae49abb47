#include <algorithm>
#include <set>
#include <span>

#include "drawing/number_text.h"
#include "fulgur/core/options/option_path.h"
#include "fulgur/core/options/yaml_writer.h"
#include "fulgur/core/text/csv_format.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "fulgur/history/sweep_report.h"
#include "fulgur/trainer/yaml.h"
#include "reading/config_keys.h"
#include "sweep/point_results.h"

namespace fulgur::history {
namespace {

std::string shortened(const std::string& line, int64_t columns) {
  if (columns_of(line) <= columns) return line;
  return columns <= 1 ? std::string() : line.substr(0, fit_columns(line, columns - 1).bytes) + "…";
}

std::string csv_value(const std::optional<double>& value) { return value ? csv_number(*value) : std::string(); }

// The map that holds the option, if the config sets it.
ConfigNode* holder_of_option(ConfigNode& config, const OptionPath& path) {
  if (path.options.empty()) return nullptr;
  const std::span<const std::string> options = path.options;
  ConfigNode* const node = find_option(config, path.group, options.first(options.size() - 1));
  return node != nullptr && node->find(path.options.back()) != nullptr ? node : nullptr;
}

// Removes what links have put into the config of a run: the values of its data. Those that the user has written stay.
void erase_linked_values(ConfigNode& config, ConfigNode& written, const SweepTrial& trial) {
  const ConfigNode* const links = config.find("link");
  if (links == nullptr) return;
  std::set<OptionPath> chosen;
  for (const auto& [key, value] : trial.overrides) chosen.insert(option_path(key));
  for (const auto& [target, source] : links->entries()) {
    const OptionPath path = option_path(target);
    if (holder_of_option(written, path) != nullptr || chosen.contains(path)) continue;
    if (ConfigNode* const holder = holder_of_option(config, path)) holder->erase(path.options.back());
  }
}

}  // namespace

std::optional<size_t> best_trial(const SweepPlan& plan, const std::vector<TrialRecord>& trials) {
  const auto results = point_results(plan, trials);
  return !results.empty() && results.front().complete ? std::optional(results.front().first_trial) : std::nullopt;
}

std::string sweep_table(const SweepPlan& plan, const std::vector<TrialRecord>& trials, const TextStyle& style) {
  TextRow head{plan.runs_per_point() > 1 ? "point" : "trial", "state"};
  for (const std::string& name : axis_names(plan)) head.push_back(escape_controls(name));
  head.push_back(escape_controls(plan.spec.metric));
  head.insert(head.end(), {"epochs", "time", ""});
  std::vector<TextRow> rows{std::move(head)};
  for (const PointResult& result : point_results(plan, trials)) {
    TextRow row{cat(result.point), result.status};
    for (const ConfigNode& value : plan.trials[result.first_trial].values)
      row.push_back(escape_controls(override_text(value)));
    row.insert(row.end(), {result_text(plan, result), cat(result.epochs), duration_text(result.seconds),
                           escape_controls(first_line(result.reason))});
    rows.push_back(std::move(row));
  }
  const auto widths = column_widths(rows);
  std::string text;
  for (const TextRow& row : rows) {
    std::string line = aligned(row, widths);
    line.erase(line.find_last_not_of(' ') + 1);
    text += (style.columns ? shortened(line, *style.columns) : line) + "\n";
  }
  return text;
}

std::string sweep_csv(const SweepPlan& plan, const std::vector<TrialRecord>& trials) {
  std::vector<std::string> head{"trial", "point", "seed"};
  if (plan.spec.folds) head.push_back("fold");
  head.push_back("state");
  for (const SweepAxis& axis : plan.spec.space.axes) head.push_back(axis.key);
  head.push_back(plan.spec.metric);
  for (const int64_t rung : plan.rungs) head.push_back(cat(plan.spec.metric, "@", rung));
  head.insert(head.end(), {"epochs", "steps", "seconds", "run", "reason"});
  std::string text = csv_row(head);
  for (size_t i = 0; i < trials.size(); ++i) {
    const SweepTrial& trial = plan.trials[i];
    const TrialRecord& record = trials[i];
    std::vector<std::string> row{cat(trial.index), cat(trial.point), trial.seed ? cat(*trial.seed) : ""};
    if (trial.fold) row.push_back(cat(*trial.fold));
    row.emplace_back(enum_text(record.status));
    for (const ConfigNode& value : trial.values) row.push_back(override_text(value));
    row.push_back(csv_value(record.value));
    for (size_t rung = 0; rung < plan.rungs.size(); ++rung)
      row.push_back(rung < record.at_rungs.size() ? csv_value(record.at_rungs[rung]) : "");
    row.insert(row.end(),
               {cat(record.epochs), cat(record.steps), csv_value(record.seconds), record.run, record.reason});
    text += csv_row(row);
  }
  return text;
}

std::optional<std::string> trial_config(const std::filesystem::path& sweep_folder, const TrialRecord& trial,
                                        const std::string& shared, const SweepTrial* of_fold) {
  if (trial.run.empty()) return std::nullopt;
  ConfigNode config = read_config(sweep_folder / trial.run);
  if (config.is_null()) return std::nullopt;
  Problems problems;
  ConfigNode written = parse_yaml(shared, "config", problems);
  problems.throw_if_any();
  // What is trained with the best point is not one of its folds.
  if (of_fold != nullptr) {
    ConfigNode* const data = config.find("data");
    if (data != nullptr && data->find("init_args") != nullptr) data->find("init_args")->erase("fold");
    erase_linked_values(config, written, *of_fold);
  }
  if (ConfigNode* trainer = config.find("trainer"); trainer && trainer->is_map()) {
    trainer->erase("default_root_dir");
    trainer->erase("stop_after");
    const ConfigNode* const before = written.find("trainer");
    const ConfigNode* const root = before ? before->find("default_root_dir") : nullptr;
    if (root) trainer->set("default_root_dir", *root);
  }
  return to_yaml(config);
}

}  // namespace fulgur::history
