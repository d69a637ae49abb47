#include "fulgur/models/python_model.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "option_bounds.h"
#include "python/named_loss.h"

namespace fulgur {
namespace {

std::vector<std::string> names_of_entries(const Batch& batch) {
  std::vector<std::string> names;
  for (const Batch::Entry& entry : batch) names.push_back(entry.first);
  return names;
}

// The entry that an option of the model names; the option is wrong if the batch has no such tensor.
const Tensor& entry_named(const Batch& batch, const std::string& name, const char* component, const char* option) {
  std::vector<std::string> tensors;
  for (const auto& [key, value] : batch) {
    const auto* const tensor = std::get_if<Tensor>(&value);
    if (tensor == nullptr) continue;
    if (key == name) return *tensor;
    tensors.push_back(key);
  }
  throw ConfigError(cat("[models.", component, "] model.init_args.", option,
                        " must name an entry of the batch that is a tensor; got '", escape_controls(name), "'",
                        as_sentence(did_you_mean(name, tensors)), "The batch has: ", join(tensors), "."));
}

}  // namespace

void PythonTask::fields(Fields& f) {
  f(loss, "loss",
    "A loss of torch.nn.functional with its default arguments; module: the method training_step or loss of the file.");
  f(inputs, "inputs", "Entries of a batch for forward, in its order; empty: the first ones.");
  f(target, "target", "Entry of a batch that the loss reads; empty: the first one that is no input.");
  f(label_smoothing, "label_smoothing",
    "Of cross_entropy: part of each training label, spread evenly over all classes.")
      .at_least(0)
      .less_than(1);
  f(num_classes, "num_classes", "Classes of the output, for metrics that need the number; 0: not known.")
      .range(0, detail::kMostWidth);
  f(metrics, "metrics", "Further metrics of the first output and the target that validation and test log.");
}

PythonModel::PythonModel(const PythonTask& task, const char* component) : task_(task), component_(component) {
  if (task.label_smoothing > 0 && task.loss != NamedLoss::cross_entropy)
    throw ConfigError(cat("[models.", component, "] label_smoothing is for the loss cross_entropy; the loss is ",
                          enum_text(task.loss), ". Leave label_smoothing out."));
  std::vector<std::string> logs{"loss"};
  if (detail::is_of_classes(task.loss) || detail::is_of_binary_classes(task.loss)) logs.emplace_back("acc");
  StageMetrics::Owner owner{.component = component, .logs = logs};
  if (!detail::is_of_classes(task.loss))
    owner.compared =
        "The predictions are the first output of the network, the targets are the entry of the batch that "
        "model.init_args.target names.";
  metrics_.use(task.metrics, task.num_classes, std::move(owner));
}

std::vector<Tensor> PythonModel::inputs_of(const Batch& batch) const {
  std::vector<Tensor> inputs;
  for (const std::string& name : task_.inputs) inputs.push_back(entry_named(batch, name, component_, "inputs"));
  if (!inputs.empty()) return inputs;
  const size_t wanted = number_of_inputs();
  if (batch.entries() < wanted)
    throw DataError(cat("[models.", component_, "] forward of the network has ", wanted,
                        " inputs; the batch has the entries ", join(names_of_entries(batch)),
                        ". Choose the entries with model.init_args.inputs, or another data module."));
  for (size_t i = 0; i < wanted; ++i) inputs.push_back(batch[i]);
  return inputs;
}

size_t PythonModel::index_of_target(const Batch& batch) const {
  const std::vector<std::string> names = names_of_entries(batch);
  if (task_.inputs.empty()) return number_of_inputs();
  const auto is_input = [&](const std::string& name) {
    return std::find(task_.inputs.begin(), task_.inputs.end(), name) != task_.inputs.end();
  };
  return static_cast<size_t>(std::find_if_not(names.begin(), names.end(), is_input) - names.begin());
}

const Tensor& PythonModel::target_of(const Batch& batch) const {
  if (!task_.target.empty()) return entry_named(batch, task_.target, component_, "target");
  const size_t index = index_of_target(batch);
  if (index < batch.entries()) return batch[index];
  throw DataError(cat("[models.", component_, "] the batch has no entry for the target of the loss; its entries are ",
                      join(names_of_entries(batch)),
                      ", and all of them are inputs. Name it with model.init_args.target."));
}

PythonModel::Computed PythonModel::compute(const Batch& batch, const std::string& stage) {
  Computed computed;
  computed.outputs = forward(inputs_of(batch));
  if (computed.outputs.empty())
    throw ConfigError(cat("[models.", component_, "] forward of the network returns no tensor."));
  computed.loss = named_loss(task_.loss, computed.outputs.begin()->second, target_of(batch),
                             stage == "train" ? task_.label_smoothing : 0, component_);
  return computed;
}

StepOutput PythonModel::training_step(const Batch& batch, int64_t) {
  const Computed computed = compute(batch, "train");
  log("train_loss", computed.loss, {.prog_bar = true});
  for (const auto& [name, value] : computed.logged) log(cat("train_", name), value);
  return computed.loss;
}

void PythonModel::evaluate(const Batch& batch, const std::string& stage, int64_t loader_idx) {
  const Computed computed = compute(batch, stage);
  log(cat(stage, "_loss"), computed.loss, {.prog_bar = true});
  for (const auto& [name, value] : computed.logged) log(cat(stage, "_", name), value);
  const bool of_classes = detail::is_of_classes(task_.loss) || detail::is_of_binary_classes(task_.loss);
  if (!of_classes && metrics_.empty()) return;
  if (computed.outputs.empty())
    throw ConfigError(
        cat("[models.", component_,
            "] metrics compare the output of the network with the target, and training_step of the file "
            "returns only the loss. Export a method loss(output, target) instead, or leave metrics out."));
  const Tensor& output = computed.outputs.begin()->second;
  const Tensor& target = target_of(batch);
  if (of_classes) log(cat(stage, "_acc"), detail::accuracy_of(task_.loss, output, target), {.prog_bar = true});
  // The loss, too, takes a target that lacks only a last dimension of 1.
  const bool has_column =
      !detail::is_of_classes(task_.loss) && target.dim() + 1 == output.dim() && output.size(-1) == 1;
  metrics_.update(*this, stage, loader_idx, has_column ? output.squeeze(-1) : output, target);
}

Outputs PythonModel::validation_step(const Batch& batch, int64_t, int64_t loader_idx) {
  evaluate(batch, "val", loader_idx);
  return {};
}

Outputs PythonModel::test_step(const Batch& batch, int64_t, int64_t loader_idx) {
  evaluate(batch, "test", loader_idx);
  return {};
}

Outputs PythonModel::predict_step(const Batch& batch, int64_t, int64_t) {
  Outputs outputs = forward(inputs_of(batch));
  const bool of_classes = detail::is_of_classes(task_.loss) || detail::is_of_binary_classes(task_.loss);
  if (!of_classes || outputs.empty()) return outputs;
  return detail::predictions_of(task_.loss, outputs.begin()->second);
}

}  // namespace fulgur
