#include "sweep/sweep_verb.h"

#include <algorithm>
#include <csignal>
#include <set>
#include <string>

#include "fulgur/checkpoint/run_lock.h"
#include "fulgur/core/contracts/monitor_direction.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/history/sweep_schedule.h"
#include "fulgur/history/sweep_state.h"
#include "fulgur/trainer/config.h"
#include "fulgur/trainer/plugins.h"
#include "sweep/environment_values.h"
#include "sweep/sweep_folder.h"
#include "sweep/sweep_runner.h"
#include "sweep/trial_process.h"

namespace fulgur::cli {
namespace {

namespace fs = std::filesystem;
using history::SweepPlan;
using history::SweepState;
using history::TrialRecord;
using history::TrialStatus;

/// A sweep that was checked and may start.
struct CheckedSweep {
  fs::path folder;
  SweepPlan plan;
  SweepState state;  ///< without an earlier process's records
};

void check_options(const CommandLine& command) {
  const SweepArguments& sweep = command.sweep;
  if (!sweep.file)
    throw ConfigError("[cli.sweep] a sweep needs --sweep FILE; it was not given. docs/sweeps.md describes the file.");
  if (command.report)
    throw ConfigError("[cli.sweep] --report is for fit, validate, test and predict. The results are in sweep.csv.");
  if (std::ranges::any_of(command.sources.overrides, [](const auto& item) { return item.first == "ckpt_path"; }))
    throw ConfigError(
        "[cli.sweep] a trial resumes from its own checkpoint, so --ckpt_path is not for sweeps. To begin all trials "
        "from a checkpoint, set ckpt_path in the config file.");
  if (!sweep.trial) slots_of(sweep, process_environment());
}

// Whether a run writes the rows from which its metric is read.
bool writes_rows(const LoggerChoice& logger) {
  if (!logger.enabled || logger.loggers.empty()) return logger.enabled;
  return std::ranges::any_of(logger.loggers, [](const auto& spec) {
    return spec.class_path() == "CsvLogger" || spec.class_path() == "JsonlLogger";
  });
}

void check_trial(const Config& config) {
  const auto fail = [](const std::string& what) { throw ConfigError(what); };
  const TrainerOptions& trainer = config.trainer;
  if (!config.model) fail("a trial needs a model, and the config names none. Set model.");
  if (!trainer.enable_checkpointing || trainer.fast_dev_run.batches > 0 || trainer.barebones)
    fail(
        "a trial is resumed from its checkpoints, and enable_checkpointing: false, fast_dev_run or barebones turns "
        "them off. Turn checkpoints on.");
  if (!writes_rows(trainer.logger))
    fail("the metric of a trial is read from its log, and the config has no CsvLogger and no JsonlLogger. Add one.");
}

ConfigSources sources_of(const CommandLine& command, const SweepPlan& plan, const history::SweepTrial& trial) {
  ConfigSources sources = command.sources;
  sources.overrides.insert(sources.overrides.end(), trial.overrides.begin(), trial.overrides.end());
  for (const history::SweepAxis& axis : plan.spec.space.axes) sources.places[axis.key] = axis.where;
  return sources;
}

// The first fit that ends in such a folder removes the checkpoints of the others. `folders`: of the trials before.
void check_crash_folder(const Config& config, std::set<std::string>& folders) {
  for (const Spec<Callback>& callback : config.trainer.callbacks) {
    if (callback.class_path() != "OnExceptionCheckpoint") continue;
    const ConfigNode written = callback.write();
    const ConfigNode* const options = written.find("init_args");
    const ConfigNode* const folder = options != nullptr ? options->find("dirpath") : nullptr;
    if (folder == nullptr || !folder->is_scalar()) continue;
    if (!folders.insert(fs::absolute(folder->text()).lexically_normal().string()).second)
      throw ConfigError(
          cat("trials must not share the folder of OnExceptionCheckpoint, since a trial that ends removes the "
              "checkpoints of the others; dirpath is ",
              escape_controls(folder->text()),
              ". Leave dirpath out: the checkpoint is then in the run folder of the trial, which resumes from it."));
  }
}

void check_trials(const CommandLine& command, const SweepPlan& plan) {
  std::set<std::string> crash_folders;
  for (const history::SweepTrial& trial : plan.trials) {
    try {
      const Config config = load_config(sources_of(command, plan, trial));
      check_trial(config);
      check_crash_folder(config, crash_folders);
    } catch (const ConfigError& error) {
      throw ConfigError(cat("[cli.sweep] trial ", trial.index, " (", history::trial_text(plan, trial),
                            ") cannot start: ", error.what()));
    }
  }
}

// The length of the whole run in the unit of halving.
std::optional<int64_t> length_of(const history::SweepSpec& spec, const Config& config) {
  if (!spec.halving) return std::nullopt;
  if (spec.halving->min_epochs) return config.trainer.max_epochs;
  return config.trainer.max_steps > 0 ? std::optional(config.trainer.max_steps) : std::nullopt;
}

ConfigNode sweep_nodes(const fs::path& file) {
  Problems problems;
  ConfigNode node = load_yaml_file(file, problems);
  problems.throw_if_any();
  return node;
}

// The sweep sets these itself: another value would have no effect.
void check_set_by_sweep(const history::SweepSpec& spec, const ConfigNode& config, const ConfigSources& sources) {
  const ConfigNode* fold = config.find("data");
  for (const char* key : {"init_args", "fold"}) fold = fold != nullptr && fold->is_map() ? fold->find(key) : nullptr;
  if (spec.folds && fold != nullptr && !fold->is_null() && !(fold->is_scalar() && fold->text().empty()))
    throw ConfigError(cat("[cli.sweep] `folds` of the sweep file sets data.fold for each trial, and the config has ",
                          escape_controls(fold->is_scalar() ? fold->text() : "one"),
                          ". Remove data.fold from the config or the command line, or folds from the sweep file."));
  if (!spec.seeds.values.empty() &&
      std::ranges::any_of(sources.overrides, [](const auto& item) { return item.first == "seed_everything"; }))
    throw ConfigError(
        "[cli.sweep] `seeds` of the sweep file sets seed_everything for each trial, and --seed_everything is given. "
        "Remove one of them.");
}

CheckedSweep check_sweep(const CommandLine& command) {
  check_options(command);
  const fs::path& file = *command.sweep.file;
  const ConfigNode node = sweep_nodes(file);
  const history::SweepSpec spec = history::read_sweep(node);
  if (const std::string doubt = detail::doubtful_mode(spec.metric, spec.mode); !doubt.empty())
    log::warn("sweep.mode", cat("sweep: ", doubt));
  Problems problems;
  detail::load_plugins_of(command.sources);
  const ConfigNode written = merge_config(command.sources, problems);
  problems.throw_if_any();
  check_set_by_sweep(spec, written, command.sources);
  // The trials do not depend on halving, which needs a config; the config may be incomplete without a trial's values.
  history::SweepSpec whole = spec;
  whole.halving.reset();
  const SweepPlan trials = history::plan_sweep(whole, std::nullopt);
  check_trials(command, trials);
  const Config config = load_config(sources_of(command, trials, trials.trials.front()));
  CheckedSweep checked{command.sweep.dir.value_or(fs::path("sweeps") / file.stem()),
                       {},
                       {to_yaml(node), to_yaml(written), length_of(spec, config), {}, {}}};
  checked.plan = history::plan_sweep(spec, checked.state.length);
  checked.state.trials.resize(checked.plan.trials.size());
  checked.state.environment = environment_values(written);
  checked.state.environment.merge(environment_values(node));
  std::error_code error;
  fs::create_directories(checked.folder, error);
  if (error)
    throw ConfigError(cat("[cli.sweep] the folder ", escape_controls(checked.folder.string()),
                          " cannot be created: ", error.message(), ". Choose another --dir."));
  return checked;
}

void check_same_sweep(const fs::path& folder, const SweepState& saved, const SweepState& given) {
  const std::string differences = history::sweep_differences(saved, given);
  if (!differences.empty())
    throw ConfigError(
        cat("[cli.sweep] ", escape_controls(folder.string()),
            " has a sweep that differs from this one. Choose another --dir, or undo the change:", differences));
}

// Takes the records of the sweep that began in the folder. With another metric they are read again.
bool take_records(CheckedSweep& checked) {
  auto saved = read_state(checked.folder);
  if (!saved) return false;
  check_same_sweep(checked.folder, *saved, checked.state);
  if (history::is_ranked_otherwise(*saved, checked.state))
    history::rank_again(checked.plan, checked.folder, saved->trials);
  checked.state.trials = std::move(saved->trials);
  checked.state.threads = saved->threads;
  return true;
}

// `file`: may change the metric, mode and value of the sweep.
ExitCode collect(const fs::path& folder, const std::optional<fs::path>& file) {
  SweepState state = require_state(folder);
  const RunLock lock(folder);
  if (file) {
    SweepState given = state;
    given.sweep = to_yaml(sweep_nodes(*file));
    static_cast<void>(history::plan_of(given));  // an error here is one of the file
    check_same_sweep(folder, state, given);
    if (history::is_ranked_otherwise(state, given)) history::rank_again(history::plan_of(given), folder, state.trials);
    state.sweep = given.sweep;
  }
  const SweepPlan plan = history::plan_of(state);
  for (size_t i = 0; i < state.trials.size(); ++i)
    state.trials[i] = history::collected_trial(plan, folder, static_cast<int64_t>(i), state.trials[i]);
  write_state(folder, state);
  show_results(folder, plan, state);
  return code_of(state.trials);
}

ExitCode exit_code_of(const SweepRunner::End& end, const std::vector<TrialRecord>& trials) {
  if (end.signal == 0) return code_of(trials);
  if (end.signal == SIGINT) return ExitCode::interrupted;
  return end.at_once ? ExitCode::terminated : ExitCode::preempted;
}

}  // namespace

ExitCode run_sweep(const CommandLine& command, const std::string& program) {
  if (command.sweep.show) {
    const SweepState state = require_state(*command.sweep.show);
    show_results(*command.sweep.show, history::plan_of(state), state);
    return ExitCode::ok;
  }
  if (command.sweep.collect) return collect(*command.sweep.collect, command.sweep.file);
  CheckedSweep checked = check_sweep(command);
  const RunLock lock(checked.folder);
  SweepState& state = checked.state;
  if (take_records(checked)) history::continue_sweep(checked.plan, state.trials, command.sweep.retry_failed);
  check_metric(state.trials);
  TrialSlots slots = slots_of(command.sweep, process_environment());
  // The number of threads changes the last bits of a result, so it does not change if the sweep continues.
  if (!state.threads) state.threads = slots.threads;
  slots.threads = *state.threads;
  const auto save = [&] { write_state(checked.folder, state); };
  save();
  const SweepRunner::End end =
      SweepRunner(command, program, checked.plan, state.trials, checked.folder, std::move(slots), save).run();
  if (end.signal == 0) history::stop_paused(state.trials);
  save();
  if (end.signal != 0)
    log::info(cat("the sweep in ", escape_controls(checked.folder.string()),
                  " is interrupted; the same command continues it"));
  if (!end.at_once) show_results(checked.folder, checked.plan, state);
  return exit_code_of(end, state.trials);
}

std::vector<std::string> fit_of_array_task(const CommandLine& command) {
  CheckedSweep checked = check_sweep(command);
  const int64_t index = *command.sweep.trial;
  const auto count = static_cast<int64_t>(checked.plan.trials.size());
  if (checked.plan.spec.halving)
    throw ConfigError(
        "[cli.sweep] halving compares trials with each other, so one process must start them all; --trial was given. "
        "Remove halving or --trial.");
  if (index < 0 || index >= count)
    throw ConfigError(cat("[cli.sweep] the sweep has ", counted(count, "trial"), ", from 0 to ", count - 1,
                          "; --trial is ", index, "."));
  if (!take_records(checked)) {
    try {
      write_state(checked.folder, checked.state);
    } catch (const Error&) {
      // Another task may have written the same at the same time.
      if (!read_state(checked.folder)) throw;
    }
  }
  return arguments_of_trial(command, checked.plan, checked.plan.trials[static_cast<size_t>(index)], checked.folder,
                            std::nullopt);
}

}  // namespace fulgur::cli
