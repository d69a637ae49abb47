#include "fulgur/callbacks/model_checkpoint.h"

#include <algorithm>
#include <utility>

#include "checkpoint_name.h"
#include "checkpoint_ranking.h"
#include "fulgur/core/contracts/monitor.h"
#include "fulgur/core/contracts/monitor_direction.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

void ModelCheckpoint::Options::fields(Fields& f) {
  f(dirpath, "dirpath", "Folder of the checkpoints; null: checkpoints/ in the run folder.");
  f(filename, "filename", "Name template such as {epoch}-{val_loss:.2f}; null: {epoch}-{step}.");
  f(monitor, "monitor", "Metric that ranks checkpoints; null: the newest is the best.");
  f(mode, "mode",
    "Whether a small or a large value of the monitored metric is better; val_acc, for example, needs max.");
  f(verbose, "verbose", "Print a line for each checkpoint.");
  f(save_last, "save_last", "Also keep the newest checkpoint, which last.ckpt points to.");
  f(save_top_k, "save_top_k", "How many of the best to keep; -1: all, 0: none.").at_least(-1);
  f(save_weights_only, "save_weights_only", "Save without optimizer and loop state: for inference, not for resuming.");
  f(auto_insert_metric_name, "auto_insert_metric_name", "Write name=value into file names, not the value alone.");
  f(every_n_train_steps, "every_n_train_steps", "Save every N optimizer steps.").at_least(1);
  f(train_time_interval, "train_time_interval", "Save each time this much time has passed, such as 30min.")
      .units({"s", "min", "h"});
  f(every_n_epochs, "every_n_epochs", "Save every N epochs; default 1 if no other trigger is set.").at_least(1);
  f(every, "every", "Save each time this much of the run has passed, in any unit: 500st, 2ep, 30min, 0.1dur.");
  f(save_on_train_epoch_end, "save_on_train_epoch_end",
    "Save at the end of the training epoch (true) or of validation (false); null: depends on how often validation "
    "runs.");
  f(save_on_exception, "save_on_exception", "Also save when the fit fails; on a signal the Trainer saves anyway.");
}

ModelCheckpoint::ModelCheckpoint(Options options)
    : options_(std::move(options)),
      ranking_(std::make_unique<detail::CheckpointRanking>(options_.monitor.has_value(), options_.mode,
                                                           options_.save_top_k)) {
  std::vector<std::string> triggers;
  if (options_.every_n_train_steps) triggers.emplace_back("every_n_train_steps");
  if (options_.train_time_interval) triggers.emplace_back("train_time_interval");
  if (options_.every_n_epochs) triggers.emplace_back("every_n_epochs");
  if (options_.every) triggers.emplace_back("every");
  if (triggers.size() > 1)
    throw ConfigError(cat("[callbacks.ModelCheckpoint] ", join(triggers, " and "),
                          " exclude each other. Set one of them; for several triggers use "
                          "several ModelCheckpoints."));
  if (triggers.empty()) options_.every_n_epochs = 1;
  if (options_.train_time_interval && options_.train_time_interval->unit != Interval::Unit::seconds)
    throw ConfigError(cat("[callbacks.ModelCheckpoint] train_time_interval must be a time such as 30min; got '",
                          options_.train_time_interval->text(), "'."));
  if (!options_.monitor && options_.save_top_k > 1)
    throw ConfigError(cat("[callbacks.ModelCheckpoint] save_top_k: ", options_.save_top_k,
                          " needs a monitor to rank by. Set monitor, or save_top_k: -1 to keep all."));
  if (options_.every) trigger_.emplace(*options_.every);
  if (options_.train_time_interval) trigger_.emplace(*options_.train_time_interval);
  // Report an invalid template now, not after an epoch.
  if (!options_.filename) return;
  detail::fill_checkpoint_name(*options_.filename, true, [](std::string_view) { return std::nullopt; });
  if (!options_.dirpath) detail::refuse_link_name("ModelCheckpoint", *options_.filename);
}

ModelCheckpoint::~ModelCheckpoint() = default;

std::optional<double> ModelCheckpoint::best_score() const { return ranking_->standing().best_score; }

std::vector<std::string> ModelCheckpoint::monitored_metrics() const {
  std::vector<std::string> names;
  if (options_.monitor) names.push_back(*options_.monitor);
  const auto note = [&](std::string_view field) -> std::optional<double> {
    if (field != "epoch" && field != "step") names.emplace_back(field);
    return std::nullopt;
  };
  if (options_.filename) detail::fill_checkpoint_name(*options_.filename, true, note);
  return names;
}

