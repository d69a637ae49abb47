#include "loops/debug_checks.h"

#include <ATen/ops/isfinite.h>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

bool finite(const Tensor& value) { return !value.is_floating_point() || at::isfinite(value).all().item<bool>(); }

}  // namespace

void DebugChecks::check_batch(const Batch& batch) {
  const int64_t samples = batch.size();
  versions_.clear();
  for (const auto& [name, value] : batch) {
    const auto* tensor = std::get_if<Tensor>(&value);
    if (!tensor) continue;
    if (tensor->dim() == 0 || tensor->size(0) != samples)
      throw DataError(cat("[trainer.debug] every entry of a batch must have one row per sample; '", name, "' is ",
                          shape_text(tensor->sizes()), ", the batch has ", samples, " samples (",
                          run_.describe_position(), ")."));
    if (tensor->device() != run_.strategy->device())
      throw DataError(cat("[trainer.debug] the batch must be on ", run_.strategy->device().str(), "; '", name,
                          "' is on ", tensor->device().str(), " (", run_.describe_position(),
                          "). Does transfer_batch_to_device move it?"));
    versions_.emplace_back(tensor->unsafeGetTensorImpl(), tensor->_version());
    if (!finite(*tensor))
      throw DataError(
          cat("[trainer.debug] '", name, "' of the batch has NaN or infinity (", run_.describe_position(), ")."));
  }
}

void DebugChecks::check_batch_unwritten(const Batch& batch) {
  for (const auto& [name, value] : batch) {
    const auto* tensor = std::get_if<Tensor>(&value);
    if (!tensor) continue;
    for (const auto& [impl, version] : versions_)
      if (impl == tensor->unsafeGetTensorImpl() && version != tensor->_version())
        throw Error(cat("[trainer.debug] '", name, "' of the batch was written in place (", run_.describe_position(),
                        "). Its memory may belong to the data set, which then changes too. Write to a clone()."));
  }
}

void DebugChecks::check_loss(const Tensor& loss) {
  if (loss.device() != run_.strategy->device())
    throw Error(cat("[trainer.debug] the loss is on ", loss.device().str(), ", the run on ",
                    run_.strategy->device().str(), " (", run_.describe_position(), ")."));
  if (!finite(loss))
    throw NonFiniteError(
        cat("[trainer.debug] the loss is ", loss.item<double>(), " (", run_.describe_position(), ")."));
}

void DebugChecks::check_gradients() {
  std::vector<std::string> bad, missing;
  // Each rank has parts of the exchanged gradients.
  bool divided = false;
  for (const PlannedOptimizer& planned : run_.plan.optimizers) {
    if (!planned.optimizer->gradients_are_shards()) continue;
    divided = true;
    for (const ParamGroup& group : planned.optimizer->groups())
      for (size_t i = 0; i < group.params.size(); ++i)
        if (const Tensor& part = group.params[i].grad();
            part.defined() && !run_.strategy->precision().loss_scale() && !finite(part))
          bad.push_back(group.names[i]);
  }
  for (const auto& [name, value] : unique_parameters(*run_.model)) {
    if (!value.requires_grad()) continue;
    const Tensor& gradient = value.grad();
    if (!gradient.defined()) {
      if (divided) continue;
      // With manual optimization, one backward need not reach all parameters.
      if (!run_.step.manual && without_gradient_.insert(name).second) missing.push_back(name);
      continue;
    }
    if (gradient.device() != value.device() || gradient.sizes() != value.sizes())
      throw Error(cat("[trainer.debug] the gradient of '", name, "' is ", shape_text(gradient.sizes()), " on ",
                      gradient.device().str(), ", the parameter ", shape_text(value.sizes()), " on ",
                      value.device().str(), " (", run_.describe_position(), ")."));
    // Gradients of a scaled loss may overflow: the scale is then reduced.
    if (!run_.strategy->precision().loss_scale() && !finite(gradient)) bad.push_back(name);
  }
  if (!missing.empty())
    log::warn("trainer.debug_no_gradient",
              cat("these parameters got no gradient: ", join(missing), ". Are they used in the loss?"));
  if (!bad.empty())
    throw NonFiniteError(cat("[trainer.debug] there is NaN or infinity in the gradients of ", join(bad), " (",
                             run_.describe_position(), ")."));
}

void DebugChecks::check_parameters() {
  std::vector<std::string> bad;
  if (run_.strategy->divides_parameters()) {
    for (const PlannedOptimizer& planned : run_.plan.optimizers)
      for (const ParamGroup& group : planned.optimizer->groups())
        for (size_t i = 0; i < group.params.size(); ++i)
          if (!finite(group.params[i])) bad.push_back(group.names[i]);
  } else {
    for (const auto& [name, value] : unique_parameters(*run_.model))
      if (!finite(value)) bad.push_back(name);
  }
  if (!bad.empty())
    throw NonFiniteError(cat("[trainer.debug] there is NaN or infinity in ", join(bad), " after the optimizer's step (",
                             run_.describe_position(), ")."));
}

}  // namespace fulgur::detail
