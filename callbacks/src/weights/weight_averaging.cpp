#include "fulgur/callbacks/weight_averaging.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/state/late_number.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "weights/swa_rate.h"
#include "weights/update_count.h"
#include "weights/weight_average.h"

namespace fulgur {
namespace {

constexpr double kDefaultDecay = 0.999;
constexpr int64_t kDefaultAnnealingEpochs = 10;
constexpr std::string_view kCallbacksKey = "callbacks";

ConfigError wrong_averaging(const std::string& what) { return ConfigError(cat("[callbacks.WeightAveraging] ", what)); }

Interval every_of(const WeightAveraging::Options& options) {
  if (options.every) return *options.every;
  return options.kind == AveragingKind::ema ? Interval{1, Interval::Unit::steps} : Interval{1, Interval::Unit::epochs};
}

double measured_position(const Interval& interval, const char* option, RunContext& run) {
  if (const auto position = position_in(interval.unit, run)) return *position;
  throw wrong_averaging(cat(option, " must be a length that the run can measure; got ", interval.text(),
                            interval.unit == Interval::Unit::tokens
                                ? ", but the module does not count tokens. Override num_tokens(batch)."
                                : ", but the length of the run is not known. Set max_steps or max_time, or max_epochs "
                                  "with a loader of known length."));
}

void count_exactly(const std::optional<Interval>& interval, RunContext& run) {
  if (interval && (interval->unit == Interval::Unit::samples || interval->unit == Interval::Unit::tokens))
    run.meters().count_each_batch();
}

template <class Use>
void each_averaged_group(RunContext& run, Use use) {
  size_t place = 0;
  for (Optimizer* optimizer : run.optimizers())
    for (ParamGroup& group : optimizer->groups()) use(group, place++);
}

}  // namespace

void WeightAveraging::Options::fields(Fields& f) {
  f(kind, "kind", "Exponential moving average (ema) or stochastic weight averaging (swa).");
  f(decay, "decay", "For ema: the weight of the old average in an update; null: 0.999, or given by half_life.")
      .at_least(0)
      .at_most(1);
  f(half_life, "half_life", "For ema: the length of training after which weights count half; null: given by decay.")
      .units({"ep", "st", "sa", "tok"});
  f(start, "start", "Position after which weights are averaged; null: from the start (ema), 0.8dur (swa).");
  f(every, "every", "Length between two updates of the average; null: 1st (ema), 1ep (swa).");
  f(use_buffers, "use_buffers", "Average floating-point buffers too; otherwise the module's own are used.");
  f(swa_lrs, "swa_lrs", "For swa: learning rate of all parameter groups, or of each; empty: the schedule remains.")
      .greater_than(0);
  f(annealing_epochs, "annealing_epochs", "Epochs in which swa_lrs is reached; null: 10.").at_least(0);
  f(annealing_strategy, "annealing_strategy", "How swa_lrs is reached; null: cos.");
  f(update_bn, "update_bn", "Recompute the statistics of batch norms when training ends; null: for swa.");
  f(copy_at_end, "copy_at_end", "The module gets the averaged weights when the fit has ended.");
}

WeightAveraging::WeightAveraging(Options options)
    : options_(detail::checked_options(std::move(options), "callbacks.WeightAveraging")),
      trigger_(every_of(options_)),
      average_(std::make_unique<detail::WeightAverage>(options_.use_buffers)),
      updates_(std::make_unique<detail::UpdateCount>()) {
  check_kind();
  if (options_.kind == AveragingKind::swa && !options_.start) options_.start = Interval{0.8, Interval::Unit::run};
}

WeightAveraging::~WeightAveraging() = default;

void WeightAveraging::check_kind() const {
  const Options& o = options_;
  if (o.kind == AveragingKind::swa && (o.decay || o.half_life))
    throw wrong_averaging(cat(o.decay ? "decay" : "half_life",
                              " belongs to kind: ema; kind is swa, which weights all updates equally. Remove it."));
  if (o.decay && o.half_life)
    throw wrong_averaging("decay and half_life exclude each other; both are set. Remove one of them.");
  if (o.half_life && !(o.half_life->value > 0))
    throw wrong_averaging(cat("half_life must be longer than 0; got ", o.half_life->text(), "."));
  if (o.kind == AveragingKind::ema && !o.swa_lrs.empty())
    throw wrong_averaging("swa_lrs belongs to kind: swa; kind is ema. Remove it.");
  if (o.swa_lrs.empty() && (o.annealing_epochs || o.annealing_strategy))
    throw wrong_averaging(cat(o.annealing_epochs ? "annealing_epochs" : "annealing_strategy",
                              " says how swa_lrs is reached; swa_lrs is not set. Set it, or remove the option."));
  for (const double rate : o.swa_lrs)
    if (!std::isfinite(rate)) throw wrong_averaging(cat("swa_lrs must be finite; got ", rate, "."));
}

void WeightAveraging::check_rates(RunContext& run) const {
  size_t groups = 0;
  each_averaged_group(run, [&](ParamGroup&, size_t) { ++groups; });
  if (options_.swa_lrs.size() > 1 && options_.swa_lrs.size() != groups)
    throw wrong_averaging(cat("swa_lrs must have one rate, or one for each parameter group; got ",
                              options_.swa_lrs.size(), " for ", counted(static_cast<int64_t>(groups), "group"), "."));
}

StateTree WeightAveraging::state() const {
  StateTree state = average_->state();
  state["kind"] = std::string(enum_text(options_.kind));
  state["n_averaged"] = updates_->state();
  state["updated_at_step"] = updated_at_step_;
  state["updated_at"] = updated_at_;
  state["skipped_since_update"] = run_ ? skipped_since_update(*run_) : skips_;
  state["reached"] = trigger_.reached();
  StateTree::List rates(rates_.begin(), rates_.end());
  state["rates"] = std::move(rates);
  state["rates_from_epoch"] = rates_from_epoch_;
  return state;
}

void WeightAveraging::load_state(const StateTree& state) {
  const std::string& kind = state.at("kind").as_string();
  if (module_ && fn_ == TrainerFn::fit && kind != enum_text(options_.kind))
    throw CheckpointError(
        cat("[callbacks.WeightAveraging] a fit must resume with the kind of average that it has; the "
            "checkpoint has ",
            kind, ", the option kind is ", enum_text(options_.kind), "."));
  const int64_t n_averaged = state.at("n_averaged").as_int(), at_step = state.at("updated_at_step").as_int(),
                from_epoch = state.at("rates_from_epoch").as_int();
  const double updated_at = state.at("updated_at").as_double(), reached = state.at("reached").as_double();
  std::vector<double> rates;
  for (const StateTree& rate : state.at("rates").as_list()) rates.push_back(rate.as_double());
  // Checkpoints of earlier versions do not have it.
  const int64_t skips = state.contains("skipped_since_update") ? state.at("skipped_since_update").as_int() : 0;
  load_average(state, n_averaged);
  skips_ = skips;
  if (run_) begin_counting_skips(*run_);
  updated_at_step_ = at_step;
  updated_at_ = updated_at;
  rates_ = std::move(rates);
  rates_from_epoch_ = from_epoch;
  trigger_.set_reached(reached);
  loaded_ = true;
}

void WeightAveraging::load_average(const StateTree& state, int64_t n_averaged) {
  average_->load_state(state, module_);
  // Only the device knew that there was no update yet.
  if (n_averaged == 0) average_->clear();
  updates_->set(n_averaged);
}

void WeightAveraging::roll_back(RunContext&, const StateTree& state) {
  if (state.contains("average")) {
    load_average(state, state.at("n_averaged").as_int());
  } else {
    average_->clear();
    updates_->set(0);
  }
  // The rest of the batch under way counts as a step, with the weights of the checkpoint, and so may a window that the
  // end of the data closes.
  rolled_back_ = true;
}

void WeightAveraging::setup(RunContext& run, TrainerFn fn) {
  average_->clear();
  trigger_.set_reached(0);
  module_ = &run.module();
  fn_ = fn;
  updates_->set(0);
  updates_->set_device(run.device());
  updated_at_step_ = 0;
  updated_at_ = 0;
  rates_.clear();
  rates_from_epoch_ = -1;
  loaded_ = rolled_back_ = ended_ = false;
  run_ = nullptr;
  skips_ = 0;
  skipped_ = 0;
  skipped_on_device_.reset();
}

void WeightAveraging::teardown(RunContext& run, TrainerFn) {
  if (std::exchange(run_, nullptr)) skips_ = skipped_since_update(run);
  leave();
  // After the last checkpoint, which holds the weights that were trained.
  if (ended_ && options_.copy_at_end && !average_->empty()) {
    const auto whole = run.run_weights().whole_parameters();
    average_->put_into(run.module());
  }
  module_ = nullptr;
}

void WeightAveraging::on_exception(RunContext&, const std::exception&) { leave(); }

void WeightAveraging::on_train_start(RunContext& run) {
  const double reached = trigger_.reached();
  trigger_.start(run);
  if (loaded_) trigger_.set_reached(reached);
  count_exactly(options_.half_life, run);
  count_exactly(options_.start, run);
  if (options_.half_life) measured_position(*options_.half_life, "half_life", run);
  // Without the fraction of the current epoch, no length would pass between two updates.
  if (options_.half_life && options_.half_life->unit == Interval::Unit::epochs && !run.num_batches(RunningStage::train))
    throw wrong_averaging(cat("half_life in epochs needs a training loader of known length; got ",
                              options_.half_life->text(), " and a loader without one. Use st or sa."));
  if (options_.start) measured_position(*options_.start, "start", run);
  check_rates(run);
  if (options_.update_bn.value_or(options_.kind == AveragingKind::swa)) {
    if (const auto reason = run.run_weights().cannot_update_batch_norm())
      throw wrong_averaging(cat("update_bn needs a pass over the training data; ", *reason,
                                ". Set update_bn to false, or use_buffers to true to average the statistics."));
    run.run_weights().will_update_batch_norm();
  }
  begin_counting_skips(run);
  run_ = &run;
  // The process may have ended between a step and its update. No filter covers this hook.
  if (passes_last_step(run.progress())) update_if_due(run);
}

// With manual optimization, a run that resumes counts from zero.
void WeightAveraging::begin_counting_skips(RunContext& run) {
  const Tensor skipped = run.run_weights().skipped_steps();
  const double before = static_cast<double>(skips_.as_int());
  skipped_on_device_.reset();
  if (skipped.is_cpu())
    skipped_ = *skipped.const_data_ptr<double>() - before;
  else
    skipped_on_device_ = skipped - before;
}

StateTree WeightAveraging::skipped_since_update(RunContext& run) const {
  const Tensor skipped = run.run_weights().skipped_steps();
  if (skipped.is_cpu()) return static_cast<int64_t>(*skipped.const_data_ptr<double>() - skipped_);
  const Tensor since = skipped_on_device_.defined() ? skipped - skipped_on_device_ : skipped - skipped_;
  return late_number(since.to(at::kLong));
}

bool WeightAveraging::is_after_start(RunContext& run) const {
  if (!options_.start) return true;
  return measured_position(*options_.start, "start", run) > options_.start->value * (1 + 1e-12);
}

void WeightAveraging::on_train_epoch_start(RunContext& run) { set_rates(run); }
void WeightAveraging::on_train_batch_start(RunContext& run, const Batch&, int64_t) {
  rolled_back_ = false;
  set_rates(run);
}

// Schedules set their rates too, after each step or epoch.
void WeightAveraging::set_rates(RunContext& run) {
  if (options_.swa_lrs.empty()) return;
  if (rates_from_epoch_ < 0) {
    const double begin = options_.start->value;
    if (measured_position(*options_.start, "start", run) < begin * (1 - 1e-12)) return;
    rates_from_epoch_ = run.progress().epoch;
    rates_.clear();
    each_averaged_group(run, [&](ParamGroup& group, size_t) { rates_.push_back(group.lr); });
  }
  const int64_t epoch = run.progress().epoch - rates_from_epoch_;
  each_averaged_group(run, [&](ParamGroup& group, size_t place) {
    const double to = options_.swa_lrs.size() == 1 ? options_.swa_lrs.front() : options_.swa_lrs.at(place);
    group.lr =
        detail::swa_rate(rates_.at(place), to, epoch, options_.annealing_epochs.value_or(kDefaultAnnealingEpochs),
                         options_.annealing_strategy.value_or(SwaAnnealing::cos));
  });
}

void WeightAveraging::on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t batch_idx) {
  updates_->end_batch();
  // After the last batch of an epoch, a window that is cut short may make another step.
  const auto batches = run.num_batches(RunningStage::train);
  const bool is_last = batches && batch_idx + 1 >= *batches;
  if (!is_last || rolled_back_) update_if_due(run);
  rolled_back_ = false;
}

