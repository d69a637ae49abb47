#include "fulgur/callbacks/early_stopping.h"

#include <cmath>
#include <utility>

#include "early_stopping_rule.h"
#include "fulgur/core/contracts/monitor.h"
#include "fulgur/core/contracts/monitor_direction.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

void EarlyStopping::Options::fields(Fields& f) {
  f(monitor, "monitor", "Metric to watch, by its logged name.").required();
  f(min_delta, "min_delta", "A change that is not larger than this does not count as an improvement.").at_least(0);
  f(patience, "patience", "Checks without an improvement after which the fit stops.").at_least(0);
  f(verbose, "verbose", "Print a line for each improvement and for the stop.");
  f(mode, "mode", "Whether a small or a large value is better; val_acc, for example, needs max.");
  f(strict, "strict",
    "Whether a metric that was not logged is an error; if not, there is a warning and the check is skipped.");
  f(check_finite, "check_finite", "Stop if the metric is NaN or infinite.");
  f(stopping_threshold, "stopping_threshold", "Stop as soon as the metric is better than this.");
  f(divergence_threshold, "divergence_threshold", "Stop as soon as the metric is worse than this.");
  f(check_on_train_epoch_end, "check_on_train_epoch_end",
    "Check at the end of the training epoch (true) or of validation (false); null: depends on how often validation "
    "runs.");
  f(log_rank_zero_only, "log_rank_zero_only", "Print verbose lines on rank 0 only.");
}

EarlyStopping::EarlyStopping(Options options)
    : options_(std::move(options)), rule_(std::make_unique<detail::EarlyStoppingRule>(options_)) {
  if (options_.monitor.empty())
    throw ConfigError(
        "[callbacks.EarlyStopping] monitor must name a metric; got an empty name. Set monitor, such as val_loss.");
}

EarlyStopping::~EarlyStopping() = default;

double EarlyStopping::best_score() const { return rule_->standing().best_score; }
int64_t EarlyStopping::wait_count() const { return rule_->standing().wait_count; }

std::string EarlyStopping::state_key() const {
  return cat("EarlyStopping{monitor=", options_.monitor, ", mode=", enum_text(options_.mode), "}");
}

StateTree EarlyStopping::state() const {
  return StateTree::map(
      {{"wait_count", wait_count()}, {"stopped_epoch", stopped_epoch_}, {"best_score", best_score()}});
}

void EarlyStopping::load_state(const StateTree& state) {
  const int64_t wait_count = state.at("wait_count").as_int();
  const int64_t stopped_epoch = state.at("stopped_epoch").as_int();
  rule_->restore({.best_score = state.at("best_score").as_double(), .wait_count = wait_count});
  stopped_epoch_ = stopped_epoch;
}

bool EarlyStopping::checks_at_train_epoch_end(RunContext& run) const {
  if (options_.check_on_train_epoch_end) return *options_.check_on_train_epoch_end;
  return !run.has_validation() || run.extent().validates_each_epoch_end();
}

bool EarlyStopping::enabled(RunContext& run) const {
  return run.fn() == TrainerFn::fit && !run.sanity_checking() && !run.fast_dev_run();
}

void EarlyStopping::setup(RunContext&, TrainerFn fn) {
  if (fn != TrainerFn::fit) return;
  *rule_ = detail::EarlyStoppingRule(options_);
  stopped_epoch_ = 0;
  has_checked_ = false;
  reason_ = EarlyStoppingReason::not_stopped;
  message_.clear();
  if (const std::string doubt = detail::doubtful_mode(options_.monitor, options_.mode); !doubt.empty())
    log::warn("early_stopping.mode", cat("EarlyStopping: ", doubt));
}

void EarlyStopping::refuse_monitor(RunContext& run) const {
  throw MonitorError(cat("[callbacks.EarlyStopping] ", monitor_not_logged(options_.monitor, run),
                         " Name one of them, or set strict: false."));
}

std::optional<std::string> EarlyStopping::required_metric() const {
  if (!options_.strict) return std::nullopt;
  return options_.monitor;
}

