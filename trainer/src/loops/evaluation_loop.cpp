#include "loops/evaluation_loop.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>

#include <exception>

#include "fulgur/core/let_go.h"
#include "fulgur/core/log.h"
#include "fulgur/core/rng.h"
#include "fulgur/core/text.h"
#include "fulgur/data/device_prefetcher.h"
#include "loops/micro_batches.h"
#include "predictions/predicted_share.h"
#include "predictions/predictions.h"
#include "process/signals.h"
#include "run/batch_transfer.h"

namespace fulgur::detail {
namespace {

// The hooks of one kind of evaluation: all kinds share one loop.
struct EvaluationHooks {
  Hook batch_start, batch_end;
  void (LightningModule::*model_eval)();
  void (LightningModule::*model_train)();
  void (LightningModule::*module_start)();
  void (LightningModule::*module_end)();
  void (LightningModule::*module_epoch_start)();
  void (LightningModule::*module_epoch_end)();
  void (LightningModule::*module_batch_start)(const Batch&, int64_t, int64_t);
  void (LightningModule::*module_batch_end)(const Outputs&, const Batch&, int64_t, int64_t);
  Outputs (LightningModule::*module_step)(const Batch&, int64_t, int64_t);
  void (Callback::*start)(RunContext&);
  void (Callback::*end)(RunContext&);
  void (Callback::*epoch_start)(RunContext&);
  void (Callback::*epoch_end)(RunContext&);
  void (Callback::*batch_start_hook)(RunContext&, const Batch&, int64_t, int64_t);
  void (Callback::*batch_end_hook)(RunContext&, const Outputs&, const Batch&, int64_t, int64_t);
};

const EvaluationHooks& hooks_of(RunningStage stage) {
#define FULGUR_EVALUATION_HOOKS(kind)                                                                         \
  {                                                                                                           \
    Hook::on_##kind##_batch_start, Hook::on_##kind##_batch_end, &LightningModule::on_##kind##_model_eval,     \
        &LightningModule::on_##kind##_model_train, &LightningModule::on_##kind##_start,                       \
        &LightningModule::on_##kind##_end, &LightningModule::on_##kind##_epoch_start,                         \
        &LightningModule::on_##kind##_epoch_end, &LightningModule::on_##kind##_batch_start,                   \
        &LightningModule::on_##kind##_batch_end, &LightningModule::kind##_step, &Callback::on_##kind##_start, \
        &Callback::on_##kind##_end, &Callback::on_##kind##_epoch_start, &Callback::on_##kind##_epoch_end,     \
        &Callback::on_##kind##_batch_start, &Callback::on_##kind##_batch_end                                  \
  }
  static const EvaluationHooks kValidation = FULGUR_EVALUATION_HOOKS(validation);
  static const EvaluationHooks kTest = FULGUR_EVALUATION_HOOKS(test);
  static const EvaluationHooks kPredict = FULGUR_EVALUATION_HOOKS(predict);
#undef FULGUR_EVALUATION_HOOKS
  return stage == RunningStage::validate ? kValidation : stage == RunningStage::test ? kTest : kPredict;
}

// Restores training's stage and batch when evaluation inside a fit ends, also on an exception.
class StageGuard {
 public:
  StageGuard(RunState& run, RunningStage stage)
      : run_(run),
        stage_(run.position.stage),
        batch_idx_(run.position.batch_idx),
        samples_(run.position.batch_samples) {
    run.position.stage = stage;
  }
  ~StageGuard() {
    run_.position.stage = stage_;
    run_.position.batch_idx = batch_idx_;
    run_.position.batch_samples = samples_;
    run_.position.loader_idx = 0;
    run_.position.loader_count = 1;
  }
  StageGuard(const StageGuard&) = delete;
  StageGuard& operator=(const StageGuard&) = delete;

