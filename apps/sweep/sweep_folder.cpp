#include "sweep/sweep_folder.h"

#include <algorithm>

#include "fulgur/checkpoint/new_file.h"
#include "fulgur/core/system/program_name.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/text.h"
#include "fulgur/history/sweep_report.h"
#include "print.h"
#include "report_file.h"
#include "terminal.h"

namespace fulgur::cli {
namespace {

constexpr const char* kState = "sweep.json";

// nullopt if the run has none, or if it cannot be read: the table does not need it.
std::optional<std::string> config_of(const std::filesystem::path& folder, const history::SweepPlan& plan,
                                     const history::SweepState& state, size_t trial) {
  try {
    return history::trial_config(folder, state.trials[trial], state.config,
                                 plan.spec.folds ? &plan.trials[trial] : nullptr);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<history::SweepState> read_state(const std::filesystem::path& folder) {
  const auto text = read_regular_file(folder / kState);
  return text ? std::optional(history::parse_sweep_json(*text, folder / kState)) : std::nullopt;
}

history::SweepState require_state(const std::filesystem::path& folder) {
  auto state = read_state(folder);
  if (!state)
    throw ConfigError(cat("[cli.sweep] the folder of a sweep has a sweep.json; ", escape_controls(folder.string()),
                          " has none. Give the folder of --dir."));
  return std::move(*state);
}

void write_state(const std::filesystem::path& folder, const history::SweepState& state) {
  try {
    detail::write_durably(folder / kState, history::sweep_json(state));
  } catch (const CheckpointError& error) {
    throw Error(cat("[cli.sweep] the state of the sweep could not be written: ", error.what()));
  }
}

void show_results(const std::filesystem::path& folder, const history::SweepPlan& plan,
                  const history::SweepState& state) {
  const std::vector<history::TrialRecord>& trials = state.trials;
  const auto best = history::best_trial(plan, trials);
  const std::filesystem::path best_yaml = folder / "best.yaml";
  const std::optional<std::string> config = best ? config_of(folder, plan, state, *best) : std::nullopt;
  const std::string command = cat(shell_word(program_name()), " fit --config ", shell_word(best_yaml.string()));
  write_report(folder / "sweep.csv", history::sweep_csv(plan, trials));
  write_report(folder / "sweep.html", history::sweep_page(plan, trials, folder, config, command));
  std::error_code ignored;
  if (config)
    write_report(best_yaml, *config);
  else
    std::filesystem::remove(best_yaml, ignored);  // that of an earlier call
  std::string text = history::sweep_table(plan, trials, style_of_stdout());
  text += escape_controls((folder / "sweep.html").string()) + "\n";
  if (best)
    text +=
        cat("best: ", plan.spec.folds ? cat("point ", plan.trials[*best].point) : cat("trial ", *best), "; ",
            config ? cat("train it with: ", escape_controls(command)) : "the config of its run cannot be read", "\n");
  print(text);
}

ExitCode code_of(const std::vector<history::TrialRecord>& trials) {
  using history::TrialStatus;
  const auto any = [&](std::initializer_list<TrialStatus> statuses) {
    return std::any_of(trials.begin(), trials.end(), [&](const history::TrialRecord& record) {
      return std::find(statuses.begin(), statuses.end(), record.status) != statuses.end();
    });
  };
  if (any({TrialStatus::pending, TrialStatus::running, TrialStatus::interrupted, TrialStatus::paused}))
    return ExitCode::preempted;
  return any({TrialStatus::failed}) ? ExitCode::other : ExitCode::ok;
}

}  // namespace fulgur::cli
