#include "checkpointing/resume.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/system/paths.h"
#include "fulgur/core/system/program_name.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/checkpoint_config.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur::detail {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kTimer = "Timer", kMaxTime = "max_time";

// Whether the config's Timer would again end a run with `fit_time_s`. A Timer that is not in the config decides by
// itself when the run starts.
bool timer_is_over(const TrainerOptions& options, double fit_time_s) {
  return std::ranges::any_of(options.callbacks, [&](const auto& spec) {
    if (spec.class_path() != kTimer) return false;
    const ConfigNode node = spec.write();
    const ConfigNode* arguments = node.find("init_args");
    const ConfigNode* duration = arguments ? arguments->find("duration") : nullptr;
    const auto limit = duration && duration->is_scalar() ? Interval::parse(duration->text()) : std::nullopt;
    return limit && limit->value <= fit_time_s;
  });
}

// Whether a run that ended for `finished.reason` has anything left to do under the current limits.
bool has_more_to_do(const TrainerOptions& options, const FinishedRun& finished, double fit_time_s) {
  if (!is_of_limit(finished.reason)) return false;
  const bool by_timer = finished.reason.starts_with(kTimer);
  const bool more_epochs = !options.max_epochs || *options.max_epochs < 0 || *options.max_epochs > finished.epochs;
  const bool more_steps = options.max_steps < 0 || options.max_steps > finished.global_step;
  const bool more_time = !options.max_time || options.max_time->value > fit_time_s;
  return more_epochs && more_steps && more_time && !(by_timer && timer_is_over(options, fit_time_s));
}

// The run in the folder if it has finished, and would again finish under these options.
std::optional<MetricValues> metrics_in(const nlohmann::ordered_json& marker) {
  const auto values = marker.find("metrics");
  if (values == marker.end() || !values->is_object()) return std::nullopt;
  MetricValues metrics;
  for (const auto& [name, value] : values->items())
    metrics.emplace_back(name, value.is_number() ? value.get<double>()
                               : value == "inf"  ? std::numeric_limits<double>::infinity()
                               : value == "-inf" ? -std::numeric_limits<double>::infinity()
                                                 : std::numeric_limits<double>::quiet_NaN());
  return metrics;
}

std::optional<FinishedRun> finished_run_in(const fs::path& given, const TrainerOptions& options) {
  if (options.fast_dev_run.batches > 0) return std::nullopt;  // it tries the loops from the start
  const fs::path folder = fs::absolute(given).lexically_normal();
  const auto text = read_regular_file(folder / run_layout::kFinished);
  if (!text) return std::nullopt;
  const auto json = nlohmann::ordered_json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("reason") || !json["reason"].is_string() || !json.contains("epochs") ||
      !json["epochs"].is_number_integer() || !json.contains("global_step") ||
      !json["global_step"].is_number_integer() || !json.contains("fit_time_s") || !json["fit_time_s"].is_number())
    return std::nullopt;
  const FinishedRun finished{.run_dir = folder,
                             .reason = json["reason"],
                             .epochs = json["epochs"],
                             .global_step = json["global_step"],
                             .last_checkpoint = link_target(checkpoint_folder_of(folder) / run_layout::kLast),
                             .best_checkpoint = link_target(checkpoint_folder_of(folder) / run_layout::kBest),
                             .metrics = metrics_in(json)};
  if (has_more_to_do(options, finished, json["fit_time_s"])) return std::nullopt;
  return finished;
}

}  // namespace

RunName run_name_of(const Logger& logger) {
  return {.name = logger.run_name().value_or(kDefaultRunName), .version = logger.run_version()};
}

RunName run_name(const TrainerOptions& options, const TrainerComponents& components) {
  std::shared_ptr<Logger> first;
  if (options.logger.enabled && !options.logger.loggers.empty())
    first = options.logger.loggers.front().create();
  else if (!components.loggers.empty())
    first = components.loggers.front();
  return first ? run_name_of(*first) : RunName();
}

