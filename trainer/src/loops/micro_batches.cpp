#include "loops/micro_batches.h"

#include <ATen/ops/cat.h>

#include <algorithm>

#include "context/replica_context.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

ReplicaContext& context_of(const RunState& run, const LightningModule* replica) {
  const auto found =
      std::ranges::find_if(run.replicas, [&](const auto& known) { return known.first.get() == replica; });
  return static_cast<ReplicaContext&>(*found->second);
}

}  // namespace

void run_parts(RunState& run, const std::vector<MicroBatch>& parts,
               const std::function<void(const MicroBatch&, size_t)>& step) {
  const double samples = run.position.batch_samples;
  // The run's own module logs directly, for the samples of its part; its copies have separate scopes.
  const auto call = [&](size_t index) {
    const MicroBatch& part = parts[index];
    if (part.module == run.model.get())
      run.position.batch_samples = static_cast<double>(part.batch.size());
    else
      context_of(run, part.module).set_samples(part.batch.size());
    const auto guard = run.strategy->precision().forward_guard();
    step(part, index);
  };
  run.strategy->run_parts(parts.size(), call);
  run.position.batch_samples = samples;
  for (const MicroBatch& part : parts)
    if (part.module != run.model.get()) context_of(run, part.module).flush_to_run();
}

void require_scalar_loss(const Tensor& loss) {
  if (loss.numel() == 1) return;
  throw Error(cat("[trainer.training_step] the loss must be a scalar; got a tensor of ", loss.numel(),
                  " elements. Reduce it, for example with .mean()."));
}

void refuse_integer_loss(const Tensor& loss) {
  if (!loss.defined() || loss.is_floating_point() || loss.is_complex()) return;
  throw Error(cat("[trainer.training_step] the loss must be a floating-point tensor; got ",
                  c10::toString(loss.scalar_type()),
                  ", which has no gradient. Compute it from the module's outputs, such as cross_entropy(logits, "
                  "labels), not from classes or counts; argmax, rounding and comparisons have no gradient either."));
}

void refuse_loss_without_graph(const Tensor& loss, const LightningModule& module) {
  refuse_integer_loss(loss);
  const auto parameters = unique_parameters(module);
  const bool all_frozen = !parameters.empty() && std::ranges::none_of(parameters, [](const NamedParameter& parameter) {
    return parameter.value.requires_grad();
  });
  throw Error(cat("[trainer.training_step] the loss has no graph, so nothing can be learned from it. ",
                  all_frozen ? cat("No parameter of the module requires a gradient: all ", parameters.size(),
                                   " are frozen. Leave some of them to train.")
                             : std::string("Was it detached, or computed under NoGradGuard?")));
}

StepOutput training_step_of_parts(RunState& run, const std::vector<MicroBatch>& parts, int64_t batch_idx) {
  std::vector<StepOutput> outputs(parts.size());
  run_parts(run, parts, [&](const MicroBatch& part, size_t index) {
    outputs[index] = part.module->training_step(part.batch, batch_idx);
  });
  StepOutput whole;
  std::vector<Outputs> extra;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor& loss = outputs[i].loss;
    extra.push_back(outputs[i].extra.detach());
    if (i > 0 && loss.defined() != whole.loss.defined())
      throw Error(
          "[trainer.training_step] training_step returned a loss for one part of the batch and none for another. "
          "Return one for each, or for none.");
    if (!loss.defined()) continue;
    require_scalar_loss(loss);
    if (!run.handles.empty()) refuse_integer_loss(loss);
    Tensor here = (loss.dim() == 0 ? loss : loss.reshape({})).to(run.device(), /*non_blocking=*/true);
    if (parts.size() > 1) here = here * parts[i].share;
    whole.loss = whole.loss.defined() ? whole.loss + here : here;
  }
  whole.extra = join_outputs(run, parts, extra);
  return whole;
}

Outputs join_outputs(const RunState& run, const std::vector<MicroBatch>& parts, const std::vector<Outputs>& outputs) {
  Outputs whole;
  const Outputs& first = outputs.front();
  for (const Outputs& other : outputs)
    if (other.size() != first.size())
      throw Error(cat("[trainer.outputs] a step must return the same outputs for each part of a batch; got ",
                      static_cast<int64_t>(first.size()), " and ", static_cast<int64_t>(other.size()), "."));
  for (const auto& [name, value] : first) {
    std::vector<Tensor> values;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Tensor& part = outputs[i][name];
      const bool rows = part.dim() > 0;
      if (rows != (value.dim() > 0) || (rows && part.size(0) != parts[i].batch.size()))
        throw Error(cat("[trainer.outputs] '", name, "' must have one row per sample, or be a single value; got ",
                        shape_text(part.sizes()), " for a part of ", parts[i].batch.size(), " samples."));
      values.push_back(part.to(run.device(), /*non_blocking=*/true));
    }
    if (value.dim() > 0 || values.size() == 1) {
      whole.add(name, values.size() == 1 ? values.front() : at::cat(values));
      continue;
    }
    Tensor mean;
    for (size_t i = 0; i < values.size(); ++i)
      mean = mean.defined() ? mean + values[i] * parts[i].share : values[i] * parts[i].share;
    whole.add(name, mean);
  }
  return whole;
}

}  // namespace fulgur::detail
