#include "fulgur/callbacks/spike_detection.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <utility>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/state/cpu_scalar.h"
#include "fulgur/core/state/late_number.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "steps/late_numbers.h"
#include "steps/spike_rule.h"

namespace fulgur {
namespace {

[[noreturn]] void refuse_spikes(const std::string& text) {
  throw ConfigError(cat("[callbacks.SpikeDetection] ", text));
}

std::string in_step(double loss, int64_t step, const std::string& range) {
  return cat("the loss is ", loss, " in step ", step, "; ", range);
}

}  // namespace

void SpikeDetection::Options::fields(Fields& f) {
  f(action, "action",
    "What happens at a spike: a warning, the step is skipped, the run returns to the last checkpoint, or it stops.");
  f(window, "window", "Number of the last steps over which the mean and the deviation are computed.")
      .range(1, 1'000'000);
  f(warmup, "warmup", "First steps, whose losses are only recorded.").at_least(1);
  f(atol, "atol", "A spike is at least this much above the mean.").at_least(0);
  f(rtol, "rtol", "A spike is at least this multiple of the mean above the mean.").at_least(0);
  f(z, "z", "A spike is at least this many standard deviations above the mean.").greater_than(0);
  f(patience, "patience", "Spikes in a row after which the action is taken.").at_least(1);
}

SpikeDetection::SpikeDetection(Options options)
    : options_(std::move(options)),
      rule_(std::make_unique<detail::SpikeRule>(options_)),
      late_(std::make_unique<detail::LateNumbers>()) {
  if (!options_.atol && !options_.rtol && !options_.z)
    refuse_spikes("at least one of atol, rtol and z must be set; all are null. Set rtol: 2.0, for example.");
  if (options_.window < 1 || options_.warmup < 1 || options_.patience < 1)
    refuse_spikes(cat("window, warmup and patience must be at least 1; got ", options_.window, ", ", options_.warmup,
                      " and ", options_.patience, "."));
  if (options_.z && options_.window < 2)
    refuse_spikes("z needs a window of at least 2 steps; got 1. Set a larger window, such as 100.");
}

SpikeDetection::~SpikeDetection() = default;

bool SpikeDetection::decides_before_step() const {
  return options_.action == SpikeAction::skip || options_.action == SpikeAction::rollback;
}

int64_t SpikeDetection::spikes() const { return rule_->spikes(); }

StateTree SpikeDetection::state() const {
  StateTree::List late;
  for (const auto& number : late_->pending())
    late.push_back(StateTree::map({{"loss", late_number(number.value)}, {"step", number.step}, {"age", number.age}}));
  return StateTree::map({{"rule", rule_->state()},
                         {"sum", sum_.defined() ? late_number(sum_) : StateTree(nullptr)},
                         {"batches", batches_},
                         {"late", std::move(late)}});
}

void SpikeDetection::load_state(const StateTree& state) {
  const auto tensor_of = [](double value) { return at::full({}, value, at::TensorOptions(at::kDouble)); };
  detail::SpikeRule rule(options_);
  rule.load_state(state.at("rule"));
  const StateTree& sum = state.at("sum");
  Tensor loaded_sum = sum.is_null() ? Tensor() : tensor_of(sum.as_double());
  if (state.contains("sums")) {
    // Another number of ranks continues with the mean, which is what the ranks' sums are reduced to.
    const Tensor sums = state.at("sums").tensor().to(at::kCPU, at::kDouble).reshape({-1});
    loaded_sum = sums.numel() == world_size_ ? sums[rank_].clone() : sums.mean();
  }
  const int64_t batches = state.at("batches").as_int();
  std::vector<detail::LateNumbers::Number> late;
  for (const StateTree& item : state.at("late").as_list())
    late.push_back({tensor_of(item.at("loss").as_double()), item.at("step").as_int(), item.at("age").as_int()});
  *rule_ = std::move(rule);
  sum_ = loaded_sum;
  batches_ = batches;
  late_->clear();
  for (const auto& number : late) late_->add(number.value, number.step, number.age);
}

void SpikeDetection::setup(RunContext& run, TrainerFn fn) {
  if (fn != TrainerFn::fit) return;
  *rule_ = detail::SpikeRule(options_);
  late_->clear();
  late_->set_device(run.device());
  sum_.reset();
  batches_ = 0;
  rank_ = run.rank();
  world_size_ = run.world_size();
  finding_.clear();
  reported_ = false;
  if (decides_before_step()) run.judge_steps(*this);
}

// Each rank has a sum of the open window; the state is that of rank 0.
void SpikeDetection::on_save_checkpoint(RunContext& run, StateTree& checkpoint) {
  if (run.world_size() == 1 || batches_ == 0) return;
  // A checkpoint of weights may have the states of some callbacks.
  if (!checkpoint.contains("callbacks") || !checkpoint.at("callbacks").contains(state_key())) return;
  checkpoint["callbacks"][state_key()]["sums"] = run.collectives().all_gather_same(sum_.reshape({1}));
}

void SpikeDetection::on_train_start(RunContext& run) {
  steps_ = steps_at_start_ = run.progress().global_step;
  saw_loss_ = false;
  if (!decides_before_step()) return;
  const std::string with = cat("action: ", enum_text(options_.action));
  if (!run.module().automatic_optimization())
    refuse_spikes(cat(with, " needs automatic optimization; the module makes its own steps. Use warn or stop."));
  const auto optimizers = run.optimizers();
  if (optimizers.empty()) refuse_spikes(cat(with, " needs an optimizer; there is none. Use warn or stop."));
  if (optimizers.front()->needs_closure())
    refuse_spikes(cat(with, " needs an optimizer that makes one evaluation per step; ", optimizers.front()->name(),
                      " makes several. Use warn or stop."));
}

void SpikeDetection::add_loss(const Tensor& loss) {
  const at::NoGradGuard no_grad;
  const Tensor value = loss.detach().to(at::kDouble);
  // A new tensor: the output of a captured step is overwritten by the next one.
  sum_ = sum_.defined() ? sum_.to(value.device()) + value : value.clone();
  ++batches_;
  saw_loss_ = true;
}

Tensor SpikeDetection::close_window(RunContext& run) {
  const at::NoGradGuard no_grad;
  const Tensor mean = sum_ / static_cast<double>(batches_);
  sum_.reset();
  batches_ = 0;
  return run.collectives().all_reduce(mean, ReduceOp::mean);
}

void SpikeDetection::see_loss(RunContext&, const Tensor& loss) { add_loss(loss); }

StepVerdict SpikeDetection::judge_step(RunContext& run) {
  if (batches_ == 0) return StepVerdict::unknown;
  const double loss = close_window(run).item<double>();
  const detail::SpikeRule::Verdict verdict = rule_->judge(loss);
  if (!verdict.known) return StepVerdict::unknown;
  if (!verdict.spike) return StepVerdict::good;
  const int64_t step = run.progress().global_step + 1;
  finding_ = in_step(loss, step, rule_->range());
  if (verdict.new_level)
    report(run, cat(finding_, ": the step is made, and the range begins again, since the losses stay out of it"));
  if (!verdict.act) return StepVerdict::unknown;
  if (options_.action == SpikeAction::rollback) return StepVerdict::roll_back;
  report(run, cat(finding_, ": the optimizer's step is skipped"));
  return StepVerdict::skip;
}

void SpikeDetection::on_rollback(RunContext&, const StateTree& checkpoint) {
  sum_.reset();
  batches_ = 0;
  // The losses since then belong to discarded weights.
  if (checkpoint.contains("callbacks") && checkpoint.at("callbacks").contains(state_key()))
    rule_->return_to(checkpoint.at("callbacks").at(state_key()).at("rule"));
  else
    rule_->return_to(detail::SpikeRule(options_).state());
}

void SpikeDetection::on_train_batch_start(RunContext& run, const Batch&, int64_t) {
  // A filter may have left out steps.
  steps_ = run.progress().global_step;
}

void SpikeDetection::on_train_batch_end(RunContext& run, const StepOutput& output, const Batch&, int64_t) {
  if (!decides_before_step()) {
    late_->end_batch();
    if (output.loss.defined()) add_loss(output.loss);
    end_step(run);
    judge_late(run, /*waits=*/false);
  }
  if (spikes() > 0 && run.meters().is_logging_step())
    run.log("loss_spikes", static_cast<double>(spikes()), {.reduce_fx = Reduce::last});
}

void SpikeDetection::end_step(RunContext& run) {
  const int64_t step = run.progress().global_step;
  if (std::exchange(steps_, step) != step && batches_ > 0) late_->add(close_window(run), step);
}

void SpikeDetection::on_train_epoch_end(RunContext& run) {
  // The data may have ended inside a window, whose step came after the last batch.
  if (!decides_before_step()) end_step(run);
  judge_late(run, /*waits=*/true);
  warn_of_no_loss(run);
}

void SpikeDetection::warn_of_no_loss(const RunContext& run) const {
  if (saw_loss_ || run.progress().global_step == steps_at_start_) return;
  log::warn("spike_detection.no_loss", cat("SpikeDetection: no training_step has returned a loss in ",
                                           counted(run.progress().global_step - steps_at_start_, "step"),
                                           ", so nothing is detected. With manual optimization, return the loss too"));
}

void SpikeDetection::on_train_end(RunContext& run) {
  judge_late(run, /*waits=*/true);
  if (!saw_loss_ || rule_->seen() == 0 || !rule_->is_warming_up() || run.log_dir().empty()) return;
  log::warn("spike_detection.only_warmup",
            cat("SpikeDetection: no loss was compared: all ", counted(rule_->seen(), "loss", "losses"),
                " of the fit are in its warmup of ", counted(options_.warmup, "step"), ". Set a shorter warmup"));
}

void SpikeDetection::judge_late(RunContext& run, bool waits) {
  while (const auto number = late_->take(waits)) {
    const double loss = detail::cpu_scalar(number->value);
    const detail::SpikeRule::Verdict verdict = rule_->judge(loss);
    if (verdict.spike) finding_ = in_step(loss, number->step, rule_->range());
    if (verdict.new_level) report(run, cat(finding_, ": the range begins again, since the losses stay out of it"));
    if (!verdict.act) continue;
    // The reason of the stop is printed at the end of the run.
    if (options_.action == SpikeAction::stop)
      run.request_stop(cat("SpikeDetection: ", finding_));
    else
      report(run, cat(finding_, ". Further spikes are only counted, as loss_spikes"));
  }
}

// The first report is a warning; further ones of `warn` are only counted.
void SpikeDetection::report(RunContext& run, const std::string& text) {
  const std::string line = cat("SpikeDetection: ", text);
  if (!std::exchange(reported_, true))
    log::warn("spike_detection.spike", line);
  else if (decides_before_step())
    run.print(line);
}

[[maybe_unused]] static const bool registered_spike_detection = Registry<Callback>::add<SpikeDetection>(
    "SpikeDetection", "Detects spikes of the training loss: warns, skips the step, rolls back or stops.");

}  // namespace fulgur
