#include "captured_step.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <exception>
#include <mutex>

#include "fulgur/core/clip.h"
#include "fulgur/core/log.h"
#include "fulgur/core/text.h"

namespace fulgur::detail {
namespace {

// Slots of logged values, optimizer state and the kernels' choices are made in these.
constexpr int64_t kWarmUps = 3;

// The operation that a recording stopped at: the outermost that an exception left. Backward runs in a thread of its
// own, so the callback is global; operations of other threads that fail at the same time are not told apart.
class FailedOperation {
 public:
  FailedOperation()
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback(
                [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; },
                [](const at::RecordFunction& function, at::ObserverContext*) {
                  if (std::uncaught_exceptions() == 0) return;
                  const std::lock_guard lock(mutex());
                  left() = function.name();
                })
                .scopes({at::RecordScope::FUNCTION}))) {
    const std::lock_guard lock(mutex());
    left().clear();
  }
  ~FailedOperation() { at::removeCallback(handle_); }
  FailedOperation(const FailedOperation&) = delete;
  FailedOperation& operator=(const FailedOperation&) = delete;
  static std::string take() {
    const std::lock_guard lock(mutex());
    return left();
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
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
  if (planned.optimizer->needs_closure())
    return cat(planned.optimizer->name(), " evaluates its loss several times in a step");
  if (run.accumulation_ != 1 || o.accumulate_grad_batches != 1) return "accumulate_grad_batches is not 1";
  if (o.debug) return "debug is true, which reads values in each step";
  if (o.detect_anomaly) return "detect_anomaly is true, which reads values in each step";
  if (o.check_every > 0) return "check_every is not 0, which reads values in a step";
  if (run.world_size() > 1) return cat("strategy ", run.strategy->name(), " exchanges gradients between processes");
  if (run.strategy->splits_batches()) return cat("strategy ", run.strategy->name(), " cuts batches into parts");
  for (const auto& [hook, name, of_callbacks] : kInside) {
    if (run.model->overridden().has(hook))
      return cat("the module overrides ", name, ", which lies inside the captured step");
    for (const auto& callback : run.callbacks)
      if (of_callbacks && callback->overridden().has(hook))
        return cat(callback->state_key(), " overrides ", name, ", which lies inside the captured step");
  }
  auto* const recordable = dynamic_cast<RecordableStep*>(planned.optimizer.get());
  if (!recordable) return cat(planned.optimizer->name(), " is no fulgur::RecordableStep");
  if (!planned.optimizer->keep_rates_on_device())
    return cat(planned.optimizer->name(), " takes its learning rate from the host");
  if (planned.scheduler && planned.scheduler->scheduler->momentum_at(0) && !recordable->keep_momentum_on_device())
    return cat("the schedule moves the momentum, which ", planned.optimizer->name(), " takes from the host");
  return std::nullopt;
}

CapturedStep::CapturedStep(Run& run, std::unique_ptr<GraphCapture> graph, Body body)
    : run_(run),
      optimizer_(dynamic_cast<RecordableStep*>(run.plan.optimizers.front().optimizer.get())),
      graph_(std::move(graph)),
      body_(std::move(body)) {}

CapturedStep::~CapturedStep() {
  if (replays_ > 0) log::info(cat("cuda_graph: ", replays_, " steps were made by the captured one"));
}

void CapturedStep::give_up(const std::string& reason) {
  given_up_ = true;
  recorded_ = false;
  graph_->forget();
  log::warn("trainer.not_captured",
            cat("cuda_graph: the steps are not captured: ", reason, ". The run goes on without"));
}

bool CapturedStep::same_kind(const Batch& batch) const {
  auto mine = inputs_.begin();
  for (const auto& [name, value] : batch) {
    if (mine == inputs_.end() || mine->first != name) return false;
    const auto* a = std::get_if<Tensor>(&mine->second);
    const auto* b = std::get_if<Tensor>(&value);
    if (!a || !b || a->sizes() != b->sizes() || a->scalar_type() != b->scalar_type() || a->device() != b->device())
      return false;
    ++mine;
  }
  return mine == inputs_.end();
}

void CapturedStep::remember_modes() {
  learning_.clear();
  training_.clear();
  for (const auto& [name, value] : unique_parameters(*run_.model)) learning_.emplace_back(value, value.requires_grad());
  for (auto& part : run_.model->modules(/*include_self=*/true)) {
    const bool training = part->is_training();
    training_.emplace_back(std::move(part), training);
  }
  layout_ = optimizer_->layout();
}

bool CapturedStep::out_of_date() const {
  return layout_ != optimizer_->layout() ||
         std::any_of(learning_.begin(), learning_.end(),
                     [](const auto& pair) { return pair.first.requires_grad() != pair.second; }) ||
         std::any_of(training_.begin(), training_.end(),
                     [](const auto& pair) { return pair.first->is_training() != pair.second; });
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
  remember_modes();
  stopped_at_.clear();
  optimizer_->set_recording(true);
  try {
    graph_->record([this, batch_idx] {
      const FailedOperation failed;
      try {
        run_.logs.start_recording(run_.device());
        output_ = body_(inputs_, batch_idx);
        additions_ = run_.logs.take_recording();
      } catch (...) {
        stopped_at_ = FailedOperation::take();
        throw;
      }
    });
  } catch (const std::exception& error) {
    undo_step();
    std::string what = error.what();
    what = what.substr(0, what.find('\n'));
    return give_up(stopped_at_.empty() ? what : cat("at ", stopped_at_, ": ", what)), false;
  } catch (...) {
    undo_step();
    throw;
  }
  optimizer_->set_recording(false);
  if (!output_.loss.defined()) {
    undo_step();
    return give_up("training_step returned no loss"), false;
  }
  return true;
}

void CapturedStep::undo_step() {
  optimizer_->set_recording(false);
  run_.logs.take_recording();
  run_.strategy->precision().abandon_step();
  run_.plan.optimizers.front().optimizer->zero_grad();
  GradientNorm::take(*run_.model);
  run_.window_done = run_.window_losses = 0;
}

void CapturedStep::start_over() {
  recorded_ = false;
  warm_ups_ = 0;
  output_ = {};
  graph_->forget();
}

std::shared_ptr<void> CapturedStep::warm_up() {
  if (given_up_ || recorded_ || warm_ups_ == kWarmUps) return nullptr;
  ++warm_ups_;
  return graph_->enter_stream();
}

std::optional<StepOutput> CapturedStep::step(const Batch& batch, int64_t batch_idx) {
  if (given_up_ || run_.accumulation_ != 1) return std::nullopt;
  if (recorded_ && out_of_date()) start_over();
  if (!recorded_ && warm_ups_ < kWarmUps) return std::nullopt;
  if (!recorded_) {
    if (!record(batch, batch_idx)) return std::nullopt;
    if (records_++ == 0) log::info("cuda_graph: the step is captured");
    recorded_ = true;
  } else {
    if (!same_kind(batch)) return std::nullopt;
    auto input = inputs_.begin();
    for (const auto& [name, value] : batch)
      std::get<Tensor>((input++)->second).copy_(std::get<Tensor>(value), /*non_blocking=*/true);
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