 private:
  RunState& run_;
  RunningStage stage_;
  int64_t batch_idx_;
  double samples_;
};

// Restores the module's modes, however an evaluation ends.
class ModeGuard {
 public:
  ModeGuard(RunState& run, Services& services, const EvaluationHooks& hooks)
      : run_(run), services_(services), hooks_(hooks), exceptions_(std::uncaught_exceptions()) {}
  ~ModeGuard() {
    if (std::uncaught_exceptions() == exceptions_) return;
    try {
      ((*run_.model).*hooks_.model_train)();
    } catch (const std::exception& error) {
      log::error(cat("while leaving evaluation: ", error.what()));
    } catch (...) {
      log::error("while leaving evaluation: an exception of unknown type");
    }
    // With several ranks no rows of this evaluation are pending, so nothing is exchanged here.
    try {
      if (run_.world_size() == 1) services_.rows.settle(/*and_act=*/false);
    } catch (const std::exception& error) {
      log::error(cat("while leaving evaluation: ", error.what()));
    }
    services_.logs.reset(run_.position.stage);
  }
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  RunState& run_;
  Services& services_;
  const EvaluationHooks& hooks_;
  int exceptions_;
};

// Records where an exception leaves an evaluation, before that state is lost.
class FailureGuard {
 public:
  explicit FailureGuard(RunState& run) : run_(run), exceptions_(std::uncaught_exceptions()) {
    run.position.doing = nullptr;
  }
  ~FailureGuard() {
    if (std::uncaught_exceptions() != exceptions_ && run_.position.failed_in.empty())
      run_.position.failed_in = run_.place_of_failure();
    run_.position.evaluated = nullptr;
  }
  FailureGuard(const FailureGuard&) = delete;
  FailureGuard& operator=(const FailureGuard&) = delete;

 private:
  RunState& run_;
  int exceptions_;
};

const char* step_of(RunningStage stage) {
  return stage == RunningStage::validate ? "validation_step"
         : stage == RunningStage::test   ? "test_step"
                                         : "predict_step";
}

// Disables gradients. Also enters inference mode, except in a fit, whose training could not use its tensors, or if the
// options switch it off.
class NoGradients {
 public:
  explicit NoGradients(const RunState& run) : inference_(run.fn != TrainerFn::fit && run.options.inference_mode) {}

 private:
  c10::InferenceMode inference_;
  at::NoGradGuard no_grad_;  // after the other, which enables gradients when inference mode is off
};

// The batches of one loader. Ranks agree on signals as in training: the others would wait at the end for a rank that
// left alone. Ranks may have different numbers of batches, so a rank that has none left takes part in the rounds of the
// others.
class Rounds {
 public:
  Rounds(RunState& run, Services& services, std::optional<int64_t> batches)
      : run_(run), services_(services), together_(run.world_size() > 1) {
    if (!together_) return;
    const std::vector<int64_t> most = run.collectives().start_max({batches ? 0 : 1, batches.value_or(0)})->take();
    if (most[0] == 0) count_ = most[1];
  }

  // Whether there is a round `index`; `more`: whether this rank has a batch for it.
  bool next(int64_t index, bool more) const {
    if (!together_) return more;
    return count_ ? index < *count_ : run_.collectives().any(more);
  }
  // Called before a batch of this rank is evaluated.
  void before_batch() const {
    if (run_.world_size() > 1) return;
    if (const auto signal = signals::received()) throw Interrupted(*signal);
  }
  void end_round() const {
    if (!together_) return;
    services_.consensus.step();
    if (const auto signal = services_.consensus.signal()) throw Interrupted(*signal);
  }

