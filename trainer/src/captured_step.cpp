#include "captured_step.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <exception>
#include <mutex>

#include "fulgur/core/log.h"
#include "fulgur/core/text.h"

namespace fulgur::detail {
namespace {

// Slots of logged values, optimizer state and the kernels' choices are made in these.
constexpr int64_t kWarmUps = 3;

// The operation that a recording stopped at. Backward runs in a thread of its own, so the callback is global.
class LastOperation {
 public:
  LastOperation()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(
                                          [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
                                            const std::lock_guard lock(mutex());
                                            begun() = function.name();
                                            return nullptr;
                                          },
                                          [](const at::RecordFunction& function, at::ObserverContext*) {
                                            // Left by an exception, the outermost last.
                                            if (std::uncaught_exceptions() == 0) return;
                                            const std::lock_guard lock(mutex());
                                            left() = function.name();
                                          })
                                          .scopes({at::RecordScope::FUNCTION}))) {
    const std::lock_guard lock(mutex());
    begun().clear();
    left().clear();
  }
  ~LastOperation() { at::removeCallback(handle_); }
  LastOperation(const LastOperation&) = delete;
  LastOperation& operator=(const LastOperation&) = delete;
  static std::string take() {
    const std::lock_guard lock(mutex());
    return left().empty() ? begun() : left();
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::string& begun() {
    static std::string name;
    return name;
  }
  static std::string& left() {
    static std::string name;
    return name;
  }
  at::CallbackHandle handle_;
};

// Those that lie between the batch's arrival and its end: what they do on the host would be done once.
struct Inside {
  Hook hook;
  const char* name;
  bool of_callbacks = false;  // too
};
constexpr std::array kInside{Inside{Hook::on_before_backward, "on_before_backward", true},
                             Inside{Hook::on_after_backward, "on_after_backward", true},
                             Inside{Hook::on_before_optimizer_step, "on_before_optimizer_step", true},
                             Inside{Hook::on_before_zero_grad, "on_before_zero_grad", true},
                             Inside{Hook::backward, "backward"},
                             Inside{Hook::configure_gradient_clipping, "configure_gradient_clipping"},
                             Inside{Hook::optimizer_step, "optimizer_step"},
                             Inside{Hook::optimizer_zero_grad, "optimizer_zero_grad"}};

}  // namespace

std::optional<std::string> cannot_capture(const Run& run) {
  const TrainerOptions& o = run.options;
  if (run.manual) return "the module optimizes by itself (automatic_optimization() is false)";
  if (run.plan.optimizers.empty()) return "there is no optimizer";
  const PlannedOptimizer& planned = run.plan.optimizers.front();
  if (planned.optimizer->needs_closure()) return cat(planned.optimizer->name(), " evaluates its loss several times in a step");
  if (run.accumulation_ != 1 || o.accumulate_grad_batches != 1) return "accumulate_grad_batches is not 1";
  if (o.debug) return "debug is true, which reads values in each step";
  if (o.detect_anomaly) return "detect_anomaly is true, which reads values in each step";
  if (o.check_every > 0) return "check_every is not 0, which reads values in a step";
  if (run.world_size() > 1) return cat("strategy ", run.strategy->name(), " exchanges gradients between processes");
  if (run.strategy->splits_batches()) return cat("strategy ", run.strategy->name(), " cuts batches into parts");
  for (const auto& [hook, name, of_callbacks] : kInside) {
    if (run.model->overridden().has(hook)) return cat("the module overrides ", name, ", which lies inside the captured step");
    for (const auto& callback : run.callbacks)
      if (of_callbacks && callback->overridden().has(hook)) return cat(callback->state_key(), " overrides ", name, ", which lies inside the captured step");
  }
  if (planned.scheduler && planned.scheduler->scheduler->momentum_at(0)) return "the schedule moves the momentum, which a captured step keeps";
  if (!planned.optimizer->keep_rates_on_device()) return cat(planned.optimizer->name(), " takes its learning rate from the host");
  return std::nullopt;
}