void WeightAveraging::on_train_epoch_end(RunContext& run) { update_if_due(run); }

void WeightAveraging::update_if_due(RunContext& run) {
  if (!trigger_.due(run)) return;
  Tensor counts;
  if (run.progress().global_step == updated_at_step_ || !is_after_start(run)) return;
  // Also after a rollback: the count of skipped steps begins again.
  const bool only_skipped = only_skipped_steps(run, counts);
  if (!rolled_back_ && !only_skipped) {
    const auto whole = run.run_weights().whole_parameters();
    if (counts.defined())
      update_if(run, counts);
    else
      update(run);
  }
  updated_at_step_ = run.progress().global_step;
  if (options_.half_life) updated_at_ = measured_position(*options_.half_life, "half_life", run);
}

void WeightAveraging::update(RunContext& run) {
  if (!updates_->is_known())
    average_->copy(run.module());
  else
    average_->move(run.module(), options_.kind == AveragingKind::swa ? updates_->equal_weight() : 1.0 - ema_decay(run));
  updates_->add();
}

void WeightAveraging::update_if(RunContext& run, const Tensor& counts) {
  if (average_->empty()) {
    // If the step was skipped, these are the weights that the module has until the first update.
    average_->copy(run.module());
  } else {
    const Tensor weight = options_.kind == AveragingKind::swa
                              ? updates_->equal_weight(counts)
                              : at::full({}, 1.0 - ema_decay(run), counts.options().dtype(at::kDouble));
    average_->move_by_device(run.module(), weight * counts,
                             updates_->is_known() ? Tensor() : updates_->is_zero(counts));
  }
  updates_->add_if(counts);
}