std::optional<RunToResume> find_run_to_resume(const TrainerOptions& options, const TrainerComponents& components) {
  if (has_checkpoint_folder(components.config_folder))
    return RunToResume{.folder = components.config_folder, .passed_over = {}};
  return newest_run_to_resume(options.default_root_dir, run_name(options, components),
                              [&](const fs::path& folder) { return finished_run_in(folder, options).has_value(); });
}

namespace {

// The checkpoint that `last` means in the folder of a run: what the link points to, or a newer one, to which a process
// that was killed had not linked yet.
std::optional<fs::path> last_in(const fs::path& folder) {
  const fs::path link = folder / run_layout::kLast;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return std::nullopt;
  std::optional<CheckpointSummary> newest;
  for (CheckpointSummary& summary : list_checkpoints(folder)) {
    if (summary.problem || summary.weights_only) continue;
    if (!newest || summary.origin.save_counter > newest->origin.save_counter) newest = std::move(summary);
  }
  if (!fs::exists(link)) return newest ? std::optional(newest->path) : std::nullopt;
  if (!newest) return link;
  try {
    return summarize_checkpoint(link).origin.save_counter < newest->origin.save_counter ? newest->path : link;
  } catch (const CheckpointError&) {
    return link;  // whoever loads it reports its damage
  }
}

// Why a folder has no last or best checkpoint, and what to do.
std::string without_link(const fs::path& folder) {
  if (!last_in(folder)) return ": no checkpoint was saved there yet. Give the path of a checkpoint.";
  return ": its run has no ModelCheckpoint that keeps the best (save_top_k), or has not logged its monitor yet. Use "
         "--ckpt_path last or a path.";
}

}  // namespace

fs::path find_checkpoint(const std::string& choice, const fs::path& root, const RunName& name,
                         const fs::path& config_folder) {
  if (!is_last_or_best(choice)) return named_checkpoint(choice);
  const std::string link = choice + run_layout::kExtension;
  const auto chosen_in = [&](const fs::path& run_dir) -> std::optional<fs::path> {
    const fs::path folder = checkpoint_folder_of(run_dir);
    if (choice == "last") return last_in(folder);
    return fs::exists(folder / link) ? std::optional(folder / link) : std::nullopt;
  };
  if (has_checkpoint_folder(config_folder)) {
    if (auto path = chosen_in(config_folder)) return *path;
    throw CheckpointError(cat("[trainer.ckpt_path] ", config_folder, " has no ", link,
                              without_link(checkpoint_folder_of(config_folder))));
  }
  for (const fs::path& run_dir : run_folders(root, name)) {
    const fs::path folder = checkpoint_folder_of(run_dir);
    if (auto path = chosen_in(run_dir)) return *path;
    // A newer run that has checkpoints but no best one must not be skipped silently.
    if (fs::exists(folder / run_layout::kLast))
      throw CheckpointError(cat("[trainer.ckpt_path] ", folder, " has no ", link, without_link(folder)));
  }
  const std::string where = name.version
                                ? cat(newest_run_folder(root, name), " has no checkpoint '")
                                : cat("no run under ", (root / name.name).lexically_normal(), " has a checkpoint '");
  throw CheckpointError(cat("[trainer.ckpt_path] ", where, choice, "'. Run `", program_name(),
                            " fit` first, or give the path of a checkpoint."));
}