std::string ModelCheckpoint::state_key() const {
  return cat("ModelCheckpoint{monitor=", options_.monitor.value_or("none"), ", mode=", enum_text(options_.mode),
             ", every_n_train_steps=", options_.every_n_train_steps.value_or(0),
             ", every_n_epochs=", options_.every_n_epochs.value_or(0),
             ", train_time_interval=", options_.train_time_interval ? options_.train_time_interval->text() : "none",
             options_.every ? cat(", every=", options_.every->text()) : "",
             ", filename=", options_.filename.value_or("default"), "}");
}

StateTree ModelCheckpoint::state() const {
  const detail::CheckpointRanking::Standing& ranked = ranking_->standing();
  StateTree::List kept;
  // By name: a run folder may be moved.
  for (const auto& item : ranked.kept)
    kept.push_back(StateTree::map({{"name", item.path.filename().string()}, {"score", item.score}}));
  StateTree::List pending;
  for (const auto& [ticket, score] : ranked.pending)
    pending.push_back(StateTree::map(
        {{"ticket", static_cast<int64_t>(ticket)}, {"score", score ? StateTree(*score) : StateTree(nullptr)}}));
  StateTree tree = StateTree::map({{"kept", std::move(kept)},
                                   {"pending", std::move(pending)},
                                   {"folder", folder_.string()},
                                   {"saved_step", saved_step_},
                                   {"seen_step", seen_step_},
                                   {"waits_for_validation", waits_for_validation_}});
  tree["reached"] = trigger_ ? StateTree(trigger_->reached()) : StateTree(nullptr);
  tree["best_score"] = ranked.best_score ? StateTree(*ranked.best_score) : StateTree(nullptr);
  return tree;
}

void ModelCheckpoint::load_state(const StateTree& state) {
  detail::CheckpointRanking::Standing ranked;
  const std::filesystem::path folder = state.at("folder").as_string();
  for (const StateTree& item : state.at("kept").as_list())
    ranked.kept.push_back({folder / item.at("name").as_string(), item.at("score").as_double()});
  for (const StateTree& item : state.at("pending").as_list())
    ranked.pending[static_cast<uint64_t>(item.at("ticket").as_int())] =
        item.at("score").is_null() ? std::nullopt : std::optional(item.at("score").as_double());
  if (!state.at("best_score").is_null()) ranked.best_score = state.at("best_score").as_double();
  const int64_t step = state.at("saved_step").as_int();
  const int64_t seen = state.at("seen_step").as_int();
  const bool waits = state.at("waits_for_validation").as_bool();
  const StateTree& reached = state.at("reached");
  folder_ = folder;
  ranking_->restore(std::move(ranked));
  saved_step_ = step;
  seen_step_ = seen;
  waits_for_validation_ = waits;
  if (!reached.is_null()) resumed_at_ = reached.as_double();
  if (trigger_ && resumed_at_) trigger_->set_reached(*resumed_at_);
}

bool ModelCheckpoint::may_save(RunContext& run) const {
  return !run.sanity_checking() && !run.fast_dev_run() && run.fn() == TrainerFn::fit;
}

bool ModelCheckpoint::enabled(RunContext& run) const {
  return may_save(run) && run.progress().global_step != saved_step_;
}

bool ModelCheckpoint::saves_at_train_epoch_end(RunContext& run) const {
  if (options_.save_on_train_epoch_end) return *options_.save_on_train_epoch_end;
  // If validation does not run at epoch ends, a checkpoint is saved right after a validation.
  return !run.has_validation() || run.extent().validates_each_epoch_end();
}

bool ModelCheckpoint::epoch_due(RunContext& run) const {
  return options_.every_n_epochs && (run.progress().epoch + 1) % *options_.every_n_epochs == 0;
}

void ModelCheckpoint::setup(RunContext&, TrainerFn fn) {
  ranking_->forget_pending();
  batches_at_start_ = seen_step_ = -1;
  resumed_at_.reset();
  waits_for_validation_ = false;
  if (fn != TrainerFn::fit || !options_.monitor || options_.save_top_k == 0) return;
  if (const std::string doubt = detail::doubtful_mode(*options_.monitor, options_.mode); !doubt.empty())
    log::warn("model_checkpoint.mode", cat("ModelCheckpoint: ", doubt));
}