int64_t WeightAveraging::n_averaged() const { return updates_->value(); }

double WeightAveraging::ema_decay(RunContext& run) const {
  if (!options_.half_life) return options_.decay.value_or(kDefaultDecay);
  const double length = measured_position(*options_.half_life, "half_life", run) - updated_at_;
  return std::exp2(-length / options_.half_life->value);
}

bool WeightAveraging::only_skipped_steps(RunContext& run, Tensor& counts) {
  const auto steps = static_cast<double>(run.progress().global_step - updated_at_step_);
  const Tensor skipped = run.run_weights().skipped_steps();
  if (skipped.is_cpu()) {
    const double now = *skipped.const_data_ptr<double>(), before = std::exchange(skipped_, now);
    return now - before >= steps;
  }
  if (!skipped_on_device_.defined()) skipped_on_device_ = at::full({}, skipped_, skipped.options());
  counts = (skipped - skipped_on_device_).lt(steps);
  skipped_on_device_ = skipped.clone();
  return false;
}

void WeightAveraging::on_train_end(RunContext& run) {
  if (passes_last_step(run.progress())) update_if_due(run);
  // All steps were skipped, which only the device knew.
  if (!average_->empty() && !updates_->is_known() && updates_->value() == 0) average_->clear();
  if (average_->empty() && run.progress().global_step > 0 && !run.fast_dev_run())
    log::warn("weight_averaging.no_update",
              cat("WeightAveraging: the average was never updated in ", counted(run.progress().global_step, "step"),
                  ": no update (every ", trigger_.every().text(), ") was due",
                  options_.start ? cat(" after start (", options_.start->text(), ")") : "",
                  ". The module keeps the weights that were trained"));
  warn_of_short_annealing(run);
  const bool updates_bn = options_.update_bn.value_or(options_.kind == AveragingKind::swa);
  if (!updates_bn || average_->empty() || average_->has_recomputed()) return;
  const auto whole = run.run_weights().whole_parameters();
  average_->enter(run.module(), /*and_keep_buffers=*/true);
  average_->set_recomputed(run.module(), run.run_weights().update_batch_norm());
  average_->leave();
  if (average_->has_recomputed()) request_last_checkpoint(run);
}