void EarlyStopping::on_train_start(RunContext& run) {
  if (enabled(run) && !checks_at_train_epoch_end(run) && !run.has_validation())
    log::warn("early_stopping.never_checks",
              "EarlyStopping has check_on_train_epoch_end: false, but no validation runs in this fit: it never checks");
}

void EarlyStopping::on_train_epoch_end(RunContext& run) {
  if (enabled(run) && checks_at_train_epoch_end(run)) check(run);
}

void EarlyStopping::on_validation_end(RunContext& run) {
  if (enabled(run) && !checks_at_train_epoch_end(run)) check(run);
}

// A filter may leave out all ends of epochs and validations.
void EarlyStopping::on_train_end(RunContext& run) {
  const Progress& now = run.progress();
  if (has_checked_ || !enabled(run) || now.global_step == 0 || run.log_dir().empty()) return;
  // An earlier process of the run may have checked, and the run reports filters that begin after its end.
  if (!std::isinf(best_score()) || filter().begins_after({.step = now.global_step, .epoch = now.epochs.started}))
    return;
  const char* const when = checks_at_train_epoch_end(run) ? "end of a training epoch" : "validation";
  log::warn("early_stopping.never_checks",
            cat("EarlyStopping: ", options_.monitor, " was never checked in ", counted(now.global_step, "step"),
                filter().is_set() ? cat(": its filter (", filter().text(), ") selects no ", when,
                                        ", which belongs to the last step before it. Write the filter in epochs")
                                  : cat(": there was no ", when)));
}

void EarlyStopping::check(RunContext& run) {
  has_checked_ = true;
  const std::optional<double> current = run.monitored_metric(options_.monitor);
  if (!current) {
    if (options_.strict) refuse_monitor(run);
    log::warn("early_stopping.monitor_missing", cat("EarlyStopping: ", monitor_not_logged(options_.monitor, run),
                                                    " EarlyStopping skips its checks until the metric is logged"));
    return;
  }
  const double best_before = best_score();
  const detail::EarlyStoppingRule::Verdict verdict = rule_->judge(*current);
  const bool stops = verdict.stop != EarlyStoppingReason::not_stopped;
  std::string message;
  if (stops) {
    message = why_it_stops(verdict.stop, *current);
    reason_ = verdict.stop;
    message_ = message;
  } else if (verdict.improved) {
    message = std::isinf(best_before) ? cat(options_.monitor, " is ", *current, ", the first value")
                                      : cat(options_.monitor, " improved from ", best_before, " to ", *current);
  }
  if (run.collectives().any(stops)) {
    stopped_epoch_ = run.progress().epoch;
    run.request_stop(
        cat("EarlyStopping: ", stops ? message_ : cat(options_.monitor, ", by the decision of another rank")));
  }
  if (options_.verbose && !message.empty()) report_message(run, message);
}

std::string EarlyStopping::why_it_stops(EarlyStoppingReason reason, double current) const {
  const std::string& name = options_.monitor;
  switch (reason) {
    case EarlyStoppingReason::non_finite_metric:
      return cat(name, " is not finite: ", current, "; best is ", best_score());
    case EarlyStoppingReason::stopping_threshold:
      return cat(name, " is ", current, ", better than the threshold ", *options_.stopping_threshold);
    case EarlyStoppingReason::divergence_threshold:
      return cat(name, " diverged: ", current, ", worse than ", *options_.divergence_threshold);
    case EarlyStoppingReason::patience_exhausted:
      return cat(name, " did not improve in the last ", counted(wait_count(), "check"), "; best is ", best_score());
    case EarlyStoppingReason::not_stopped:
      break;
  }
  return {};
}

void EarlyStopping::report_message(RunContext& run, const std::string& message) const {
  const std::string rank = run.world_size() > 1 ? cat("[rank ", run.rank(), "] ") : "";
  if (run.is_global_zero() || !options_.log_rank_zero_only) log::info(cat(rank, "EarlyStopping: ", message));
}

[[maybe_unused]] static const bool registered_early_stopping =
    Registry<Callback>::add<EarlyStopping>("EarlyStopping", "Stops a fit when its monitored metric stops improving.");

}  // namespace fulgur
