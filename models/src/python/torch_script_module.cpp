#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <utility>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/models/torch_modules.h"
#include "python/script_program.h"

namespace fulgur {
namespace {

constexpr const char* kLoss = "loss";
constexpr const char* kTrainingStep = "training_step";

[[noreturn]] void refuse_value(const std::string& method, const c10::IValue& value, const char* wanted) {
  throw ConfigError(cat("[models.TorchScriptModule] ", method, " of the module must return ", wanted, "; it returns ",
                        value.type()->str(), ". Export a module that does."));
}

// What Python returned, as named tensors: a tensor, a list or tuple of tensors, a named tuple, or a dict.
Outputs named_outputs(const c10::IValue& value) {
  constexpr const char* kWanted = "tensors: one, a tuple, a list, or a Dict[str, Tensor]";
  if (value.isTensor()) return {{"output", value.toTensor()}};
  Outputs outputs;
  const auto add = [&](const std::string& name, const c10::IValue& part) {
    if (part.isNone()) return;
    if (!part.isTensor()) refuse_value("forward", value, kWanted);
    outputs.add(name, part.toTensor());
  };
  if (value.isTensorList()) {
    size_t index = 0;
    for (const Tensor& part : value.toTensorVector()) add(cat("output", index++), part);
  } else if (value.isTuple()) {
    const auto type = value.type()->expect<c10::TupleType>();
    const auto& parts = value.toTupleRef().elements();
    for (size_t i = 0; i < parts.size(); ++i)
      add(type->schema() ? type->schema()->arguments()[i].name() : cat("output", i), parts[i]);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      if (!entry.key().isString()) refuse_value("forward", value, kWanted);
      add(entry.key().toStringRef(), entry.value());
    }
  } else {
    refuse_value("forward", value, kWanted);
  }
  return outputs;
}

}  // namespace

void TorchScriptModule::Options::fields(Fields& f) {
  f(path, "path", "TorchScript file, from torch.jit.script(model).save() or torch.jit.trace(model, …).save().")
      .required();
  task.fields(f);
}

TorchScriptModule::TorchScriptModule(const Options& options)
    : PythonModel(detail::checked_options(options, "models.TorchScriptModule").task, "TorchScriptModule"),
      program_(std::make_unique<detail::ScriptProgram>(options.path, *this, "TorchScriptModule")) {}

TorchScriptModule::~TorchScriptModule() = default;

void TorchScriptModule::setup(TrainerFn fn) {
  if (fn != TrainerFn::fit) return;
  if (parameters().empty())
    throw ConfigError(
        "[models.TorchScriptModule] the module has no parameters, so there is nothing to train. A file of "
        "torch.jit.freeze or optimize_for_inference has constants instead: export the module without them.");
  if (task().loss == NamedLoss::module) static_cast<void>(method_for("train"));
}

void TorchScriptModule::on_after_backward() { program_->take_back_assigned(); }

size_t TorchScriptModule::number_of_inputs() const { return program_->required_arguments("forward"); }

Outputs TorchScriptModule::forward(const std::vector<Tensor>& inputs) {
  return named_outputs(program_->call("forward", std::vector<c10::IValue>(inputs.begin(), inputs.end())));
}

std::string TorchScriptModule::method_for(const std::string& stage) const {
  const std::string own = stage == "val" ? "validation_step" : cat(stage, "_step");
  if (stage != "train" && program_->has(own)) return own;
  if (program_->has(kTrainingStep)) return kTrainingStep;
  if (program_->has(kLoss)) return kLoss;
  std::vector<std::string> names;
  for (const auto& named : enum_names(NamedLoss()))
    if (named.value != NamedLoss::module) names.emplace_back(named.name);
  throw ConfigError(
      cat("[models.TorchScriptModule] model.init_args.loss is module, but the module in the file has no "
          "method training_step or loss. Export one with @torch.jit.export, or choose a loss: ",
          join(names), "."));
}

PythonModel::Computed TorchScriptModule::compute(const Batch& batch, const std::string& stage) {
  if (task().loss != NamedLoss::module) return PythonModel::compute(batch, stage);
  const std::string method = method_for(stage);
  const std::vector<Tensor> inputs = inputs_of(batch);
  Computed computed;
  c10::IValue result;
  if (method == kLoss) {
    c10::IValue output = program_->call("forward", std::vector<c10::IValue>(inputs.begin(), inputs.end()));
    computed.outputs = named_outputs(output);
    result = program_->call(method, {std::move(output), target_of(batch)});
  } else {
    std::vector<c10::IValue> arguments(inputs.begin(), inputs.end());
    if (program_->most_arguments(method) > arguments.size()) arguments.emplace_back(target_of(batch));
    result = program_->call(method, std::move(arguments));
  }
  if (result.isGenericDict())
    computed.logged = named_outputs(result);
  else if (result.isTensor())
    computed.loss = result.toTensor();
  Outputs others;
  for (const auto& [name, value] : computed.logged) {
    if (name == kLoss)
      computed.loss = value;
    else
      others.add(name, value.detach());
  }
  computed.logged = std::move(others);
  if (!computed.loss.defined() || computed.loss.numel() != 1)
    refuse_value(method, result, "the loss, a scalar tensor, or a Dict[str, Tensor] with a scalar `loss`");
  computed.loss = computed.loss.reshape({});
  return computed;
}

std::string TorchScriptModule::torchscript() { return program_->bytes(); }

[[maybe_unused]] static const bool registered_torch_script_module = Registry<LightningModule>::add<TorchScriptModule>(
    "TorchScriptModule", "A network exported by torch.jit in Python, trained here.");

}  // namespace fulgur
