#pragma once

#include "trainer/boring.h"

#include "fulgur/core/text/text.h"

namespace fulgur::test {

using Calls = std::vector<std::string>;

/// Writes down every hook of a callback; `mark` tells several of them apart.
struct Recorder : Callback {
  Calls& calls;
  std::string mark;
  Phase phase_;
  explicit Recorder(Calls& list, std::string mark_text = "c", Phase phase_of = Phase::observe)
      : calls(list), mark(std::move(mark_text)), phase_(phase_of) {}
  Phase phase() const override { return phase_; }
  void note(std::string_view hook) { calls.push_back(cat(mark, ".", hook)); }
  void note(std::string_view hook, int64_t i) { calls.push_back(cat(mark, ".", hook, " ", i)); }

  void setup(RunContext&, TrainerFn fn) override { note(cat("setup(", name_of(fn), ")")); }
  void teardown(RunContext&, TrainerFn) override { note("teardown"); }
  void on_exception(RunContext&, const std::exception&) override { note("on_exception"); }
  void on_train_batch_start(RunContext&, const Batch&, int64_t i) override { note("on_train_batch_start", i); }
  void on_train_batch_end(RunContext&, const StepOutput&, const Batch&, int64_t i) override {
    note("on_train_batch_end", i);
  }
  void on_before_zero_grad(RunContext&, Optimizer&) override { note("on_before_zero_grad"); }
  void on_before_backward(RunContext&, const Tensor&) override { note("on_before_backward"); }
  void on_after_backward(RunContext&) override { note("on_after_backward"); }
  void on_before_optimizer_step(RunContext&, Optimizer&) override { note("on_before_optimizer_step"); }
  void on_load_checkpoint(RunContext&, const StateTree&) override { note("on_load_checkpoint"); }
  void on_save_checkpoint(RunContext&, StateTree&) override { note("on_save_checkpoint"); }
#define FULGUR_RECORD(hook) \
  void hook(RunContext&) override { note(#hook); }
  FULGUR_RECORD(on_fit_start)
  FULGUR_RECORD(on_fit_end)
  FULGUR_RECORD(on_sanity_check_start)
  FULGUR_RECORD(on_sanity_check_end)
  FULGUR_RECORD(on_train_start)
  FULGUR_RECORD(on_train_end)
  FULGUR_RECORD(on_train_epoch_start)
  FULGUR_RECORD(on_train_epoch_end)
#define FULGUR_RECORD_EVALUATION(kind)                                                                 \
  FULGUR_RECORD(on_##kind##_start)                                                                     \
  FULGUR_RECORD(on_##kind##_end)                                                                       \
  FULGUR_RECORD(on_##kind##_epoch_start)                                                               \
  FULGUR_RECORD(on_##kind##_epoch_end)                                                                 \
  void on_##kind##_batch_start(RunContext&, const Batch&, int64_t i, int64_t) override {               \
    note("on_" #kind "_batch_start", i);                                                               \
  }                                                                                                    \
  void on_##kind##_batch_end(RunContext&, const Outputs&, const Batch&, int64_t i, int64_t) override { \
    note("on_" #kind "_batch_end", i);                                                                 \
  }
  FULGUR_RECORD_EVALUATION(validation)
  FULGUR_RECORD_EVALUATION(test)
  FULGUR_RECORD_EVALUATION(predict)
#undef FULGUR_RECORD_EVALUATION
#undef FULGUR_RECORD
};

/// Writes down every hook of a module.
struct RecordingModule : SelfPlanned {
  Calls& calls;
  std::optional<ScheduleInterval> schedule;  ///< when an exponential schedule steps
  explicit RecordingModule(Calls& list) : calls(list) {}
  /// Called in each hook.
  virtual void called(std::string_view /*hook*/) {}
  void note(std::string_view hook) {
    called(hook);
    calls.emplace_back(hook);
  }
  void note(std::string_view hook, int64_t i) {
    called(hook);
    calls.push_back(cat(hook, " ", i));
  }

  void setup(TrainerFn) override { note("setup"); }
  void teardown(TrainerFn) override { note("teardown"); }
  OptimizerPlan configure_optimizers() override {
    note("configure_optimizers");
    if (!schedule) return SelfPlanned::configure_optimizers();
    return {
        std::make_shared<SGD>(SGD::Options{.lr = 0.05}),
        SchedulerConfig{.scheduler = std::make_shared<ExponentialLR>(ExponentialLR::Options{}), .interval = *schedule}};
  }
  std::vector<std::shared_ptr<Callback>> configure_callbacks() override {
    note("configure_callbacks");
    return {};
  }
  int on_train_batch_start(const Batch&, int64_t i) override {
    note("on_train_batch_start", i);
    return 0;
  }
  StepOutput training_step(const Batch& batch, int64_t i) override {
    note("training_step", i);
    return SelfPlanned::training_step(batch, i);
  }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t i) override { note("on_train_batch_end", i); }
  Batch on_before_batch_transfer(Batch b, int64_t) override {
    note("on_before_batch_transfer");
    return b;
  }
  Batch transfer_batch_to_device(Batch b, const at::Device&, int64_t) override {
    note("transfer_batch_to_device");
    return b;
  }
  Batch on_after_batch_transfer(Batch b, int64_t) override {
    note("on_after_batch_transfer");
    return b;
  }
  void on_before_zero_grad(Optimizer&) override { note("on_before_zero_grad"); }
  void optimizer_zero_grad(int64_t epoch, int64_t batch_idx, Optimizer& optimizer) override {
    note("optimizer_zero_grad");
    SelfPlanned::optimizer_zero_grad(epoch, batch_idx, optimizer);
  }
  void on_before_backward(const Tensor&) override { note("on_before_backward"); }
  void backward(const Tensor& loss, const BackwardOptions& options) override {
    note("backward");
    SelfPlanned::backward(loss, options);
  }
  void on_after_backward() override { note("on_after_backward"); }
  void on_before_optimizer_step(Optimizer&) override { note("on_before_optimizer_step"); }
  void configure_gradient_clipping(Optimizer&, std::optional<double>, ClipAlgorithm) override {
    note("configure_gradient_clipping");
  }
  void optimizer_step(int64_t epoch, int64_t batch_idx, OptimizerHandle& optimizer, const Closure& closure) override {
    note("optimizer_step");
    SelfPlanned::optimizer_step(epoch, batch_idx, optimizer, closure);
  }
  void lr_scheduler_step(LrScheduler& scheduler, std::optional<double> metric) override {
    note("lr_scheduler_step");
    SelfPlanned::lr_scheduler_step(scheduler, metric);
  }
  void on_load_checkpoint(const StateTree&) override { note("on_load_checkpoint"); }
  void on_save_checkpoint(StateTree&) override { note("on_save_checkpoint"); }
  Outputs validation_step(const Batch& b, int64_t i, int64_t) override {
    note("validation_step", i);
    return SelfPlanned::validation_step(b, i, 0);
  }
  Outputs test_step(const Batch& b, int64_t i, int64_t) override {
    note("test_step", i);
    return SelfPlanned::test_step(b, i, 0);
  }
  Outputs predict_step(const Batch& b, int64_t i, int64_t) override {
    note("predict_step", i);
    return SelfPlanned::predict_step(b, i, 0);
  }
#define FULGUR_RECORD(hook) \
  void hook() override { note(#hook); }
  FULGUR_RECORD(prepare_data)
  FULGUR_RECORD(configure_model)
  FULGUR_RECORD(on_fit_start)
  FULGUR_RECORD(on_fit_end)
  FULGUR_RECORD(on_train_start)
  FULGUR_RECORD(on_train_end)
  FULGUR_RECORD(on_train_epoch_start)
  FULGUR_RECORD(on_train_epoch_end)
  FULGUR_RECORD(on_validation_model_zero_grad)
#define FULGUR_RECORD_EVALUATION(kind)                                                                             \
  void on_##kind##_model_eval() override {                                                                         \
    note("on_" #kind "_model_eval");                                                                               \
    SelfPlanned::on_##kind##_model_eval();                                                                         \
  }                                                                                                                \
  void on_##kind##_model_train() override {                                                                        \
    note("on_" #kind "_model_train");                                                                              \
    SelfPlanned::on_##kind##_model_train();                                                                        \
  }                                                                                                                \
  FULGUR_RECORD(on_##kind##_start)                                                                                 \
  FULGUR_RECORD(on_##kind##_end)                                                                                   \
  FULGUR_RECORD(on_##kind##_epoch_start)                                                                           \
  FULGUR_RECORD(on_##kind##_epoch_end)                                                                             \
  void on_##kind##_batch_start(const Batch&, int64_t i, int64_t) override { note("on_" #kind "_batch_start", i); } \
  void on_##kind##_batch_end(const Outputs&, const Batch&, int64_t i, int64_t) override {                          \
    note("on_" #kind "_batch_end", i);                                                                             \
  }
  FULGUR_RECORD_EVALUATION(validation)
  FULGUR_RECORD_EVALUATION(test)
  FULGUR_RECORD_EVALUATION(predict)
#undef FULGUR_RECORD_EVALUATION
#undef FULGUR_RECORD
};

// ---- the expected sequences ----

inline void append(Calls& to, const Calls& more) { to.insert(to.end(), more.begin(), more.end()); }

/// Each hook of the callback, then of the module.
inline Calls both(std::initializer_list<std::string> hooks) {
  Calls out;
  for (const std::string& hook : hooks) {
    out.push_back("c." + hook);
    out.push_back(hook);
  }
  return out;
}

inline Calls transfer() { return {"on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"}; }

inline Calls train_batch(int64_t i, bool steps, bool schedule = false) {
  Calls out = transfer();
  append(out, both({cat("on_train_batch_start ", i)}));
  out.push_back(cat("training_step ", i));
  append(out, both({"on_before_backward"}));
  out.push_back("backward");
  append(out, both({"on_after_backward"}));
  if (steps) {
    append(out, both({"on_before_optimizer_step"}));
    append(out, {"configure_gradient_clipping", "optimizer_step"});
    if (schedule) out.push_back("lr_scheduler_step");
    append(out, both({"on_before_zero_grad"}));
    out.push_back("optimizer_zero_grad");
  }
  append(out, both({cat("on_train_batch_end ", i)}));
  return out;
}

/// `kind` is validation, test or predict.
inline Calls evaluation(const std::string& kind, int64_t batches) {
  Calls out{cat("on_", kind, "_model_eval")};
  append(out, both({cat("on_", kind, "_start"), cat("on_", kind, "_epoch_start")}));
  for (int64_t i = 0; i < batches; ++i) {
    append(out, transfer());
    append(out, both({cat("on_", kind, "_batch_start ", i)}));
    out.push_back(cat(kind, "_step ", i));
    append(out, both({cat("on_", kind, "_batch_end ", i)}));
  }
  append(out, both({cat("on_", kind, "_epoch_end"), cat("on_", kind, "_end")}));
  out.push_back(cat("on_", kind, "_model_train"));
  return out;
}

/// A validation inside a fit; not inside an accumulation window.
inline Calls validation(int64_t batches) {
  Calls out{"on_validation_model_zero_grad"};
  append(out, evaluation("validation", batches));
  return out;
}

inline Calls saved() { return both({"on_save_checkpoint"}); }

inline Calls beginning(const std::string& fn) {
  Calls out{"configure_callbacks", "prepare_data", cat("c.setup(", fn, ")"), "setup", "configure_model"};
  if (fn == "fit") out.push_back("configure_optimizers");
  return out;
}

inline Calls ending() { return {"c.teardown", "teardown"}; }

}  // namespace fulgur::test
