#include "fulgur/callbacks/batch_size_scheduler.h"

#include <algorithm>
#include <utility>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

constexpr int64_t kDefaultGrowth = 2;

ConfigError wrong_batch_size(const std::string& what) {
  return ConfigError(cat("[callbacks.BatchSizeScheduler] ", what));
}

}  // namespace

void BatchSizeChange::fields(Fields& f) {
  f(at, "at", "Position from which the size applies, in epochs or steps.").units({"ep", "st"}).required();
  f(batch_size, "batch_size", "Samples of one process.").at_least(1).required();
}

void BatchSizeScheduler::Options::fields(Fields& f) {
  f(schedule, "schedule", "Batch sizes with the positions from which they apply; empty: given by every.");
  f(every, "every", "Length after which the batch size grows again, in epochs or steps; null: given by schedule.")
      .units({"ep", "st"});
  f(factor, "factor", "With every: by which factor it grows; null: 2.").at_least(2);
  f(max, "max", "With every: the largest batch size.").at_least(1);
  f(by, "by", "Whether the batches become larger (batch), or more of them make a step (accumulation).");
}

BatchSizeScheduler::BatchSizeScheduler(Options options)
    : options_(detail::checked_options(std::move(options), "callbacks.BatchSizeScheduler")) {
  const Options& o = options_;
  if (o.schedule.empty() == !o.every)
    throw wrong_batch_size(cat("one of schedule and every must be set; ", o.every ? "both are" : "neither is",
                               ". Write for example schedule: [{at: 2ep, batch_size: 128}], or every: 2ep, max: 512."));
  if (!o.every && (o.factor || o.max))
    throw wrong_batch_size(cat(o.factor ? "factor" : "max", " belongs to every, which is not set. Remove it."));
  if (o.every && !(o.every->value > 0))
    throw wrong_batch_size(cat("every must be longer than 0; got ", o.every->text(), "."));
  if (o.every && !o.max)
    throw wrong_batch_size("every needs max, the largest batch size. Set max to what fits into memory.");
  std::ranges::sort(options_.schedule, {}, [](const BatchSizeChange& change) { return change.at.value; });
  for (size_t i = 1; i < o.schedule.size(); ++i) {
    const Interval &before = o.schedule[i - 1].at, &at = o.schedule[i].at;
    if (before.unit != at.unit)
      throw wrong_batch_size(
          cat("the positions of schedule must be in the same unit; got ", before.text(), " and ", at.text(), "."));
    if (before.value == at.value) throw wrong_batch_size(cat("a position occurs twice in schedule: ", at.text(), "."));
  }
}

std::vector<BatchSizePlan::Change> BatchSizeScheduler::growth_from(int64_t own) const {
  const int64_t factor = options_.factor.value_or(kDefaultGrowth), max = *options_.max;
  if (max <= own)
    throw wrong_batch_size(
        cat("max must be larger than the batch size of the loader; got ", max, ", and the loader has ", own, "."));
  std::vector<BatchSizePlan::Change> changes;
  for (int64_t size = own; size < max;) {
    size = size > max / factor ? max : size * factor;
    changes.push_back({.at = options_.every->value * static_cast<double>(changes.size() + 1), .batch_size = size});
  }
  return changes;
}

BatchSizePlan BatchSizeScheduler::batch_size_plan(int64_t own) const {
  const Interval::Unit unit = options_.every ? options_.every->unit : options_.schedule.front().at.unit;
  BatchSizePlan plan{.accumulates = options_.by == BatchSizeBy::accumulation,
                     .in_epochs = unit == Interval::Unit::epochs,
                     .changes = {}};
  if (options_.every) plan.changes = growth_from(own);
  for (const BatchSizeChange& change : options_.schedule) plan.changes.push_back({change.at.value, change.batch_size});
  for (const BatchSizePlan::Change& change : plan.changes)
    if (plan.accumulates && change.batch_size % own != 0)
      throw wrong_batch_size(cat("by: accumulation makes a step of whole batches, so each size must be a multiple of ",
                                 own, ", the batch size of the loader; got ", change.batch_size, "."));
  return plan;
}

// By batch, a size applies from the next epoch on.
void BatchSizeScheduler::on_train_end(RunContext& run) {
  const Progress& now = run.progress();
  if (options_.schedule.empty() || now.global_step == 0 || run.log_dir().empty()) return;
  std::vector<std::string> late;
  for (const auto& [at, batch_size] : options_.schedule) {
    const bool by_batch = options_.by == BatchSizeBy::batch;
    const bool in_epochs = at.unit == Interval::Unit::epochs;
    const bool has_come = !in_epochs ? at.value < static_cast<double>(now.global_step)
                          : by_batch ? at.value <= static_cast<double>(now.epochs.started - 1)
                                     : at.value < now.epochs_done(run.num_batches(RunningStage::train));
    if (!has_come) late.push_back(cat(batch_size, " (at ", at.text(), ")"));
  }
  if (!late.empty())
    log::warn("batch_size_scheduler.not_reached",
              cat("BatchSizeScheduler: the fit has ended after ", counted(now.global_step, "step"), " in ",
                  counted(now.epochs.completed, "epoch"), ", before the batch size became ", join(late)));
}

[[maybe_unused]] static const bool registered_batch_size_scheduler = Registry<Callback>::add<BatchSizeScheduler>(
    "BatchSizeScheduler", "Raises the batch size during the fit, in the loader or by accumulation.");

}  // namespace fulgur
