#include "fulgur/models/tabular_model.h"

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/tensor.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/metrics/regression.h"
#include "option_bounds.h"

namespace fulgur {

void TabularTask::fields(Fields& f) {
  f(task, "task", "What is predicted; regression: numbers; classification: a class.");
  f(num_outputs, "num_outputs", "Predicted numbers, or classes; link it to data.num_outputs.")
      .range(1, detail::kMostWidth);
  f(target_mean, "target_mean", "Mean of each predicted number; empty: 0. Link it to data.target_mean.");
  f(target_std, "target_std", "Standard deviation of each predicted number; empty: 1. Link it to data.target_std.")
      .greater_than(0);
  ClassWeights::field(f, class_weights);
}

TabularModel::TabularModel(const TabularTask& task, const char* component) : task_(task.task), component_(component) {
  const auto refuse = [&](const auto&... what) { throw ConfigError(cat("[models.", component, "] ", what...)); };
  if (is_classification() && task.num_outputs < 2)
    refuse("a classification must have at least 2 classes; num_outputs is ", task.num_outputs, ".");
  const auto buffer = [&](const char* name, const std::vector<double>& values) -> Tensor {
    if (values.empty()) return {};
    if (is_classification()) refuse(name, " is for a regression; task is classification.");
    if (static_cast<int64_t>(values.size()) != task.num_outputs)
      refuse(name, " must have a value for each of the num_outputs = ", task.num_outputs, " outputs; it has ",
             values.size(), ".");
    return register_buffer(name, at::tensor(values, at::kFloat));
  };
  if (!is_classification() && !task.class_weights.empty())
    refuse("class_weights are for a classification; task is regression.");
  class_weights_ = ClassWeights(task.class_weights, task.num_outputs, component);
  target_mean_ = buffer("target_mean", task.target_mean);
  target_std_ = buffer("target_std", task.target_std);
}

Tensor TabularModel::in_units(const Tensor& outputs) const {
  Tensor values =
      outputs.is_floating_point() && outputs.scalar_type() != at::kDouble ? outputs.to(at::kFloat) : outputs;
  if (target_std_.defined()) values = values * target_std_;
  if (target_mean_.defined()) values = values + target_mean_;
  return values.dim() == 2 && values.size(1) == 1 ? values.squeeze(1) : values;
}

Tensor TabularModel::loss_of(const Tensor& outputs, const Tensor& target, const Tensor& class_weights) const {
  if (is_classification()) return classification_loss(outputs, target, 0, class_weights);
  Tensor wanted = target.dim() + 1 == outputs.dim() && outputs.size(-1) == 1 ? target.unsqueeze(-1) : target;
  if (wanted.sizes() != outputs.sizes() || !wanted.is_floating_point())
    throw DataError(cat("[models.", component_,
                        "] the target of a regression must be floating and have the shape of the outputs, ",
                        shape_text(outputs.sizes()), "; got ", c10::toString(target.scalar_type()), " of shape ",
                        shape_text(target.sizes()), ". Set model.init_args.num_outputs to match the data."));
  if (target_mean_.defined()) wanted = wanted - target_mean_;
  if (target_std_.defined()) wanted = wanted / target_std_;
  // As torch.autocast has it: the loss of half precision outputs is computed in float32, with targets as they are.
  const bool half = outputs.scalar_type() == at::kBFloat16 || outputs.scalar_type() == at::kHalf;
  const Tensor values = half ? outputs.to(at::kFloat) : outputs;
  return at::mse_loss(values, wanted.to(values.scalar_type()));
}

StepOutput TabularModel::training_step(const Batch& batch, int64_t) {
  const Tensor outputs = forward(batch);
  Tensor loss = loss_of(outputs, batch["target"], class_weights_.on_device_of(outputs));
  log("train_loss", loss, {.prog_bar = true});
  return loss;
}

void TabularModel::evaluate(const Batch& batch, const std::string& stage, int64_t loader_idx) {
  const Tensor outputs = forward(batch);
  const Tensor& target = batch["target"];
  log(stage + "_loss", loss_of(outputs, target), {.prog_bar = true});
  if (is_classification()) {
    // In double: the mean over batches is then exact to the last digit shown.
    log(stage + "_acc", outputs.argmax(1).eq(target).to(at::kDouble).mean(), {.prog_bar = true});
    return;
  }
  const auto [made, is_new] = metrics_.try_emplace({stage, loader_idx});
  if (is_new)
    made->second = {
        {"rmse", std::make_shared<metrics::MeanSquaredError>(metrics::MeanSquaredError::Options{.squared = false})},
        {"mae", std::make_shared<metrics::MeanAbsoluteError>()},
        {"r2", std::make_shared<metrics::R2Score>()}};
  const Tensor prediction = in_units(outputs);
  for (const auto& [name, metric] : made->second) {
    metric->update(prediction, target.view_as(prediction));
    log(cat(stage, "_", name), *metric);
  }
}

Outputs TabularModel::validation_step(const Batch& batch, int64_t, int64_t loader_idx) {
  evaluate(batch, "val", loader_idx);
  return {};
}

Outputs TabularModel::test_step(const Batch& batch, int64_t, int64_t loader_idx) {
  evaluate(batch, "test", loader_idx);
  return {};
}

Outputs TabularModel::predict_step(const Batch& batch, int64_t, int64_t) {
  const Tensor outputs = forward(batch);
  if (!is_classification()) return {{"prediction", in_units(outputs)}};
  const Tensor probabilities = outputs.softmax(1);
  return {{"probabilities", probabilities}, {"prediction", probabilities.argmax(1)}};
}

}  // namespace fulgur
