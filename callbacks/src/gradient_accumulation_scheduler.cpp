#include "fulgur/callbacks/gradient_accumulation_scheduler.h"

#include <algorithm>
#include <charconv>

#include "fulgur/core/contracts/interval_trigger.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

// An epoch (`4`) or an interval.
std::optional<Interval> parse_key(const std::string& key) {
  int64_t epoch = 0;
  const auto [rest, bad] = std::from_chars(key.data(), key.data() + key.size(), epoch);
  if (bad == std::errc() && rest == key.data() + key.size() && epoch >= 0)
    return Interval{static_cast<double>(epoch), Interval::Unit::epochs};
  return Interval::parse(key);
}

ConfigError wrong(const std::string& what) {
  return ConfigError(cat("[callbacks.GradientAccumulationScheduler] ", what));
}

}  // namespace

void GradientAccumulationScheduler::Options::fields(Fields& f) {
  f(scheduling, "scheduling",
    "Batches per step, by the epoch (or interval, such as 500st or 0.5dur) from which they apply.")
      .required();
}

GradientAccumulationScheduler::GradientAccumulationScheduler(Options options) {
  if (options.scheduling.empty())
    throw wrong("scheduling must not be empty. Write for example {4: 2}: from epoch 4 on, 2 batches make a step.");
  std::string first_key;
  for (const auto& [key, factor] : options.scheduling) {
    const auto from = parse_key(key);
    if (!from)
      throw wrong(cat("a key of scheduling must be an epoch (4) or an interval (500st, 0.5dur); got '",
                      escape_controls(key), "'."));
    if (factor < 1) throw wrong(cat("a factor must be at least 1; got ", factor, " at '", key, "'."));
    if (changes_.empty()) {
      unit_ = from->unit;
      first_key = key;
    } else if (from->unit != unit_) {
      throw wrong(cat("the keys of scheduling must be in the same unit; got '", first_key, "' and '", key, "'."));
    }
    const auto same =
        std::find_if(changes_.begin(), changes_.end(), [&](const Change& c) { return c.from == from->value; });
    if (same != changes_.end()) throw wrong(cat("a position occurs twice in scheduling: ", from->text(), "."));
    changes_.push_back({from->value, factor});
  }
  std::sort(changes_.begin(), changes_.end(), [](const Change& a, const Change& b) { return a.from < b.from; });
}

int64_t GradientAccumulationScheduler::factor_at(double position) const {
  int64_t factor = 1;
  for (const Change& change : changes_)
    // Rounding must not delay a change.
    if (position >= change.from * (1 - 1e-12)) factor = change.factor;
  return factor;
}

double GradientAccumulationScheduler::position(RunContext& run) const {
  if (unit_ != Interval::Unit::run) {
    if (const auto position = position_in(unit_, run)) return *position;
    throw wrong("scheduling counts tokens, but the module does not count them. Override num_tokens(batch).");
  }
  // Not `progress_fraction()` if epochs are the limit: its estimate of all steps depends on the factor decided here.
  std::optional<double> part;
  const Progress& progress = run.progress();
  const auto batches = run.num_batches(RunningStage::train);
  if (run.extent().max_epochs() && *run.extent().max_epochs() > 0 && batches)
    part = progress.epochs_done(batches) / static_cast<double>(*run.extent().max_epochs());
  if (run.extent().max_steps() && *run.extent().max_steps() > 0)
    part = std::max(part.value_or(0),
                    static_cast<double>(progress.global_step) / static_cast<double>(*run.extent().max_steps()));
  if (!part) part = run.extent().progress_fraction();
  if (!part)
    throw wrong(
        "scheduling uses fractions of the run, whose length is not known. Set max_epochs with a loader of known "
        "length, max_steps or max_time.");
  return *part;
}

void GradientAccumulationScheduler::on_train_start(RunContext& run) {
  if (unit_ == Interval::Unit::samples || unit_ == Interval::Unit::tokens) run.meters().count_each_batch();
  const bool fresh = run.progress().batches_total.completed == 0;
  // In a resumed fit, this callback has set it before.
  if (fresh && run.accumulation() != 1)
    throw wrong(
        cat("accumulate_grad_batches is ", run.accumulation(), ", and scheduling sets it too. Remove one of the two."));
  if (!run.module().automatic_optimization())
    throw wrong(
        "a module with manual optimization makes its own steps, which scheduling cannot change. Remove the callback.");
  // No filter covers this hook. A resumed run has the factor of its checkpoint, and the next batch may not pass.
  if (fresh || !filter().is_set()) apply(run);
}

void GradientAccumulationScheduler::on_train_epoch_start(RunContext& run) { apply(run); }
void GradientAccumulationScheduler::on_train_batch_start(RunContext& run, const Batch&, int64_t) { apply(run); }

void GradientAccumulationScheduler::on_train_end(RunContext& run) {
  const int64_t steps = run.progress().global_step;
  if (steps == 0 || run.log_dir().empty()) return;
  const double end = position(run);
  std::vector<std::string> late;
  for (const Change& change : changes_)
    if (change.from >= end) late.push_back(cat(change.factor, " (at ", Interval{change.from, unit_}.text(), ")"));
  if (!late.empty())
    log::warn(
        "gradient_accumulation_scheduler.not_reached",
        cat("GradientAccumulationScheduler: the fit has ended after ", counted(steps, "step"), " in ",
            counted(run.progress().epochs.completed, "epoch"), ", before the batches per step became ", join(late)));
}

void GradientAccumulationScheduler::apply(RunContext& run) {
  const int64_t factor = factor_at(position(run));
  if (factor != run.accumulation()) run.set_accumulation(factor);
}

[[maybe_unused]] static const bool registered_gradient_accumulation_scheduler =
    Registry<Callback>::add<GradientAccumulationScheduler>(
        "GradientAccumulationScheduler", "Changes how many batches make a step, depending on the position in the run.");

}  // namespace fulgur