namespace {

// The newest checkpoint of a run that passes verification: in its folder, or a link there. Each one that does not pass
// is reported with its reason. Nullopt if there is none; throws a CheckpointError if there are some but none passes.
// The caller must hold the run's lock, else an active run may remove what is found.
std::optional<VerifiedCheckpoint> find_verified(const fs::path& run_dir) {
  const fs::path checkpoints = checkpoint_folder_of(run_dir);
  auto summaries = list_checkpoints(checkpoints);
  // If the checkpoints are elsewhere (ModelCheckpoint.dirpath), the run's folder has links to them.
  for (const char* name : {run_layout::kLast, run_layout::kBest}) {
    const auto target = link_target(checkpoints / name);
    std::error_code error;
    if (!target || fs::equivalent(target->parent_path(), checkpoints, error)) continue;
    CheckpointSummary summary;
    try {
      summary = summarize_checkpoint(*target);
    } catch (const CheckpointError& damage) {
      summary.problem = damage.what();
    }
    summary.path = checkpoints / name;
    summaries.push_back(std::move(summary));
  }
  // The checkpoint saved last is the newest, even if the run had gone back to an earlier step. Those whose order is
  // unknown come first, so that each is reported.
  std::ranges::stable_sort(summaries, [](const CheckpointSummary& a, const CheckpointSummary& b) {
    if (a.problem || b.problem) return a.problem.has_value() && !b.problem;
    return a.origin.save_counter > b.origin.save_counter;
  });
  int64_t passed_over = 0;
  for (const CheckpointSummary& summary : summaries) {
    if (summary.weights_only) continue;
    try {
      if (summary.problem) throw CheckpointError(*summary.problem);
      return VerifiedCheckpoint{
          summary.path, read_checkpoint(summary.path, CheckpointParts::all, Verify::whole, ReadTensors::when_needed)};
    } catch (const CheckpointError& error) {
      const std::string text = cat(summary.path, " cannot be used and is skipped: ", error.what());
      // Each rank finds the same, and the first reports it.
      if (log::process_name().empty())
        log::error(text);
      else
        log::info(text);
      ++passed_over;
    }
  }
  // Starting from the first step would discard a run that an intact copy of a checkpoint may rescue.
  if (passed_over > 0)
    throw CheckpointError(
        cat("[trainer.resume] the run in ", run_dir, " cannot be resumed: ",
            passed_over == 1 ? "its only checkpoint is" : cat("all its ", passed_over, " checkpoints are"),
            " damaged (see above). Put an intact copy into its checkpoints folder, resume from another with "
            "--ckpt_path PATH, or omit --resume to start a new run."));
  return std::nullopt;
}

}  // namespace

fs::path named_checkpoint(const fs::path& given) {
  const fs::path path = given.has_filename() || !given.has_parent_path() ? given : given.parent_path();
  if (run_folder_of(path)) return path;
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return !error && run_folder_of(real) ? real : path;
}

std::optional<fs::path> run_folder_of(const fs::path& checkpoint) {
  const fs::path folder = fs::absolute(checkpoint).lexically_normal().parent_path();
  std::error_code error;
  if (folder.filename() != run_layout::kCheckpoints ||
      !fs::is_regular_file(folder.parent_path() / run_layout::kConfig, error))
    return std::nullopt;
  return folder.parent_path();
}

namespace {

// The `default_root_dir` in the config.yaml of a run; nullopt if that cannot be read.
std::optional<fs::path> root_of_run(const fs::path& run_dir) {
  const std::optional<ConfigNode> config = config_of_run(run_dir);
  if (!config) return std::nullopt;
  const ConfigNode* const options = config->find("trainer");
  const ConfigNode* const root = options ? options->find("default_root_dir") : nullptr;
  return root && root->is_scalar() ? fs::path(root->text()) : TrainerOptions().default_root_dir;
}

}  // namespace

std::optional<ConfigNode> config_of_run(const fs::path& run_dir) {
  const fs::path file = run_dir / run_layout::kConfig;
  const auto text = read_regular_file(file);
  Problems problems;
  ConfigNode config = text ? parse_yaml(*text, file.string(), problems) : ConfigNode();
  if (!problems.empty() || !config.is_map() || config.entries().empty()) return std::nullopt;
  return config;
}

bool begins_another_run(const fs::path& run_dir, const fs::path& default_root_dir) {
  const std::optional<fs::path> own = root_of_run(run_dir);
  const auto normal = [](const fs::path& path) { return (path / "").lexically_normal(); };
  if (!own || normal(*own) == normal(default_root_dir)) return false;
  // The folder may be reached through links, and so may the root.
  std::error_code error;
  const fs::path root = fs::absolute(default_root_dir).lexically_normal();
  return !is_below(fs::absolute(run_dir).lexically_normal(), root) &&
         !is_below(fs::weakly_canonical(run_dir, error), fs::weakly_canonical(root, error));
}

