#include "verbs.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "completion/completion_verb.h"
#include "creating/new_verb.h"
#include "doctor/doctor_verb.h"
#include "exchange_verbs.h"
#include "failure.h"
#include "failure_report.h"
#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/cluster_environment.h"
#include "fulgur/strategies/launcher.h"
#include "fulgur/trainer/checkpoint_config.h"
#include "fulgur/trainer/launch_options.h"
#include "fulgur/trainer/trainer.h"
#include "inspect_verb.h"
#include "planning/bench_comm.h"
#include "planning/plan_verb.h"
#include "plugin.h"
#include "prepared_run.h"
#include "print.h"
#include "report_file.h"
#include "restart.h"
#include "seeing/history_verbs.h"
#include "sweep/sweep_verb.h"
#include "tokenizing/tokenize_verb.h"
#include "tuning/finders.h"
#include "tuning/grouped_trial.h"
#include "tuning/tune_batch_size.h"
#include "tuning/tune_lr.h"
#include "tuning/tune_options.h"
#include "tuning/tuned_config.h"

namespace fulgur::cli {

namespace {

void save_report(const CommandLine& command, const std::string& json) {
  if (command.report) write_report(*command.report, json);
}

// Where the checkpoint's value wins, the run is not the one that its config describes: this is a warning.
void report_differences(const std::vector<ConfigDifference>& differences, const Config& config) {
  std::vector<std::string> kept;
  for (const ConfigDifference& difference : differences) {
    log::info(cat("resume: ", difference.describe()));
    if (!difference.config_won) kept.push_back(difference.key);
  }
  if (kept.empty()) return;
  log::silence(config.silence);
  log::warn("trainer.resume_config",
            cat("resume: the run continues with the checkpoint's values of ", join(kept),
                ". To continue with the config's values, use --allow-config-change; if another run was meant, name its "
                "checkpoint with --ckpt_path"));
}

// The sources without what `--resume` adds to them.
ConfigSources without_resume(ConfigSources sources) {
  std::erase_if(sources.overrides, [](const auto& item) { return item.first == "ckpt_path" && item.second == "auto"; });
  return sources;
}

// Adapters learn what is added to the weights of a trained model.
void warn_of_untrained_base(const Config& config, const fulgur::LightningModule& module) {
  const bool starts_afresh = !config.ckpt_path || config.ckpt_path == "auto";
  if (config.adapters && starts_afresh && !config.pretrained.path && !module.has_trained_weights())
    log::warn("cli.untrained_base",
              "the config has adapters, and the weights that they adapt, which are not trained, are newly initialized. "
              "Give the weights of a trained model with pretrained.path or --ckpt_path");
}

ExitCode fit(const CommandLine& command, Config config, const std::optional<ProcessPlace>& place,
             FailureReport& failure) {
  const bool first_rank = !place || place->rank == 0;
  // Rank 0 decides from which checkpoint the run resumes, and reports it.
  if (!first_rank) log::leave_console(cat("rank ", place->rank));
  const auto agree = [&](Config& with) {
    return place && place->restarts > 0 ? continue_after_restart(with, *place, first_rank)
                                        : agree_with_checkpoint(with, first_rank);
  };
  const auto resume = [&] {
    const Config start = command.resume ? load_config(without_resume(command.sources)) : config;
    return resume_or_start(config, start, agree);
  };
  if (!config.ckpt_path && command.profile_steps == 0) {
    if (const auto candidate = resume_candidate(config)) {
      config.written_start = {config.ckpt_path, config.load};
      config.ckpt_path = candidate->string();
    }
  }
  if (config.ckpt_path == "auto" && command.profile_steps > 0) config.ckpt_path.reset();  // it resumes nothing
  const auto differences = config.ckpt_path == "auto" ? resume() : agree(config);
  resolve_start(config);
  report_differences(differences, config);
  config.profile_steps = command.profile_steps;
  if (config.profile_steps == 0)
    if (const ExitCode code = run_finders(config, place && place->world_size > 1); code != ExitCode::ok) return code;
  PreparedRun run = prepare(config, fulgur::TrainerFn::fit, place.has_value());
  if (first_rank) warn_of_untrained_base(config, *run.module);
  const auto watched = failure.watch(run.trainer);
  const FitReport report = run.trainer.fit(run.module, run.data, config.ckpt_path);
  if (report.rank != 0 || (place && place->rank != 0)) return report.exit_code;
  save_report(command, report_json("fit", report));
  if (!report.metrics.empty()) print(metrics_table("Fit metric", {report.metrics}));
  return report.exit_code;
}

// Weights of a newly created module are unrelated to previous training, and those in the saved config of a run are from
// before it.
void warn_of_untrained(const CommandLine& command, const Config& config, const fulgur::LightningModule& module) {
  namespace layout = fulgur::run_layout;
  const bool is_saved = config.ckpt_path && !is_last_or_best(config.ckpt_path) &&
                        std::filesystem::exists(config.folder / layout::kCheckpoints / layout::kLast);
  const bool is_given =
      std::ranges::any_of(command.sources.overrides, [](const auto& item) { return item.first == "ckpt_path"; });
  if (is_saved && !is_given)
    log::warn("cli.start_evaluated",
              cat("the config is that of a run which started from ", escape_controls(*config.ckpt_path),
                  ", and these weights are used. For what the run has learned, use --ckpt_path last or best"));
  if (!config.ckpt_path && !config.pretrained.path && !module.has_trained_weights())
    log::warn("cli.untrained_weights",
              "no checkpoint is given, so the weights are newly initialized. Use --ckpt_path last, best or a path");
}

// Folders of the pictures and tables that the evaluation has logged, such as a confusion matrix; one per line.
std::string media_folders(const std::filesystem::path& run_dir, std::string_view stage) {
  std::set<std::string> found;
  std::error_code error;
  if (!run_dir.empty())
    for (std::filesystem::directory_iterator entry(run_dir / "media", error), end; !error && entry != end;
         entry.increment(error))
      if (entry->path().filename().string().starts_with(stage)) found.insert(entry->path().string());
  std::string text;
  for (const std::string& folder : found) text += cat(escape_controls(folder), "\n");
  return text;
}

ExitCode evaluate(const CommandLine& command, const Config& config, fulgur::TrainerFn verb, bool several,
                  FailureReport& failure) {
  PreparedRun run = prepare(config, verb, several);
  warn_of_untrained(command, config, *run.module);
  const auto watched = failure.watch(run.trainer);
  const bool validates = verb == fulgur::TrainerFn::validate;
  const EvalReport report = validates ? run.trainer.validate(run.module, run.data, config.ckpt_path)
                                      : run.trainer.test(run.module, run.data, config.ckpt_path);
  if (report.rank != 0) return report.exit_code;
  save_report(command, report_json(command.verb, report));
  // After a signal there is nothing to show.
  if (report.exit_code == ExitCode::ok)
    print(metrics_table(validates ? "Validate metric" : "Test metric", report.loaders) +
          media_folders(report.run_dir, validates ? "val_" : "test_"));
  return report.exit_code;
}

ExitCode predict(const CommandLine& command, const Config& config, bool several, FailureReport& failure) {
  PreparedRun run = prepare(config, fulgur::TrainerFn::predict, several);
  warn_of_untrained(command, config, *run.module);
  const auto watched = failure.watch(run.trainer);
  const PredictReport report = run.trainer.predict(run.module, run.data, config.ckpt_path);
  if (report.rank != 0) return report.exit_code;
  save_report(command, report_json("predict", report));
  std::string files;
  for (const std::filesystem::path& file : report.files) files += escape_controls(file.string()) + "\n";
  print(files);
  return report.exit_code;
}

// The place of this process among those of a run; nullopt if it was not started as one of several.
std::optional<ProcessPlace> place_of_process(const LaunchPlan& plan) {
  return detect_cluster_environment(process_environment(), plan.cluster_environment);
}

// Starts the processes that the config requests. Returns the exit code; nullopt if it requests only this process.
std::optional<ExitCode> launch_ranks(const Config& config, const LaunchPlan& plan, const std::string& program,
                                     const std::vector<std::string>& arguments) {
  const int64_t processes = count_processes(config.trainer);
  if (processes * config.trainer.num_nodes == 1) return std::nullopt;
  std::vector<std::string> command{program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  LaunchOptions launched = launch_options(config.trainer, plan, processes);
  launched.show = [](int64_t rank, const std::string& message) { print_error(cat("rank ", rank), message); };
  const LaunchReport report = launch(launched, command);
  if (report.message.empty()) return static_cast<ExitCode>(report.exit_code);
  throw LaunchFailure(report);
}

// `tune batch_size`. Several ranks are started for each trial, so that they take the same decision.
ExitCode search_batch_size(const CommandLine& command, const std::string& program,
                           const std::vector<std::string>& arguments) {
  if (command.report) check_report_path(*command.report);
  const Config config = load_config(command.sources);
  const int64_t steps = batch_size_options_of(command.tune).steps_per_trial;
  static_cast<void>(batch_size_of(config));  // an error here needs no processes
  std::function<BatchTrialReport(int64_t)> run_trial = [&](int64_t size) {
    return try_batch_size(config, size, steps, /*several=*/false);
  };
  if (const auto plan = config.trainer.strategy.create()->launch_plan()) {
    const auto place = place_of_process(*plan);
    if (const auto trial = place ? trial_of_process() : std::nullopt) {
      if (place->rank != 0) log::leave_console(cat("rank ", place->rank));
      return run_grouped_trial(*trial, config, steps, place->rank == 0);
    }
    if (place && place->world_size > 1)
      throw ConfigError(
          "[tune.batch_size] the processes of a trial are started for it; this one was started by a launcher. Use "
          "`trainer tune batch_size` without torchrun, srun or mpirun.");
    const int64_t processes = count_processes(config.trainer);
    if (config.trainer.num_nodes > 1)
      throw ConfigError(cat("[tune.batch_size] a trial runs on one machine; num_nodes is ", config.trainer.num_nodes,
                            ". Set --trainer.num_nodes 1: the batch size is that of one process."));
    if (processes > 1) {
      std::vector<std::string> line{program};
      line.insert(line.end(), arguments.begin(), arguments.end());
      LaunchOptions launched = launch_options(config.trainer, *plan, processes);
      launched.max_restarts = 0;
      launched.grace_s = 2;
      run_trial = [line, launched](int64_t size) { return launch_trial(size, launched, line); };
    }
  }
  return tune_batch_size(command, config, run_trial);
}

// `fit`, `validate`, `test`, `predict` and `tune lr`.
ExitCode run_trainer(const CommandLine& command, const std::string& program,
                     const std::vector<std::string>& arguments) {
  if (command.report) check_report_path(*command.report);
  FailureReport failure(command);
  std::optional<ProcessPlace> place;
  bool launches = false;
  try {
    Config config = load_config(command.sources);
    if (const auto plan = config.trainer.strategy.create()->launch_plan()) {
      place = place_of_process(*plan);
      launches = !place;
      if (launches)
        if (const auto code = launch_ranks(config, *plan, program, arguments)) return *code;
      launches = false;
    }
    if (place && place->rank != 0) log::leave_console(cat("rank ", place->rank));
    if (command.verb == "fit") return fit(command, config, place, failure);
    const bool several = place.has_value();
    if (command.verb == "tune") return tune_lr(command, config, several, !place || place->rank == 0);
    if (command.verb == "validate") return evaluate(command, config, fulgur::TrainerFn::validate, several, failure);
    if (command.verb == "test") return evaluate(command, config, fulgur::TrainerFn::test, several, failure);
    return predict(command, config, several, failure);
  } catch (...) {
    if (!place || place->rank == 0) failure.write(launches);
    throw;
  }
}

ExitCode sweep(const CommandLine& command, const std::string& program) {
  if (!command.sweep.trial) return run_sweep(command, program);
  const std::vector<std::string> arguments = fit_of_array_task(command);
  CommandLine fit = parse_command_line(arguments, {});
  fit.sources.environment = command.sources.environment;
  return run_trainer(fit, program, arguments);
}

}  // namespace

ExitCode run(const CommandLine& command, const std::string& program, const std::vector<std::string>& arguments) {
  for (const std::filesystem::path& plugin : command.sources.plugins) load_plugin(plugin);
  throw_if_registration_failed();
  if (command.verb == "list" || command.verb == "describe" || command.verb == "schema")
    detail::load_plugins_of(command.sources);
  if (command.verb == "list") return print(list_components(command.argument)), ExitCode::ok;
  if (command.verb == "describe") return print(describe_component(*command.argument)), ExitCode::ok;
  if (command.verb == "schema") return print(config_json_schema()), ExitCode::ok;
  if (command.verb == "export") return export_checkpoint(command);
  if (command.verb == "inspect") return inspect(command);
  if (command.verb == "runs") return list_runs(command);
  if (command.verb == "compare") return compare_runs(command);
  if (command.verb == "report") return report_runs(command);
  if (command.verb == "watch") return watch_run(command);
  if (command.verb == "tokenize") return tokenize(command);
  if (command.verb == "env") return show_environment(command);
  if (command.verb == "completion") return print(completion_script(*command.argument)), ExitCode::ok;
  if (command.verb == "doctor" && !command.print_config) return doctor(command);
  if (command.verb == "new") return create_project(command);
  if (command.verb == "plan" && !command.print_config) return plan(command);
  if (command.verb == "bench") return bench_comm(command, program, arguments);

  if (command.print_config)
    return print(to_yaml(load_config(command.sources).write(), *command.print_config)), ExitCode::ok;
  if (command.verb == "config")
    return print(to_yaml(fulgur::Trainer::from_config(load_config(command.sources)).resolved_config())), ExitCode::ok;
  if (command.verb == "import") return import_weights(command, load_config(command.sources));
  if (command.verb == "sweep") return sweep(command, program);
  if (command.verb == "tune" && command.argument == "batch_size") return search_batch_size(command, program, arguments);
  return run_trainer(command, program, arguments);
}

}  // namespace fulgur::cli
