#include "pipeline/executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <set>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/parallel_apply.h"
#include "pipeline/run_layer.h"

namespace fulgur::detail {
namespace {

// All ranks have the batch, so they know alike whether shapes of messages are new.
std::string shapes_of(const Batch& batch) {
  std::string text;
  for (const auto& [name, value] : batch) {
    text += name;
    if (const auto* tensor = std::get_if<Tensor>(&value)) text += shape_text(tensor->sizes());
  }
  return text;
}

// Which parameters learn decides which values have gradients.
std::string learning_of(const std::vector<StageTensor>& tensors) {
  std::string text;
  for (const StageTensor& tensor : tensors) text += tensor.value.requires_grad() ? '1' : '0';
  return text;
}

std::vector<bool> last_of_stages(const std::vector<PipelineAction>& actions) {
  std::vector<bool> are_last(actions.size());
  std::set<int64_t> stages;
  for (size_t i = actions.size(); i-- > 0;)
    if (actions[i].kind == ActionKind::backward || actions[i].kind == ActionKind::backward_weights)
      are_last[i] = stages.insert(actions[i].stage).second;
  return are_last;
}

LayerChain::Values with_gradients(const LayerChain::Values& values) {
  LayerChain::Values chosen;
  for (const Tensor& value : values)
    if (value.requires_grad()) chosen.push_back(value);
  return chosen;
}

}  // namespace

PipelineExecutor::PipelineExecutor(LayerChain chain, const StagePlan& plan, PipelineSchedule schedule,
                                   PipelineShape shape, MeshGroups& mesh, at::Device device)
    : chain_(std::move(chain)),
      plan_(plan),
      schedule_(schedule),
      shape_(shape),
      mesh_(mesh),
      device_(device),
      links_(mesh, shape.stages_per_rank > 1, device) {}

std::vector<PipelineExecutor::Part> PipelineExecutor::split(const Batch& batch, int64_t parts) const {
  const std::string learning = learning_of(plan_.tensors);
  std::vector<Part> found;
  int64_t begin = 0;
  for (const int64_t size : nn::even_parts(batch.size(), parts)) {
    Batch part = batch.narrow(begin, size);
    std::string key = shapes_of(part) + learning;
    found.push_back({.batch = std::move(part),
                     .share = static_cast<double>(size) / static_cast<double>(batch.size()),
                     .key = std::move(key)});
    begin += size;
  }
  return found;
}

Tensor PipelineExecutor::run(const Batch& batch, const StepServices& services, GradientAverages* averages) {
  PipelineShape shape = shape_;
  shape.micro_batches = std::min(shape.micro_batches, batch.size());
  shape.micro_batches = allowed_micro_batches(schedule_, shape);
  auto& [actions, ends_gradients, received] = actions_[shape.micro_batches];
  if (actions.empty()) {
    const int64_t rank = mesh_.place(MeshAxis::pipeline);
    const std::vector<std::vector<PipelineAction>> all = make_schedule(schedule_, shape);
    received = received_gradients(all, shape, rank);
    actions = all[static_cast<size_t>(rank)];
    ends_gradients = last_of_stages(actions);
  }
  const std::vector<Part> parts = split(batch, shape.micro_batches);
  loss_ = at::zeros({}, at::TensorOptions(device_).dtype(at::kDouble));
  kept_.clear();
  const std::vector<int64_t> unnamed = versions_of_unnamed_buffers();
  for (size_t i = 0; i < actions.size(); ++i) {
    const PipelineAction& action = actions[i];
    if (action.kind == ActionKind::forward) {
      forward(action, parts[static_cast<size_t>(action.micro_batch)], services, received[i]);
      continue;
    }
    const auto kept = kept_.find({action.stage, action.micro_batch});
    if (action.kind == ActionKind::backward_input) {
      backward_input(action, kept->second);
      continue;
    }
    Kept taken = std::move(kept->second);
    kept_.erase(kept);
    const GradientAverages::Counting counting(ends_gradients[i] ? averages : nullptr);
    if (action.kind == ActionKind::backward)
      backward(action, std::move(taken));
    else
      backward_weights(action, taken);
  }
  links_.finish();
  check_unnamed_buffers(unnamed);
  return mesh_.along(MeshAxis::pipeline)->broadcast(loss_, shape_.ranks - 1);
}

std::vector<int64_t> PipelineExecutor::versions_of_unnamed_buffers() const {
  std::vector<int64_t> versions;
  for (const StageTensor& tensor : plan_.tensors)
    if (tensor.stages.empty()) versions.push_back(tensor.value._version());
  return versions;
}

void PipelineExecutor::check_unnamed_buffers(const std::vector<int64_t>& before) const {
  if (mesh_.place(MeshAxis::pipeline) == 0) return;  // those of the first rank are evaluated and saved
  auto version = before.begin();
  for (const StageTensor& tensor : plan_.tensors) {
    if (!tensor.stages.empty() || tensor.value._version() == *version++) continue;
    throw Error(cat("[strategies.mesh] the buffer '", escape_controls(tensor.name), "' was changed in a step by rank ",
                    mesh_.place(MeshAxis::pipeline),
                    " of the pipeline, and no layer of the module's stages() names it, so its value would be lost. "
                    "Name it, or its module, in the layer that changes it."));
  }
}

void PipelineExecutor::forward(const PipelineAction& action, const Part& part, const StepServices& services,
                               int64_t received_gradients) {
  const auto [kind, stage, micro_batch] = action;
  Kept kept;
  kept.inputs = stage == 0 ? chain_.input(part.batch) : links_.receive_outputs(stage, part.key);
  links_.free_gradients(received_gradients);
  services.part(part.batch.size(), [&] {
    const SeenCalls seen(calls_);
    Values values = kept.inputs;
    const auto [begin, end] = plan_.stages[static_cast<size_t>(stage)];
    for (size_t layer = begin; layer < end; ++layer) values = run_layer(chain_.layers[layer], values, micro_batch);
    if (calls_ && !is_last(stage))
      for (Tensor& value : values) value = calls_->whole(value, "what a stage returns");
    if (is_last(stage)) {
      Tensor loss = chain_.loss(values, part.batch);
      if (calls_) loss = calls_->whole(loss, "the loss");
      if (!loss.defined())
        throw Error(
            "[strategies.mesh] the loss of the module's stages() is undefined; a pipeline needs one for each "
            "part of a batch.");
      values = {services.scaled(loss, part.share)};
      loss_.add_(loss.detach().reshape({}), part.share);
    }
    kept.outputs = std::move(values);
  });
  if (!is_last(stage)) links_.send_outputs(stage, part.key, kept.outputs);
  kept_[{stage, micro_batch}] = std::move(kept);
}

void PipelineExecutor::begin_backward(const PipelineAction& action, Kept& kept) {
  if (!is_last(action.stage)) kept.gradients = links_.receive_gradients(kept.outputs);
  kept.outputs = with_gradients(kept.outputs);
  // The gradient of the loss is 1.
  if (is_last(action.stage)) kept.gradients.assign(kept.outputs.size(), Tensor());
}

void PipelineExecutor::pass_on(const PipelineAction& action, const Values& inputs, Values gradients) {
  if (action.stage == 0) return;
  for (size_t i = 0; i < gradients.size(); ++i)
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(inputs[i]);
  links_.send_gradients(gradients);
}

void PipelineExecutor::backward(const PipelineAction& action, Kept kept) {
  begin_backward(action, kept);
  if (!kept.outputs.empty()) torch::autograd::backward(kept.outputs, kept.gradients);
  const Values inputs = with_gradients(kept.inputs);
  Values gradients;
  for (const Tensor& input : inputs) gradients.push_back(input.grad());
  pass_on(action, inputs, std::move(gradients));
}

void PipelineExecutor::backward_input(const PipelineAction& action, Kept& kept) {
  begin_backward(action, kept);
  const Values inputs = with_gradients(kept.inputs);
  if (action.stage == 0) return;
  Values gradients(inputs.size());
  if (!kept.outputs.empty() && !inputs.empty())
    gradients = torch::autograd::grad(kept.outputs, inputs, kept.gradients, /*retain_graph=*/true,
                                      /*create_graph=*/false, /*allow_unused=*/true);
  pass_on(action, inputs, std::move(gradients));
}

void PipelineExecutor::backward_weights(const PipelineAction& action, const Kept& kept) {
  if (kept.outputs.empty()) return;
  Values weights;
  for (const StageTensor& tensor : plan_.tensors)
    if (tensor.is_parameter && tensor.value.requires_grad() &&
        std::ranges::find(tensor.stages, action.stage) != tensor.stages.end())
      weights.push_back(tensor.value);
  if (weights.empty()) return;
  torch::autograd::backward(kept.outputs, kept.gradients, /*retain_graph=*/false, /*create_graph=*/false, weights);
}

}  // namespace fulgur::detail