void ModelCheckpoint::refuse_monitor(RunContext& run) const {
  throw MonitorError(
      cat("[callbacks.ModelCheckpoint] ", monitor_not_logged(*options_.monitor, run), " Name one of them."));
}

std::optional<std::string> ModelCheckpoint::required_metric() const {
  // A callback that saves less often than each epoch may monitor a metric that is logged just as rarely.
  const bool from_first_epoch = options_.every_n_epochs == 1 && options_.save_top_k != 0;
  return from_first_epoch ? options_.monitor : std::nullopt;
}

// Runs before an initial validation, whose checkpoint is already ranked.
void ModelCheckpoint::on_fit_start(RunContext& run) {
  const std::filesystem::path folder =
      std::filesystem::absolute(options_.dirpath.value_or(run.checkpoint_dir())).lexically_normal();
  // Without a last checkpoint the run is another one than that of the ranking, and its requests are not answered.
  const bool continues = run.last_checkpoint().has_value();
  if (!continues) ranking_->forget_pending();
  // The run folder may have been moved. What this run has removed since its checkpoint was saved still counts.
  const bool stays = continues && folder == folder_;
  const auto counts = [&](const std::filesystem::path& path) {
    return run.published_checkpoints().owns_checkpoint(path) || (stays && !std::filesystem::exists(path));
  };
  if (!ranking_->move_to(folder, counts) && !stays) saved_step_ = -1;
  folder_ = folder;
}

void ModelCheckpoint::on_train_start(RunContext& run) {
  // What is due for the last steps of a process that was interrupted is saved by the next one.
  if (seen_step_ < 0) seen_step_ = run.progress().global_step;
  batches_at_start_ = run.progress().batches_total.completed;
  if (trigger_) trigger_->start(run);
  if (trigger_ && resumed_at_) trigger_->set_reached(*resumed_at_);
}

void ModelCheckpoint::on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t batch_idx) {
  const int64_t step = run.progress().global_step;
  if (step == seen_step_) return;  // inside an accumulation window
  seen_step_ = step;
  bool due = options_.every_n_train_steps && step % *options_.every_n_train_steps == 0;
  // Epochs end in on_train_epoch_end, after their validation.
  const bool epoch_ends = counts_epochs() && run.num_batches(RunningStage::train) == batch_idx + 1;
  if (trigger_ && !epoch_ends && trigger_->due(run)) due = true;
  if (due) interval_passed(run);
}

void ModelCheckpoint::interval_passed(RunContext& run) {
  if (!enabled(run)) return;
  // Ranking by a validation metric waits for a fresh value. In a pipeline, the last rank alone knows what a step logs.
  if (options_.monitor && run.has_validation() &&
      !run.collectives().any(run.logged_metrics().metric_stage(*options_.monitor) == RunningStage::train)) {
    waits_for_validation_ = true;
    if (!std::exchange(said_that_it_waits_, true) && run.is_global_zero())
      log::info(cat("ModelCheckpoint: a save is due at step ", run.progress().global_step,
                    "; it waits for the next validation, which logs its monitor '", *options_.monitor,
                    "'. Later saves wait too"));
    return;
  }
  save(run);
}

void ModelCheckpoint::on_train_epoch_end(RunContext& run) {
  const bool passed = counts_epochs() && trigger_->due(run);
  const bool due = passed || (epoch_due(run) && saves_at_train_epoch_end(run));
  if (due && enabled(run)) save(run);
  // In the first validation, training had not logged its values of the epoch yet: now the monitor must be there.
  else if (may_save(run) && required_metric() && run.progress().validations > 0)
    current_score(run);
}

void ModelCheckpoint::on_validation_end(RunContext& run) {
  const bool by_epoch = epoch_due(run) && !saves_at_train_epoch_end(run);
  if ((by_epoch || waits_for_validation_) && enabled(run)) save(run);
  if (!run.sanity_checking()) waits_for_validation_ = false;
}

void ModelCheckpoint::on_train_end(RunContext& run) {
  // Without a monitor the newest is the best, even if the last steps came after the last trigger.
  if (!options_.monitor && options_.save_top_k != 0 && run.progress().global_step > 0 && enabled(run)) save(run);
}