void WeightAveraging::warn_of_short_annealing(RunContext& run) const {
  if (rates_from_epoch_ < 0 || run.log_dir().empty()) return;
  const int64_t annealing = options_.annealing_epochs.value_or(kDefaultAnnealingEpochs);
  // The rates of an epoch are those at its start.
  const int64_t epochs = run.progress().epochs.started - rates_from_epoch_;
  if (epochs > annealing) return;
  log::warn("weight_averaging.short_annealing",
            cat("WeightAveraging: the learning rates did not reach swa_lrs, since annealing_epochs is ", annealing,
                ", and ", counted(epochs, "epoch"), " began after start (", options_.start->text(),
                "). Set annealing_epochs to ", std::max<int64_t>(epochs - 1, 0), " or less"));
}

// The one of the last step may exist already, without the statistics.
void WeightAveraging::request_last_checkpoint(RunContext& run) const {
  if (run.log_dir().empty()) return;
  const Progress& progress = run.progress();
  const int64_t epoch = progress.in_epoch() ? progress.epoch : std::max<int64_t>(progress.epoch - 1, 0);
  CheckpointRequest request;
  request.name = cat("epoch=", epoch, "-step=", progress.global_step, "-averaged");
  request.reason = "the statistics of batch norms were recomputed";
  request.keep = false;
  request.owner = state_key();
  run.request_checkpoint(std::move(request));
}