 private:
  RunState& run_;
  Services& services_;
  bool together_;
  std::optional<int64_t> count_;  ///< the maximum over ranks; nullopt: unknown on one of them
};

// Whether the module evaluates all batches together at the end, for which its steps may have gathered values in
// members. On other devices they would be members of the module's copies.
bool keeps_members(const RunState& run, RunningStage stage) {
  if (run.replicas.empty()) return false;
  const HookMask& overridden = ComponentAccess::overridden(*run.model);
  switch (stage) {
    case RunningStage::test:
      return overridden.has(Hook::on_test_epoch_end) || overridden.has(Hook::on_test_end);
    case RunningStage::predict:
      return overridden.has(Hook::on_predict_epoch_end) || overridden.has(Hook::on_predict_end);
    default:
      return overridden.has(Hook::on_validation_epoch_end) || overridden.has(Hook::on_validation_end);
  }
}

// Runs the loop; `on_outputs` receives what each step returned.
template <class OnOutputs>
int64_t run_loaders(RunState& run, Services& services, RunningStage stage, std::optional<int64_t> batch_limit,
                    OnOutputs on_outputs) {
  const EvaluationHooks& hooks = hooks_of(stage);
  LightningModule& module = *run.model;
  StageLoaders& loaders = run.stages[stage];
  // Nothing can be logged from predict hooks, as in Lightning.
  const LogScope step_scope = stage == RunningStage::predict ? LogScope::forbidden : LogScope::evaluation_step;
  const LogScope epoch_scope = stage == RunningStage::predict ? LogScope::forbidden : LogScope::evaluation_epoch;
  const auto module_hook = [&](LogScope scope, auto member) {
    ScopeGuard guard(run, scope);
    (module.*member)();
  };
  const auto callback_hook = [&](LogScope scope, auto member) {
    run.each_callback(scope, [&](Callback& c) { (c.*member)(services.context); });
  };

  HeldBatch held;
  Batch& batch = held.get();
  const FailureGuard noted(run);
  services.consensus.change_pace();
  module_hook(LogScope::forbidden, hooks.model_eval);
  callback_hook(epoch_scope, hooks.start);
  module_hook(epoch_scope, hooks.module_start);
  callback_hook(epoch_scope, hooks.epoch_start);
  module_hook(epoch_scope, hooks.module_epoch_start);

  const bool splits = !keeps_members(run, stage);
  int64_t samples = 0;
  run.position.loader_count = static_cast<int64_t>(loaders.loaders.size());
  for (size_t l = 0; l < loaders.loaders.size(); ++l) {
    Loader& loader = *loaders.loaders[l];
    std::optional<int64_t> limit = loaders.batches[l];
    if (batch_limit) limit = limit ? std::min(*limit, *batch_limit) : *batch_limit;
    run.position.loader_idx = static_cast<int64_t>(l);
    loader.start_epoch(run.counters.epoch);
    auto* const prefetcher = dynamic_cast<DevicePrefetcher*>(&loader);
    const Rounds rounds(run, services, limit);
    bool more = true;
    for (int64_t i = 0;; ++i) {
      run.position.reading = i;
      more = more && (!limit || i < *limit) && loader.next(batch);
      run.position.reading.reset();
      if (!rounds.next(i, more)) break;
      if (!more) {
        rounds.end_round();
        continue;
      }
      rounds.before_batch();
      run.position.batch_idx = i;
      run.position.evaluated = &batch;
      batch_to_device(run, batch, run.position.loader_idx);
      const int64_t count = batch.size();
      run.position.batch_samples = static_cast<double>(count);
      samples += count;
      run.each_callback(step_scope, hooks.batch_start, [&](Callback& c) {
        (c.*hooks.batch_start_hook)(services.context, batch, i, run.position.loader_idx);
      });
      ScopeGuard scope(run, step_scope);
      (module.*hooks.module_batch_start)(batch, i, run.position.loader_idx);
      Outputs outputs;
      run.position.doing = step_of(stage);
      const std::vector<MicroBatch> parts =
          splits ? run.strategy->split(module, batch, stage) : std::vector<MicroBatch>();
      if (!parts.empty()) {
        std::vector<Outputs> of_parts(parts.size());
        run_parts(run, parts, [&](const MicroBatch& part, size_t index) {
          of_parts[index] = (part.module->*hooks.module_step)(part.batch, i, run.position.loader_idx);
        });
        outputs = join_outputs(run, parts, of_parts);
      } else {
        const auto guard = run.strategy->precision().forward_guard();
        outputs = (module.*hooks.module_step)(batch, i, run.position.loader_idx);
      }
      if (prefetcher && (!limit || i + 1 < *limit)) {
        run.position.reading = i + 1;
        prefetcher->read_ahead();
        run.position.reading.reset();
      }
      outputs = outputs.detach();
      run.position.doing = nullptr;
      run.each_callback(step_scope, hooks.batch_end, [&](Callback& c) {
        (c.*hooks.batch_end_hook)(services.context, outputs, batch, i, run.position.loader_idx);
      });
      (module.*hooks.module_batch_end)(outputs, batch, i, run.position.loader_idx);
      ++run.validation.batches;
      on_outputs(l, std::move(outputs), count);
      services.rows.end_batch(stage, false);
      rounds.end_round();
    }
    batch.clear();
  }
  // Pending agreements are read before other exchanges; the clock is read at the end.
  if (run.fn != TrainerFn::fit) services.consensus.settle();
  run.position.evaluated = nullptr;
  run.position.loader_count = 1;
  run.position.loader_idx = 0;
  callback_hook(epoch_scope, hooks.epoch_end);
  module_hook(epoch_scope, hooks.module_epoch_end);
  return samples;
}

// Splits `name/dataloader_idx_2` into the columns of the report.
std::vector<Metrics> by_loader(const Metrics& values, size_t loader_count) {
  std::vector<Metrics> columns(std::max<size_t>(loader_count, 1));
  for (const auto& [name, value] : values) {
    const size_t mark = name.rfind("/dataloader_idx_");
    size_t column = 0;
    if (mark != std::string::npos && loader_count > 1)
      column = std::min<size_t>(std::stoul(name.substr(mark + 16)), columns.size() - 1);
    columns[column].emplace_back(name, value);
  }
  return columns;
}

}  // namespace

namespace {

int64_t sum_over_ranks(const RunState& run, int64_t count) {
  if (run.world_size() == 1) return count;
  return run.collectives().all_reduce(at::full({}, count, at::kLong), ReduceOp::sum).item<int64_t>();
}

}  // namespace

EvalReport evaluate(RunState& run, Services& services, RunningStage stage, std::optional<int64_t> batch_limit) {
  const double started = services.context.elapsed_s();
  StageGuard stage_guard(run, stage);
  RngGuard rng_guard(run.strategy->devices());
  const NoGradients no_gradients(run);
  const EvaluationHooks& hooks = hooks_of(stage);
  const ModeGuard modes(run, services, hooks);
  LightningModule& module = *run.model;
  EvalReport report;
  run.strategy->before_evaluation(module);
  report.samples = sum_over_ranks(run, run_loaders(run, services, stage, batch_limit, [](size_t, Outputs, int64_t) {}));
  services.rows.end_batch(stage, true);
  const Metrics values = services.logs.take(services.logs.close_epoch(stage), &run.collectives());
  send_metrics(run, values, row_place(run));
  report.loaders = by_loader(values, run.stages[stage].loaders.size());
  // Callbacks that stop or write checkpoints act on this epoch's values.
  run.each_callback(LogScope::forbidden, [&](Callback& c) { (c.*hooks.end)(services.context); });
  (module.*hooks.module_end)();
  (module.*hooks.model_train)();
  report.seconds = services.context.elapsed_s() - started;
  return report;
}

void validate_in_fit(RunState& run, Services& services, std::optional<int64_t> batch_limit) {
  try {
    evaluate(run, services, RunningStage::validate, batch_limit);
    if (!run.validation.logged) run.validation.logged = services.logs.known_names();
  } catch (const StepNotOverridden&) {
    run.position.failed_in.clear();
    warn_no_validation_step();
    run.validation.runs = false;
  }
}

void warn_no_validation_step() {
  log::warn("trainer.no_validation_step",
            cat("there is validation data, but the module has no validation_step, whose declaration is `",
                expected_step("validation_step"), "`; validation is skipped"));
}

PredictReport predict(RunState& run, Services& services) {
  StageGuard stage_guard(run, RunningStage::predict);
  RngGuard rng_guard(run.strategy->devices());
  const NoGradients no_gradients(run);
  const ModeGuard modes(run, services, hooks_of(RunningStage::predict));
  PredictReport report;
  run.strategy->before_evaluation(*run.model);
  std::vector<PredictedBatches> collected(run.stages[RunningStage::predict].loaders.size());
  report.samples =
      run_loaders(run, services, RunningStage::predict, std::nullopt,
                  [&](size_t loader, Outputs outputs, int64_t count) { collected[loader].add(outputs, count); });
  run.each_callback(LogScope::forbidden, [&](Callback& c) { c.on_predict_end(services.context); });
  run.model->on_predict_end();
  run.model->on_predict_model_train();
  // Returned tensors must be usable in autograd.
  const c10::InferenceMode normal(false);
  std::vector<PredictedShare> shares;
  for (size_t l = 0; l < collected.size(); ++l) {
    shares.push_back(collected[l].take(run.stages[RunningStage::predict].loaders[l]->shares_in_turns()));
    report.loaders.push_back(shares.back().outputs);
  }
  if (!run.run_dir.empty()) report.files = write_predictions(run.collectives(), run.run_dir, shares);
  report.samples = sum_over_ranks(run, report.samples);
  return report;
}

}  // namespace fulgur::detail
