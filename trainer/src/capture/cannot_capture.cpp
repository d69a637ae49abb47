#include "capture/cannot_capture.h"

#include <algorithm>
#include <array>

#include "fulgur/core/device/recordable_hooks.h"
#include "fulgur/core/device/recordable_step.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/fsdp.h"
#include "fulgur/strategies/mesh.h"
#include "run/evaluation_names.h"
#include "run/services.h"

namespace fulgur::detail {
namespace {

// Hooks that run inside the captured step: their work on the host would be done only once.
struct Inside {
  Hook hook;
  const char* name;
  bool of_callbacks = false;  // callbacks have this hook too
  bool is_recorded = false;   // it is part of what is recorded, so RecordableHooks may override it
};
constexpr std::array kInside{Inside{Hook::on_before_backward, "on_before_backward", true, true},
                             Inside{Hook::on_after_backward, "on_after_backward", true, true},
                             Inside{Hook::on_before_optimizer_step, "on_before_optimizer_step", true, true},
                             Inside{Hook::on_before_zero_grad, "on_before_zero_grad", true},
                             Inside{Hook::backward, "backward"},
                             Inside{Hook::configure_gradient_clipping, "configure_gradient_clipping", false, true},
                             Inside{Hook::optimizer_step, "optimizer_step"},
                             Inside{Hook::optimizer_zero_grad, "optimizer_zero_grad"}};

// The exchanges of ddp, and of what derives from it, must run entirely on the device, or on the CPU be operations.
std::optional<std::string> cannot_capture_exchanges(const RunState& run) {
  const auto* ddp = dynamic_cast<const DDPStrategy*>(run.strategy.get());
  const std::string name = run.strategy->name();
  if (!ddp) return cat("strategy ", name, " exchanges gradients between processes");
  const DDPStrategy::Options& o = ddp->options();
  const bool is_on_cpu = run.device().is_cpu();
  const char* const recorded = is_on_cpu ? "gloo" : "nccl";
  if (o.process_group_backend != "auto" && o.process_group_backend != recorded)
    return cat(name, " exchanges gradients over ", o.process_group_backend, is_on_cpu ? "" : ", on the host",
               "; set its process_group_backend to ", recorded);
  if (o.find_unused_parameters)
    return cat(name,
               "'s find_unused_parameters is true, for which the host looks at each step's gradients; set it to "
               "false");
  if (o.static_graph)
    return cat(name, "'s static_graph is true, for which the host treats the first step differently; set it to false");
  if (o.gradient_as_bucket_view)
    return cat(name,
               "'s gradient_as_bucket_view is true, which puts gradients in memory that is not recorded; set it "
               "to false");
  if (o.compression != DDPStrategy::Compression::none)
    return cat(name, "'s compression is ", enum_text(o.compression),
               ", which the host sets up in each exchange; set it to none");
  if (o.local_sgd)
    return cat(name, "'s local_sgd is set, with which steps change when they begin to be local; remove it");
  if (run.options.sync_batchnorm) return "sync_batchnorm is true, which exchanges inside the forward; set it to false";
  if (!run.model->buffers().empty() && run.accumulation != 1)
    return cat(name, " exchanges the module's buffers once per accumulation window; set accumulate_grad_batches to 1");
  if (!run.stages.at(RunningStage::train).loaders.front()->size())
    return "ranks cannot agree on the length of their loaders; use a loader of known length";
  return std::nullopt;
}

}  // namespace

bool schedules_momentum(const PlannedOptimizer& planned) {
  return planned.scheduler && planned.scheduler->scheduler->momentum_at(0);
}

const char* hook_after_steps(const LightningModule& module) {
  const HookMask& overridden = ComponentAccess::overridden(module);
  if (overridden.has(Hook::on_train_batch_end)) return "on_train_batch_end";
  if (overridden.has(Hook::on_train_epoch_end)) return "on_train_epoch_end";
  return overridden.has(Hook::on_train_end) ? "on_train_end" : nullptr;
}

std::vector<std::pair<std::string, Tensor>> captured_state(const LightningModule& module) {
  std::vector<std::pair<std::string, Tensor>> state;
  for (const auto& [name, value] : unique_parameters(module)) state.emplace_back(cat("parameter '", name, "'"), value);
  for (const auto& item : module.named_buffers())
    if (item.value().defined()) state.emplace_back(cat("buffer '", item.key(), "'"), item.value());
  return state;
}

std::string why_no_recorder(const RunState& run) {
  const at::Device device = run.device();
  if (!device.is_cuda() && !device.is_cpu())
    return cat("only the CPU and a CUDA device can; this run is on ", device.str());
  const std::string strategy = cat("strategy ", run.strategy->name());
  if (device.is_cpu()) return strategy + " has no recorder for the CPU; use ddp, or one process on one device";
  if (dynamic_cast<const MeshStrategy*>(run.strategy.get()))
    return "mesh divides layers among ranks along tensor or pipeline, whose exchanges are not recorded; use data and "
           "shard alone";
  return strategy + " computes on several devices in one process";
}

std::optional<std::string> cannot_capture(const RunState& run) {
  const TrainerOptions& o = run.options;
  if (run.step.manual) return "the module uses manual optimization (automatic_optimization() is false)";
  if (run.plan.optimizers.empty()) return "there is no optimizer";
  const PlannedOptimizer& planned = run.plan.optimizers.front();
  if (planned.optimizer->needs_closure())
    return cat(planned.optimizer->name(), " evaluates its loss several times in a step");
  if (!run.judges.empty()) return "a callback reads the loss before each step, to decide whether the step is made";
  if (o.debug) return "debug is true, which reads values in each step; set it to false";
  if (o.detect_anomaly) return "detect_anomaly is true, which reads values in each step; set it to false";
  if (o.check_every > 0) return "check_every is not 0, which reads values in a step; set it to 0";
  if (const auto* fsdp = dynamic_cast<const FSDPStrategy*>(run.strategy.get()); fsdp && fsdp->offloads())
    return cat(fsdp->name(), "'s offload is optimizer, whose steps run on the host; set it to none");
  if (run.world_size() > 1) {
    if (auto reason = cannot_capture_exchanges(run)) return reason;
  }
  if (run.strategy->splits_batches()) return cat("strategy ", run.strategy->name(), " splits batches into parts");
  const bool has_recordable_hooks = dynamic_cast<const RecordableHooks*>(run.model.get()) != nullptr;
  for (const auto& [hook, name, of_callbacks, is_recorded] : kInside) {
    if (ComponentAccess::overridden(*run.model).has(hook) && !(is_recorded && has_recordable_hooks))
      return cat("the module overrides ", name, ", which runs inside the captured step",
                 is_recorded ? "; if the hook consists of operations on tensors, let the module also derive from "
                               "fulgur::RecordableHooks"
                             : "");
    for (const auto& callback : run.callbacks)
      if (of_callbacks && ComponentAccess::overridden(*callback).has(hook))
        return cat(callback->state_key(), " overrides ", name, ", which runs inside the captured step");
  }
  const auto* const recordable = dynamic_cast<const RecordableStep*>(planned.optimizer.get());
  if (!recordable) return cat(planned.optimizer->name(), " is not a fulgur::RecordableStep");
  if (!planned.optimizer->can_keep_rates_on_device())
    return cat(planned.optimizer->name(),
               " reads its learning rate from the host; use an optimizer of Fulgur, or override "
               "can_keep_rates_on_device() and keep_rates_on_device()");
  if (schedules_momentum(planned) && !recordable->can_keep_momentum_on_device())
    return cat("the schedule changes the momentum, which ", planned.optimizer->name(), " reads from the host");
  return std::nullopt;
}

std::optional<std::string> cannot_keep_bits(const RunState& run) {
  const OnNonFinite policy = run.options.on_nonfinite;
  if (policy == OnNonFinite::rollback || policy == OnNonFinite::stop)
    return cat("on_nonfinite is ", enum_text(policy),
               ", and a captured step would act some batches later than an eager one; use raise, skip or off");
  const PlannedOptimizer& planned = run.plan.optimizers.front();
  const auto is_short = [](const Tensor& parameter) { return parameter.itemsize() == 2; };
  for (const ParamGroup& group : planned.optimizer->groups())
    if (std::ranges::any_of(group.params, is_short) &&
        !dynamic_cast<const RecordableStep&>(*planned.optimizer).keeps_bits_of_short_dtypes())
      return cat("captured steps of ", planned.optimizer->name(),
                 " on the CPU would round parameters of 16 bits otherwise than eager ones");
  return std::nullopt;
}

std::optional<std::string> cannot_capture_evaluation(const RunState& run, RunningStage stage,
                                                     const GraphCapture* graph) {
  if (!ComponentAccess::overridden(*run.model).exact)
    return "the module's class is not known; pass it to the Trainer with its own type";
  if (!graph || !graph->compares_recordings())
    return cat("strategy ", run.strategy->name(), " has no recorder for the CPU; use one process on one device");
  if (const char* const hook = hook_after_batches(*run.model, stage))
    return cat("the module overrides ", hook,
               ", for which its steps may gather values in members, as captured ones would not");
  return std::nullopt;
}

std::string why_unreadable(const Batch& batch) {
  for (const auto& [name, value] : batch) {
    const auto* const tensor = std::get_if<Tensor>(&value);
    if (!tensor) return cat("'", escape_controls(name), "' of the batch is not a tensor");
    if (tensor->defined() && tensor->layout() == at::kStrided && !tensor->is_non_overlapping_and_dense())
      return cat("'", escape_controls(name),
                 "' of the batch is a view whose elements have gaps or are repeated in memory; return its contiguous() "
                 "from the transfer hook or the collate function");
  }
  return {};
}

}  // namespace fulgur::detail