void WeightAveraging::on_fit_end(RunContext&) { ended_ = true; }

void WeightAveraging::enter(RunContext& run) {
  if (average_->empty()) return;
  // Ranks may have different buffers; a checkpoint has those of rank 0.
  if (run.world_size() > 1)
    for (Tensor& buffer : average_->shared_buffers()) buffer.copy_(run.collectives().broadcast(buffer, 0));
  // While only the device knows whether there was an update, it decides between the average and the weights themselves.
  const Tensor& like = average_->parameters().begin()->second;
  whole_ = run.run_weights().whole_parameters();
  average_->enter(run.module(), /*and_keep_buffers=*/false, updates_->is_known() ? Tensor() : updates_->is_zero(like));
}

void WeightAveraging::leave() {
  average_->leave();
  whole_.reset();
}

void WeightAveraging::on_validation_start(RunContext& run) {
  if (run.fn() == TrainerFn::fit) {
    if (run.sanity_checking()) return;
    update_if_due(run);
  }
  enter(run);
}
void WeightAveraging::on_validation_end(RunContext&) { leave(); }
void WeightAveraging::on_test_start(RunContext& run) { enter(run); }
void WeightAveraging::on_test_end(RunContext&) { leave(); }
void WeightAveraging::on_predict_start(RunContext& run) { enter(run); }
void WeightAveraging::on_predict_end(RunContext&) { leave(); }

void WeightAveraging::on_save_checkpoint(RunContext&, StateTree& checkpoint) {
  if (!checkpoint.contains(kCallbacksKey)) checkpoint[kCallbacksKey][state_key()] = state();
}

StateTree WeightAveraging::averaged_parameters() const { return average_->state().at("average"); }

[[maybe_unused]] static const bool registered_weight_averaging = Registry<Callback>::add<WeightAveraging>(
    "WeightAveraging", "Averages the weights of a fit (EMA or SWA), and evaluates with the average.");

}  // namespace fulgur