CapturedStep::CapturedStep(Run& run, std::unique_ptr<GraphCapture> graph, Body body) : run_(run), graph_(std::move(graph)), body_(std::move(body)) {}

CapturedStep::~CapturedStep() {
  if (recorded_) log::info(cat("cuda_graph: ", replays_, " steps were made by the captured one"));
}

void CapturedStep::give_up(const std::string& reason) {
  given_up_ = true;
  recorded_ = false;
  log::warn("trainer.not_captured", cat("cuda_graph: the steps are not captured: ", reason, ". The run goes on without"));
}

bool CapturedStep::same_kind(const Batch& batch) const {
  auto mine = inputs_.begin();
  for (const auto& [name, value] : batch) {
    if (mine == inputs_.end() || mine->first != name) return false;
    const auto* a = std::get_if<Tensor>(&mine->second);
    const auto* b = std::get_if<Tensor>(&value);
    if (!a || !b || a->sizes() != b->sizes() || a->scalar_type() != b->scalar_type() || a->device() != b->device()) return false;
    ++mine;
  }
  return mine == inputs_.end();
}

std::vector<bool> CapturedStep::modes() const {
  std::vector<bool> modes;
  for (const auto& [name, value] : unique_parameters(*run_.model)) modes.push_back(value.requires_grad());
  modes.push_back(run_.model->is_training());
  for (const auto& part : run_.model->modules(/*include_self=*/false)) modes.push_back(part->is_training());
  return modes;
}

bool CapturedStep::record(const Batch& batch, int64_t batch_idx) {
  Optimizer& optimizer = *run_.plan.optimizers.front().optimizer;
  inputs_ = Batch();
  for (const auto& [name, value] : batch) {
    const auto* tensor = std::get_if<Tensor>(&value);
    if (!tensor) return give_up(cat("'", escape_controls(name), "' of the batch is not a tensor")), false;
    inputs_.add(name, tensor->clone());
  }
  optimizer.upload_rates();
  modes_ = modes();
  try {
    graph_->record([this, batch_idx] {
      const LastOperation last;
      try {
        run_.logs.start_recording(run_.device());
        output_ = body_(inputs_, batch_idx);
        additions_ = run_.logs.take_recording();
      } catch (...) {
        stopped_at_ = LastOperation::take();
        throw;
      }
    });
  } catch (const std::exception& error) {
    run_.logs.take_recording();
    run_.strategy->precision().abandon_step();
    optimizer.zero_grad();
    std::string what = error.what();
    what = what.substr(0, what.find('\n'));
    return give_up(stopped_at_.empty() ? what : cat("at ", stopped_at_, ": ", what)), false;
  }
  if (!output_.loss.defined()) return give_up("training_step returned no loss"), false;
  return true;
}

std::optional<StepOutput> CapturedStep::step(const Batch& batch, int64_t batch_idx) {
  if (given_up_ || run_.accumulation_ != 1) return std::nullopt;
  if (warm_ups_ < kWarmUps) {
    ++warm_ups_;
    return std::nullopt;
  }
  // Layers are frozen and freed between epochs.
  if (recorded_ && batch_idx == 0 && modes() != modes_) recorded_ = false;
  if (!recorded_) {
    if (!record(batch, batch_idx)) return std::nullopt;
    if (replays_ == 0) log::info("cuda_graph: the step is captured");
    recorded_ = true;
  } else {
    if (!same_kind(batch)) return std::nullopt;
    auto input = inputs_.begin();
    for (const auto& [name, value] : batch) std::get<Tensor>((input++)->second).copy_(std::get<Tensor>(value), /*non_blocking=*/true);
    run_.plan.optimizers.front().optimizer->upload_rates();
  }
  run_.logs.before_replay(additions_);
  graph_->replay();
  run_.logs.after_replay(additions_);
  run_.finite.saw_replayed_step();
  ++replays_;
  return output_;
}

}  // namespace fulgur::detail
