#include "fulgur/callbacks/lr_range_test.h"

#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

// As in Lightning.
constexpr double kSmoothing = 0.98;

}  // namespace

LrRangeTest::LrRangeTest(Options options) : options_(options) {
  if (!(options_.min_lr > 0 && options_.min_lr < options_.max_lr && std::isfinite(options_.max_lr)))
    throw ConfigError(cat("[callbacks.LrRangeTest] min_lr must be positive and below max_lr; got ", options_.min_lr,
                          " and ", options_.max_lr, ". Correct one of them."));
  if (options_.steps < 1)
    throw ConfigError(cat("[callbacks.LrRangeTest] steps must be at least 1; got ", options_.steps, "."));
  if (options_.early_stop_threshold && !(*options_.early_stop_threshold > 1))
    throw ConfigError(
        cat("[callbacks.LrRangeTest] early_stop_threshold must be above 1; got ", *options_.early_stop_threshold, "."));
}

void LrRangeTest::on_train_start(RunContext& run) {
  const auto optimizers = run.optimizers();
  if (optimizers.size() != 1)
    throw ConfigError(cat("[callbacks.LrRangeTest] a range test needs a run with one optimizer; this one has ",
                          static_cast<int64_t>(optimizers.size()), ". Set the learning rates yourself."));
  optimizer_ = optimizers.front();
  const auto& groups = optimizer_->groups();
  initial_lr_ = groups.front().initial_lr;
  if (!(initial_lr_ > 0))
    throw ConfigError(
        cat("[callbacks.LrRangeTest] the rates of the groups keep their ratios to that of the first, which must be "
            "positive; got ",
            initial_lr_, ". Give the first group a learning rate above 0."));
  ratios_.clear();
  for (const ParamGroup& group : groups) ratios_.push_back(group.initial_lr / initial_lr_);
}

void LrRangeTest::on_train_batch_start(RunContext&, const Batch&, int64_t) {
  const auto step = static_cast<int64_t>(curve_.points.size());
  current_lr_ = range_test_lr(options_.mode, options_.min_lr, options_.max_lr, step, options_.steps);
  auto& groups = optimizer_->groups();
  for (size_t i = 0; i < groups.size() && i < ratios_.size(); ++i)
    groups[i].lr = i == 0 ? current_lr_ : current_lr_ * ratios_[i];
}

void LrRangeTest::on_train_batch_end(RunContext& run, const StepOutput& output, const Batch&, int64_t) {
  if (ended_) return;
  if (!output.loss.defined())
    throw Error(
        "[callbacks.LrRangeTest] a range test follows the loss; training_step returned none. Return the loss of each "
        "batch.");
  Tensor loss = output.loss.detach().to(at::kDouble).reshape({});
  if (run.world_size() > 1) loss = run.collectives().all_reduce(loss, ReduceOp::mean);
  loss_sum_ += loss.item<double>();
  ++losses_;
  // Batches of an accumulation window belong to one step.
  if (run.progress().global_step > static_cast<int64_t>(curve_.points.size())) note_step(run);
}

void LrRangeTest::note_step(RunContext& run) {
  const double loss = loss_sum_ / static_cast<double>(losses_);
  loss_sum_ = 0;
  losses_ = 0;
  mean_ = kSmoothing * mean_ + (1 - kSmoothing) * loss;
  const double bias = 1 - std::pow(kSmoothing, static_cast<double>(curve_.points.size() + 1));
  const double smoothed = mean_ / bias;
  curve_.points.push_back({.lr = current_lr_, .loss = loss, .smoothed = smoothed});
  const auto end = [&](LrTestEnd how) {
    curve_.end = how;
    ended_ = true;
    run.request_stop("the end of the learning-rate range test");
  };
  if (!std::isfinite(loss)) return end(LrTestEnd::not_finite);
  // A multiple of a loss that is not positive is no limit.
  const bool diverged =
      options_.early_stop_threshold && least_ && *least_ > 0 && smoothed > *options_.early_stop_threshold * *least_;
  if (!least_ || smoothed < *least_) least_ = smoothed;
  if (diverged) return end(LrTestEnd::diverged);
  if (static_cast<int64_t>(curve_.points.size()) >= options_.steps) end(LrTestEnd::all_steps);
}

}  // namespace fulgur
