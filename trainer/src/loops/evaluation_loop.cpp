#include "loops/evaluation_loop.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <exception>
#include <functional>

#include "capture/captured_evaluation.h"
#include "fulgur/core/state/let_go.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/device_prefetcher.h"
#include "loops/micro_batches.h"
#include "loops/weight_versions.h"
#include "predictions/predicted_share.h"
#include "predictions/predictions.h"
#include "process/signals.h"
#include "run/batch_transfer.h"
#include "run/evaluation_names.h"

namespace fulgur::detail {
namespace {

struct EvaluationHookNames {
  const char *start, *end, *epoch_start, *epoch_end, *batch_start, *batch_end, *step;
};

// The hooks of one kind of evaluation: all kinds share one loop.
struct EvaluationHooks {
  EvaluationHookNames names;
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
    {"on_" #kind "_start",                                                                                    \
     "on_" #kind "_end",                                                                                      \
     "on_" #kind "_epoch_start",                                                                              \
     "on_" #kind "_epoch_end",                                                                                \
     "on_" #kind "_batch_start",                                                                              \
     "on_" #kind "_batch_end",                                                                                \
     #kind "_step"},                                                                                          \
        Hook::on_##kind##_batch_start, Hook::on_##kind##_batch_end, &LightningModule::on_##kind##_model_eval, \
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

// Enters the stage, and restores training's stage and batch when evaluation inside a fit ends, also on an exception.
[[nodiscard]] auto enter_stage(RunState& run, RunningStage stage) {
  auto restore = c10::make_scope_exit([&now = run.position, stage = run.position.stage,
                                       batch_idx = run.position.batch_idx, samples = run.position.batch_samples] {
    now.stage = stage;
    now.batch_idx = batch_idx;
    now.batch_samples = samples;
    now.loader_idx = 0;
    now.loader_count = 1;
  });
  run.position.stage = stage;
  return restore;
}

// Restores the module's modes, however an evaluation ends.
class ModeGuard {
 public:
  ModeGuard(RunState& run, Services& services, const EvaluationHooks& hooks)
      : run_(run),
        services_(services),
        hooks_(hooks),
        values_(services.logs.taken()),
        exceptions_(std::uncaught_exceptions()) {}
  ~ModeGuard() {
    if (std::uncaught_exceptions() == exceptions_) return;
    report_errors([&] { ((*run_.model).*hooks_.model_train)(); });
    // With several ranks no rows of this evaluation are pending, so nothing is exchanged here.
    report_errors([&] {
      if (run_.world_size() == 1) services_.rows.settle(/*and_act=*/false);
    });
    services_.logs.reset(run_.position.stage);
    services_.logs.restore(values_);
    report_errors([&] { services_.metrics.reset(run_.position.stage); });
  }
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  template <class Action>
  static void report_errors(Action action) {
    try {
      action();
    } catch (const std::exception& error) {
      log::error(cat("while leaving evaluation: ", error.what()));
    } catch (...) {
      log::error("while leaving evaluation: an exception of unknown type");
    }
  }

  RunState& run_;
  Services& services_;
  const EvaluationHooks& hooks_;
  const LogStore::Taken values_;
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
  // `batches`: at most, or `is_exact`. `abandons`: a signal ends the evaluation before its next batch.
  Rounds(RunState& run, Services& services, std::optional<int64_t> batches, bool is_exact, bool abandons)
      : run_(run), services_(services), together_(run.world_size() > 1), abandons_(abandons) {
    if (!together_) return;
    const std::vector<int64_t> most =
        run.collectives()
            .start_max({batches ? 0 : 1, batches.value_or(0), is_exact ? 0 : 1, is_exact ? -batches.value_or(0) : 0})
            ->take();
    if (most[0] == 0) count_ = most[1];
    if (most[2] == 0) fewest_ = -most[3];
  }

  // Whether there is a round `index`; `more`: whether this rank has a batch for it.
  bool next(int64_t index, bool more) const {
    if (!together_) return more;
    return count_ ? index < *count_ : run_.collectives().any(more);
  }
  // Whether every rank has a batch for the round `index`. All ranks must call it.
  bool all_have(int64_t index, bool more) const {
    if (!together_) return more;
    return fewest_ ? index < *fewest_ : !run_.collectives().any(!more);
  }
  // Called before a batch of this rank is evaluated.
  void before_batch() const {
    if (run_.world_size() > 1 || !abandons_) return;
    if (const auto signal = signals::received()) throw Interrupted(*signal);
  }
  void end_round() const {
    if (!together_) return;
    services_.consensus.step();
    services_.checkpoints.publish_parts();
    const auto signal = services_.consensus.signal();
    if (signal && abandons_) throw Interrupted(*signal);
  }

 private:
  RunState& run_;
  Services& services_;
  bool together_, abandons_;
  std::optional<int64_t> count_;   ///< the maximum over ranks; nullopt: unknown on one of them
  std::optional<int64_t> fewest_;  ///< the minimum; nullopt: unknown on one of them
};

// On other devices, members in which steps gather values for a hook at the end would be those of the module's copies.
bool keeps_members(const RunState& run, RunningStage stage) {
  return !run.replicas.empty() && hook_after_batches(*run.model, stage) != nullptr;
}

// One pass over all loaders of a stage.
class EvaluationPass {
 public:
  using OnOutputs = std::function<void(size_t loader, const Outputs& outputs, int64_t samples)>;

  // `on_outputs` receives what each step returned.
  EvaluationPass(RunState& run, Services& services, RunningStage stage, OnOutputs on_outputs)
      : run_(run),
        services_(services),
        stage_(stage),
        hooks_(hooks_of(stage)),
        module_(*run.model),
        // Nothing can be logged from predict hooks, as in Lightning.
        step_scope_(stage == RunningStage::predict ? LogScope::forbidden : LogScope::evaluation_step),
        epoch_scope_(stage == RunningStage::predict ? LogScope::forbidden : LogScope::evaluation_epoch),
        splits_(!keeps_members(run, stage)),
        gathers_(run.strategy->gathers_in_evaluations()),
        captured_(captured_evaluation(run, services, stage)),
        on_outputs_(std::move(on_outputs)) {}

  // Returns the number of samples of this rank.
  int64_t run(std::optional<int64_t> batch_limit) {
    const FailureGuard noted(run_);
    services_.consensus.change_pace();
    call_start_hooks();
    if (captured_) captured_->begin_pass();
    // After hooks that exchange weights.
    const nn::LoraWeights adapted(gathers_ ? LoraLayers() : run_.lora_layers);
    const StageLoaders& loaders = run_.stages[stage_];
    run_.position.loader_count = static_cast<int64_t>(loaders.loaders.size());
    for (size_t l = 0; l < loaders.loaders.size(); ++l) {
      std::optional<int64_t> limit = loaders.batches[l];
      if (batch_limit) limit = limit ? std::min(*limit, *batch_limit) : *batch_limit;
      run_loader(l, *loaders.loaders[l], limit);
      batch_.clear();
    }
    if (captured_) captured_->end_pass();
    // Pending agreements are read before other exchanges; the clock is read at the end.
    if (run_.fn != TrainerFn::fit) services_.consensus.settle();
    if (gathers_) services_.rank_checks.check_order();
    run_.position.evaluated = nullptr;
    run_.position.loader_count = 1;
    run_.position.loader_idx = 0;
    call_callbacks(hooks_.names.epoch_end, hooks_.epoch_end);
    call_module(epoch_scope_, hooks_.module_epoch_end);
    return samples_;
  }

 private:
  using LoraLayers = std::vector<nn::LoraWeights::Layer>;

  void call_start_hooks() {
    std::optional<WeightVersions> weights;
    if (run_.fn == TrainerFn::fit) weights.emplace(module_);
    call_module(LogScope::forbidden, hooks_.model_eval);
    call_callbacks(hooks_.names.start, hooks_.start);
    call_module(epoch_scope_, hooks_.module_start);
    call_callbacks(hooks_.names.epoch_start, hooks_.epoch_start);
    call_module(epoch_scope_, hooks_.module_epoch_start);
    // A hook has exchanged the weights for this validation, as weight averaging does, and puts the run's weights back
    // at the end: until then, nothing can be saved.
    if (weights) abandons_ = !run_.collectives().any(weights->changed());
  }
  void call_module(LogScope scope, void (LightningModule::*hook)()) {
    ScopeGuard guard(run_, scope);
    (module_.*hook)();
  }
  void call_callbacks(const char* name, void (Callback::*hook)(RunContext&)) {
    run_.each_due_callback(epoch_scope_, name, [&](Callback& c) { (c.*hook)(services_.context); });
  }

  void run_loader(size_t index, Loader& loader, std::optional<int64_t> limit) {
    run_.position.loader_idx = static_cast<int64_t>(index);
    loader.start_epoch(run_.counters.epoch);
    run_.position.samples_before = 0;
    run_.position.reads_in_turns =
        stage_ == RunningStage::predict && (run_.world_size() == 1 || loader.shares_in_turns());
    auto* const prefetcher = dynamic_cast<DevicePrefetcher*>(&loader);
    const bool is_exact = run_.stages[stage_].batches[index].has_value();
    const Rounds rounds(run_, services_, limit, is_exact, abandons_);
    if (captured_) captured_->begin_loader(limit, loader.size().has_value());
    bool more = true;
    for (int64_t i = 0;; ++i) {
      run_.position.reading = i;
      {
        const auto timer = run_.actions.time("next_batch");
        more = more && (!limit || i < *limit) && loader.next(batch_);
      }
      run_.position.reading.reset();
      if (!rounds.next(i, more)) break;
      all_have_batch_ = !gathers_ || rounds.all_have(i, more);
      if (more) {
        rounds.before_batch();
        left_ = limit ? std::optional(*limit - i - 1) : std::nullopt;
        evaluate_batch(index, i, left_ != 0 ? prefetcher : nullptr);
      } else if (gathers_) {
        run_.strategy->begin_evaluation_round(/*computes=*/false, all_have_batch_);
        run_.strategy->end_evaluation_round();
      }
      rounds.end_round();
      if (run_.fn != TrainerFn::fit) run_.actions.step_done();
    }
  }

  // `prefetcher` reads the following batch meanwhile, unless it is nullptr.
  void evaluate_batch(size_t loader, int64_t batch_idx, DevicePrefetcher* prefetcher) {
    const int64_t& loader_idx = run_.position.loader_idx;
    run_.position.batch_idx = batch_idx;
    run_.position.evaluated = &batch_;
    batch_to_device(run_, batch_, loader_idx);
    const int64_t count = batch_.size();
    run_.position.batch_samples = static_cast<double>(count);
    samples_ += count;
    run_.each_callback(step_scope_, {hooks_.batch_start, hooks_.names.batch_start}, [&](Callback& c) {
      (c.*hooks_.batch_start_hook)(services_.context, batch_, batch_idx, loader_idx);
    });
    ScopeGuard scope(run_, step_scope_);
    (module_.*hooks_.module_batch_start)(batch_, batch_idx, loader_idx);
    run_.position.doing = evaluation_step(stage_);
    Outputs outputs = timed_step(batch_idx);
    if (prefetcher) {
      run_.position.reading = batch_idx + 1;
      prefetcher->read_ahead();
      run_.position.reading.reset();
    }
    outputs = outputs.detach();
    run_.position.doing = nullptr;
    run_.each_callback(step_scope_, {hooks_.batch_end, hooks_.names.batch_end}, [&](Callback& c) {
      (c.*hooks_.batch_end_hook)(services_.context, outputs, batch_, batch_idx, loader_idx);
    });
    (module_.*hooks_.module_batch_end)(outputs, batch_, batch_idx, loader_idx);
    run_.position.samples_before += count;
    ++run_.validation.batches;
    on_outputs_(loader, outputs, count);
    services_.rows.end_batch(stage_, false);
  }

  Outputs timed_step(int64_t batch_idx) {
    const auto timer = run_.actions.time(hooks_.names.step);
    if (!gathers_) return step(batch_idx);
    // Hooks before and after it may gather parameters, too.
    run_.strategy->begin_evaluation_round(/*computes=*/true, all_have_batch_);
    Outputs outputs = [&] {
      const nn::LoraWeights adapted(run_.lora_layers);
      return step(batch_idx);
    }();
    run_.strategy->end_evaluation_round();
    return outputs;
  }

  Outputs step(int64_t batch_idx) {
    const std::vector<MicroBatch> parts =
        splits_ ? run_.strategy->split(module_, batch_, stage_) : std::vector<MicroBatch>();
    if (parts.empty()) {
      const auto eager = [&](const Batch& batch) {
        const auto guard = run_.strategy->precision().forward_guard();
        return (module_.*hooks_.module_step)(batch, batch_idx, run_.position.loader_idx);
      };
      std::optional<Outputs> outputs = captured_ ? captured_->step(batch_, left_, eager) : std::nullopt;
      return outputs ? std::move(*outputs) : eager(batch_);
    }
    std::vector<Outputs> of_parts(parts.size());
    run_parts(run_, parts, [&](const MicroBatch& part, size_t index) {
      of_parts[index] = (part.module->*hooks_.module_step)(part.batch, batch_idx, run_.position.loader_idx);
    });
    return join_outputs(run_, parts, of_parts);
  }

  RunState& run_;
  Services& services_;
  const RunningStage stage_;
  const EvaluationHooks& hooks_;
  LightningModule& module_;
  const LogScope step_scope_, epoch_scope_;
  const bool splits_, gathers_;
  EvaluationSteps* const captured_;  // nullptr: there are none
  const OnOutputs on_outputs_;
  HeldBatch held_;
  Batch& batch_ = held_.get();
  int64_t samples_ = 0;
  bool all_have_batch_ = true;   // every rank has one in this round
  std::optional<int64_t> left_;  // batches of the loader after the present one, if known
  bool abandons_ = true;
};

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

int64_t sum_over_ranks(const RunState& run, int64_t count) {
  if (run.world_size() == 1) return count;
  return run.collectives().all_reduce(at::full({}, count, at::kLong), ReduceOp::sum).item<int64_t>();
}

}  // namespace

static EvalReport evaluate_without_gradients(RunState& run, Services& services, RunningStage stage,
                                             std::optional<int64_t> batch_limit) {
  RngGuard rng_guard(run.strategy->devices());
  const NoGradients no_gradients(run);
  const EvaluationHooks& hooks = hooks_of(stage);
  const ModeGuard modes(run, services, hooks);
  LightningModule& module = *run.model;
  EvalReport report;
  run.position.filtered = {};
  if (!run.position.sanity_checking)
    run.position.filtered = {.step = run.counters.global_step, .epoch = run.counters.epoch + 1};
  const int64_t samples = EvaluationPass(run, services, stage, [](size_t, const Outputs&, int64_t) {}).run(batch_limit);
  report.samples = sum_over_ranks(run, samples);
  services.rows.end_batch(stage, true);
  const auto matrices = services.metrics.close_epoch(stage, services.logs, &run.collectives());
  const Metrics values = services.logs.take(services.logs.close_epoch(stage), &run.collectives());
  send_metrics(run, values, row_place(run));
  send_matrices(run, matrices, row_place(run));
  report.loaders = by_loader(values, run.stages[stage].loaders.size());
  report.captured_batches = run.captured_evaluation.batches;
  report.not_captured = run.captured_evaluation.refused;
  // The values are known, so the validation counts as complete in the hooks of its end.
  if (stage == RunningStage::validate && run.fn == TrainerFn::fit && !run.position.sanity_checking)
    ++run.counters.validations;
  // Callbacks that stop or write checkpoints act on this epoch's values.
  run.each_due_callback(LogScope::forbidden, hooks.names.end, [&](Callback& c) { (c.*hooks.end)(services.context); });
  (module.*hooks.module_end)();
  (module.*hooks.model_train)();
  return report;
}

EvalReport evaluate(RunState& run, Services& services, RunningStage stage, std::optional<int64_t> batch_limit) {
  const double started = services.context.elapsed_s();
  const auto timer = run.actions.time(stage == RunningStage::validate ? "validation" : "test");
  const auto in_stage = enter_stage(run, stage);
  run.strategy->before_evaluation(*run.model);
  EvalReport report = evaluate_without_gradients(run, services, stage, batch_limit);
  if (run.fn == TrainerFn::fit) run.strategy->after_evaluation(*run.model);
  report.seconds = services.context.elapsed_s() - started;
  return report;
}

void validate_in_fit(RunState& run, Services& services, std::optional<int64_t> batch_limit) {
  try {
    evaluate(run, services, RunningStage::validate, batch_limit);
    if (!run.validation.logged) run.validation.logged = services.logs.known_names();
  } catch (const StepNotOverridden&) {
    run.position.failed_in.clear();
    run.strategy->after_evaluation(*run.model);
    warn_no_validation_step();
    run.validation.runs = false;
  }
}

void warn_no_validation_step() {
  log::warn("trainer.no_validation_step",
            cat("there is validation data, but the module has no validation_step, whose declaration is `",
                expected_step("validation_step"), "`; validation is skipped"));
}

// Names of the classes that the predictions are about, as far as the data module exports them.
static std::vector<std::string> names_of_classes(const DataModule* data, const std::vector<PredictedShare>& shares) {
  const auto is_classified = [](const PredictedShare& share) {
    return share.samples == 0 || share.outputs.contains("probabilities");
  };
  if (data == nullptr || std::none_of(shares.begin(), shares.end(), is_classified)) return {};
  const StateTree facts = data->exported_values();
  if (!facts.contains("classes") || !facts.at("classes").is_list()) return {};
  std::vector<std::string> names;
  for (const StateTree& name : facts.at("classes").as_list()) {
    if (!name.holds<std::string>()) return {};
    names.push_back(name.as_string());
  }
  return names;
}

PredictReport predict(RunState& run, Services& services) {
  const auto in_stage = enter_stage(run, RunningStage::predict);
  run.strategy->before_evaluation(*run.model);
  RngGuard rng_guard(run.strategy->devices());
  const NoGradients no_gradients(run);
  const ModeGuard modes(run, services, hooks_of(RunningStage::predict));
  PredictReport report;
  std::vector<PredictedBatches> collected(run.stages[RunningStage::predict].loaders.size());
  bool keeps = true;
  for (const auto& callback : run.callbacks) keeps = keeps && !callback->writes_predictions();
  const auto collect = [&](size_t loader, const Outputs& outputs, int64_t count) {
    if (keeps) collected[loader].add(outputs, count, *run.position.evaluated);
  };
  report.samples = EvaluationPass(run, services, RunningStage::predict, collect).run(std::nullopt);
  report.captured_batches = run.captured_evaluation.batches;
  report.not_captured = run.captured_evaluation.refused;
  run.each_callback(LogScope::forbidden, "on_predict_end", [&](Callback& c) { c.on_predict_end(services.context); });
  run.model->on_predict_end();
  run.model->on_predict_model_train();
  // Returned tensors must be usable in autograd.
  const c10::InferenceMode normal(false);
  std::vector<PredictedShare> shares;
  for (size_t l = 0; keeps && l < collected.size(); ++l) {
    shares.push_back(collected[l].take(run.stages[RunningStage::predict].loaders[l]->shares_in_turns()));
    report.loaders.push_back(shares.back().outputs);
  }
  if (keeps && !run.run_dir.empty())
    report.files = write_predictions(run.collectives(), run.run_dir, shares, kPredictionBlock,
                                     names_of_classes(run.data.module.get(), shares), run.data.module.get());
  report.samples = sum_over_ranks(run, report.samples);
  return report;
}

}  // namespace fulgur::detail