ResolvedCheckpoint resolve_checkpoint(const std::string& choice, const TrainerOptions& options,
                                      const TrainerComponents& components,
                                      const std::function<void(const fs::path&)>& lock) {
  ResolvedCheckpoint resolved;
  if (choice != "auto") {
    resolved.path =
        find_checkpoint(choice, options.default_root_dir, run_name(options, components), components.config_folder);
    resolved.run_dir = run_folder_of(*resolved.path);
    if (resolved.run_dir && begins_another_run(*resolved.run_dir, options.default_root_dir)) resolved.run_dir.reset();
    if (resolved.run_dir) lock(*resolved.run_dir);
    return resolved;
  }
  auto run = find_run_to_resume(options, components);
  if (!run) return resolved;
  lock(run->folder);
  if (auto found = find_verified(run->folder)) {
    resolved.path = std::move(found->path);
    resolved.content = std::move(found->content);
  }
  resolved.run_dir = std::move(run->folder);
  resolved.passed_over = std::move(run->passed_over);
  return resolved;
}

std::optional<CheckpointContent> VerifiedCheckpoint::take(const fs::path& checkpoint) {
  auto taken = std::exchange(content, std::nullopt);
  std::error_code error;
  if (!taken || !fs::equivalent(path, checkpoint, error)) return std::nullopt;
  try {
    // Another process may have used the folder since.
    if (summarize_checkpoint(checkpoint).origin != taken->origin) return std::nullopt;
  } catch (const CheckpointError&) {
    return std::nullopt;  // reading it again reports the damage
  }
  return taken;
}

bool is_of_limit(std::string_view stop_reason) {
  return stop_reason == "max_epochs" || stop_reason == "max_steps" || stop_reason == kMaxTime ||
         stop_reason.starts_with("limit_train_batches") || stop_reason.starts_with(kTimer);
}

bool is_marked_finished(const fs::path& run_dir) {
  std::error_code error;
  return fs::exists(run_dir / run_layout::kFinished, error);
}

void mark_finished(const fs::path& run_dir, const std::string& reason, const Progress& progress, double fit_time_s,
                   const MetricValues& metrics) {
  if (run_dir.empty()) return;
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
  // JSON has no infinities and no NaN.
  for (const auto& [name, value] : metrics)
    values[name] = std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(cat(value));
  check_replaceable(run_dir / run_layout::kFinished);
  std::ofstream file(run_dir / run_layout::kFinished);
  file << nlohmann::ordered_json{{"reason", reason},
                                 {"epochs", progress.epochs.completed},
                                 {"global_step", progress.global_step},
                                 {"fit_time_s", fit_time_s},
                                 {"metrics", values}}
              .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
       << '\n';
}

void mark_failed(const fs::path& run_dir, const std::exception& error) noexcept {
  try {
    check_replaceable(run_dir / run_layout::kFailed);
    std::ofstream file(run_dir / run_layout::kFailed);
    // LibTorch appends a stack trace.
    file << nlohmann::ordered_json{{"error", first_line(error.what())}}.dump(-1, ' ', false,
                                                                             nlohmann::json::error_handler_t::replace)
         << '\n';
  } catch (const std::exception&) {
    // `runs` shows the run as interrupted.
  }
}

void unmark_ended(const fs::path& run_dir) {
  std::error_code error;
  fs::remove(run_dir / run_layout::kFinished, error);
  fs::remove(run_dir / run_layout::kFailed, error);
}

std::optional<FinishedRun> find_finished_run(const TrainerOptions& options, const TrainerComponents& components) {
  const auto run = find_run_to_resume(options, components);
  return run ? finished_run_in(run->folder, options) : std::nullopt;
}

}  // namespace fulgur::detail