void ModelCheckpoint::on_exception(RunContext& run, const std::exception& error) {
  const bool signal = dynamic_cast<const Interrupted*>(&error) != nullptr;
  const bool trained = batches_at_start_ >= 0 && run.progress().batches_total.completed > batches_at_start_;
  if (!options_.save_on_exception || signal || !trained || !enabled(run)) return;
  // It is kept in addition to the ranked ones, whatever its score.
  saved_step_ = run.progress().global_step;
  run.request_checkpoint({.name = name_for(run),
                          .reason = cat("exception: ", error.what()),
                          .best = false,
                          .keep = true,
                          .weights_only = options_.save_weights_only,
                          .owner = state_key(),
                          .score = {}});
}

std::filesystem::path ModelCheckpoint::name_for(RunContext& run) {
  // After the last epoch, the number of that epoch is still used.
  const int64_t epoch = std::min(run.progress().epoch, std::max<int64_t>(run.progress().epochs.ready - 1, 0));
  const auto value_of = [&](std::string_view field) -> std::optional<double> {
    if (field == "epoch") return static_cast<double>(epoch);
    if (field == "step") return static_cast<double>(run.progress().global_step);
    const std::optional<double> value = run.monitored_metric(field);
    // Before the first validation it may simply not be there yet.
    const bool complete = run.progress().validations > 0 || !run.has_validation();
    if (!value && complete && run.progress().epochs.processed > 0) {
      const std::vector<std::string> names = run.logged_metrics().metric_names();
      log::warn("model_checkpoint.filename_metric",
                cat("ModelCheckpoint.filename: the metric '", field,
                    "' was not logged, so it counts as 0 in the names of checkpoints; the logged metrics are: ",
                    names.empty() ? "none" : join(names), did_you_mean(field, names)));
    }
    return value;
  };
  std::string name =
      detail::fill_checkpoint_name(options_.filename.value_or("{epoch}-{step}"),
                                   options_.filename ? options_.auto_insert_metric_name : true, value_of);
  return folder_ / name;
}

std::optional<double> ModelCheckpoint::current_score(RunContext& run) {
  if (!options_.monitor) return std::nullopt;
  const std::optional<double> logged = run.monitored_metric(*options_.monitor);
  if (logged) return logged;
  // As in Lightning: a metric that neither a validation nor a training epoch has logged is missing.
  if (options_.save_top_k != 0 && run.progress().validations > 0 && run.progress().epochs.processed > 0)
    refuse_monitor(run);
  if (!std::exchange(warned_, true))
    log::warn("model_checkpoint.monitor_missing", cat("ModelCheckpoint: ", monitor_not_logged(*options_.monitor, run),
                                                      " Checkpoints are not ranked until it is logged"));
  return std::nullopt;
}

void ModelCheckpoint::save(RunContext& run) {
  const detail::CheckpointRanking::Place place = ranking_->place_of(current_score(run));
  if (!place.keep && !options_.save_last) return;
  // The state in the checkpoint already counts it as saved: a checkpoint that fails to save has no state.
  saved_step_ = run.progress().global_step;
  const uint64_t ticket =
      run.request_checkpoint({.name = name_for(run),
                              .reason = options_.monitor ? cat("monitor ", *options_.monitor) : "trigger",
                              .best = place.best,
                              .keep = place.keep,
                              .weights_only = options_.save_weights_only,
                              .owner = state_key(),
                              .score = place.score});
  ranking_->requested(ticket, place);
}

void ModelCheckpoint::on_checkpoint_published(RunContext& run, const CheckpointInfo& info) {
  if (info.request.owner != state_key()) return;
  if (options_.verbose)
    run.print(cat("checkpoint ", info.path,
                  info.request.score ? cat(" (", *options_.monitor, " ", *info.request.score, ")") : ""));
  for (const std::filesystem::path& path : ranking_->published(info.ticket, info.path))
    run.published_checkpoints().release_checkpoint(path, state_key());
}

void ModelCheckpoint::on_checkpoint_failed(RunContext&, const CheckpointInfo& info, const std::exception&) {
  if (info.request.owner != state_key()) return;
  ranking_->failed(info.ticket);
  saved_step_ = -1;
}

[[maybe_unused]] static const bool registered_model_checkpoint = Registry<Callback>::add<ModelCheckpoint>(
    "ModelCheckpoint", "Writes checkpoints by time, step or epoch and keeps the best of them.");

}  // namespace fulgur
