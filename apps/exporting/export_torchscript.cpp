#include "exporting/export_torchscript.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/serialization/import.h>

#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "exporting/traced_module.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/checkpoint/new_file.h"
#include "fulgur/core/system/program_name.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/models/torch_modules.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "fulgur/trainer/config.h"
#include "fulgur/trainer/load_from_checkpoint.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur::cli {
namespace fs = std::filesystem;
namespace keys = detail::checkpoint_keys;

namespace {

constexpr int64_t kRows = 5;  // of a batch that --input describes

Config config_of(const CheckpointContent& content) {
  if (content.state.contains(keys::kFabric))
    throw ConfigError(
        "[cli.export] Fabric wrote the checkpoint, which names no model. A TorchScript file needs one; export the "
        "weights with --format safetensors or --format pt.");
  Problems problems;
  const ConfigNode node = parse_yaml(content.state.at(keys::kConfig).as_string(), "config of the checkpoint", problems);
  problems.throw_if_any();
  Config config = config_from_node(node);
  if (!config.model)
    throw ConfigError(
        "[cli.export] the checkpoint names no model, since its run was made in C++. A TorchScript file needs one; "
        "export "
        "the weights with --format safetensors or --format pt.");
  return config;
}

// `--model.path net.pt`: options of the model for this export.
OptionOverrides model_options(const CommandLine& command) {
  constexpr std::string_view kModel = "model.";
  OptionOverrides options;
  for (const auto& [key, value] : command.sources.overrides) {
    if (!key.starts_with(kModel))
      throw ConfigError(cat("[cli.export] export takes options of the model, such as --model.path FILE; got --",
                            escape_controls(key), "."));
    options.emplace_back(key.substr(kModel.size()), value);
  }
  return options;
}

// The model of a run has the options that `link` gave it, which are in the checkpoint.
std::shared_ptr<LightningModule> model_of(const Config& config, const CheckpointContent& content,
                                          const OptionOverrides& overrides) {
  Spec<LightningModule> spec;
  Problems problems;
  ConfigNode node = ConfigNode::map();
  node.set("class_path", ConfigNode::string(config.model.class_path()));
  node.set("init_args", detail::checkpoint_hparams(content.state, overrides));
  spec.read(node, problems, "model");
  problems.throw_if_any();
  std::shared_ptr<LightningModule> module = spec.create();
  module->configure_model();
  module->on_load_checkpoint(content.state);
  LoadOptions options;
  options.convert_formats = true;
  const LoadReport loaded = load_module_state(*module, content.module, options);
  if (!loaded.converted.empty())
    log::info(
        cat("export: ", loaded.converted.size(),
            " tensors of another precision, such as that of bf16-true, were converted to what the model is created "
            "with; the first one is ",
            loaded.converted.front()));
  module->eval();
  return module;
}

// `3,32,32`, `128:int64` or `tokens=128:int64`: one sample of an entry.
Batch::Entry input_from(const std::string& text, size_t index) {
  const size_t equals = text.find('=');
  const std::string name = equals == std::string::npos ? cat("input", index) : text.substr(0, equals);
  const std::string described = equals == std::string::npos ? text : text.substr(equals + 1);
  const size_t colon = described.find(':');
  const std::string dtype = colon == std::string::npos ? "float32" : described.substr(colon + 1);
  const bool known = dtype == "float32" || dtype == "int64" || dtype == "bool";
  std::vector<int64_t> shape{kRows};
  for (const std::string& part : split_text(described.substr(0, colon), ',')) {
    const auto size = parse_whole<int64_t>(part);
    if (!size || *size < 1 || !known || name.empty())
      throw ConfigError(
          cat("[cli.export] --input takes the shape of one sample, as 3,32,32, with a type, as 128:int64 (float32, "
              "int64 or bool), and with the name of the entry of a batch, as tokens=128:int64; got '",
              escape_controls(text), "'."));
    shape.push_back(*size);
  }
  if (dtype == "int64") return {name, at::zeros(shape, at::kLong)};
  if (dtype == "bool") return {name, at::ones(shape, at::kBool)};
  return {name, at::randn(shape, at::detail::createCPUGenerator(index))};
}

Batch batch_from_shapes(const std::vector<std::string>& shapes) {
  Batch batch;
  for (size_t i = 0; i < shapes.size(); ++i) {
    auto [name, value] = input_from(shapes[i], i);
    if (batch.contains(name))
      throw ConfigError(cat("[cli.export] --input names the entry '", escape_controls(name), "' twice."));
    batch.add(std::move(name), std::move(value));
  }
  return batch;
}

// The model reads the entries of its data module; what it says of others is a mistake in --input.
void check_inputs(LightningModule& module, const Batch& batch) {
  const auto refuse = [&](std::string_view why) {
    std::vector<std::string> names;
    for (const Batch::Entry& entry : batch) names.push_back(entry.first);
    throw ConfigError(cat("[cli.export] the model cannot compute the batch that --input describes, with the entries ",
                          join(names),
                          ". Give each entry that it reads, with the name, as --input tokens=128:int64, or "
                          "leave --input out, for a batch of the data. The model says: ",
                          first_line(why)));
  };
  const at::NoGradGuard no_grad;
  try {
    static_cast<void>(exported_outputs(module, batch));
  } catch (const Error& error) {
    refuse(error.what());
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    refuse(error.what_without_backtrace());
  }
}

// The first batch of the first stage that has data, as a step of the model gets it.
std::optional<Batch> batch_from_data(const Config& config, const CheckpointContent& content, LightningModule& module) {
  if (!config.data) return std::nullopt;
  const std::shared_ptr<DataModule> data = config.data.create();
  data->prepare_data();
  if (content.state.contains(keys::kData) && !content.state.at(keys::kData).is_null())
    data->load_state(content.state.at(keys::kData));
  constexpr std::pair<TrainerFn, RunningStage> kStages[] = {{TrainerFn::validate, RunningStage::validate},
                                                            {TrainerFn::test, RunningStage::test},
                                                            {TrainerFn::predict, RunningStage::predict},
                                                            {TrainerFn::fit, RunningStage::train}};
  for (const auto& [fn, stage] : kStages) {
    data->setup(fn);
    const Loaders loaders = data->loaders(stage);
    if (loaders.empty()) continue;
    Loader& loader = *loaders.front();
    loader.configure(/*seed=*/0, /*rank=*/0, /*world_size=*/1);
    loader.start_epoch(0);
    Batch batch;
    if (!loader.next(batch) || batch.size() < 1) continue;
    batch = data->on_before_batch_transfer(module, std::move(batch), 0);
    batch = data->transfer_batch_to_device(module, std::move(batch), at::Device(at::kCPU), 0);
    if (const BatchTransforms* const transforms = data->batch_transforms(stage))
      batch = transforms->apply(std::move(batch));
    batch = data->on_after_batch_transfer(module, std::move(batch), 0);
    return samples_of(batch, 0, batch.size());  // copies: the loader may use its memory again
  }
  return std::nullopt;
}

torch::jit::Module read_back(const std::string& bytes) {
  std::istringstream file(bytes);
  return torch::jit::load(file, at::Device(at::kCPU));
}

std::string bytes_of(const torch::jit::Module& script) {
  std::ostringstream file;
  script.save(file);
  return std::move(file).str();
}

// The program of Python itself, with other weights.
std::string bytes_of_script_module(TorchScriptModule& module, const std::optional<Batch>& batch) {
  std::string bytes = module.torchscript();
  torch::jit::Module script = read_back(bytes);
  if (!batch) return bytes;
  const at::NoGradGuard no_grad;
  std::vector<c10::IValue> arguments;
  for (const Tensor& input : module.inputs_of(*batch)) arguments.emplace_back(input);
  const c10::IValue got = script.forward(std::move(arguments));
  const Outputs expected = module.forward(module.inputs_of(*batch));
  if (got.isTensor() && !at::allclose(got.toTensor(), expected.begin()->second, 1e-4, 1e-5, /*equal_nan=*/true))
    throw ConfigError(
        "[cli.export] the written program computes other outputs than the module; does its forward draw random "
        "numbers in eval mode?");
  return bytes;
}

std::string bytes_of_traced(LightningModule& module, const std::optional<Batch>& batch) {
  if (!batch)
    throw ConfigError(
        "[cli.export] a TorchScript file is recorded from a batch, and the config of the checkpoint has no data. Give "
        "the shape of one sample with --input, such as --input 3,32,32.");
  const TracedModule traced = trace_module(module, *batch);
  std::string bytes = bytes_of(traced.script);
  torch::jit::Module read = read_back(bytes);
  check_script(read, traced.inputs, module, traced.any_batch_size ? samples_of(*batch, 0, 2) : *batch);
  if (!traced.any_batch_size)
    log::warn("cli.export_batch_size", cat("the forward of the model uses the number of samples, so the TorchScript "
                                           "file takes only batches of ",
                                           batch->size(), " samples"));
  if (traced.only_length > 0)
    log::warn("cli.export_length",
              cat("the TorchScript file takes only samples of the length ", traced.only_length,
                  ", that of the example: the length decides which operations the model computes. Pad samples to it, "
                  "or give another example with --input, such as --input ",
                  traced.inputs.front(), "=128:int64"));
  log::info(cat("forward of the TorchScript file takes: ", join(traced.inputs)));
  return bytes;
}

}  // namespace

void export_torchscript(const CommandLine& command, const CheckpointContent& content, const fs::path& output) {
  std::error_code error;
  const auto refuse_existing = [&] {
    if (!command.force && fs::symlink_status(output, error).type() != fs::file_type::not_found)
      throw CheckpointError(cat("[cli.export] the output ", escape_controls(output.string()),
                                " exists already. Name another one, or replace it with --force."));
  };
  if (output.filename().empty() || fs::is_directory(output, error))
    throw CheckpointError(
        cat("[cli.export] the output must be a file; ", escape_controls(output.string()), " is a folder."));
  refuse_existing();
  const Config config = config_of(content);
  const std::shared_ptr<LightningModule> module = model_of(config, content, model_options(command));
  if (dynamic_cast<TorchExportModule*>(module.get()))
    throw ConfigError("[cli.export] a TorchExportModule is compiled code, which cannot be written as TorchScript.");
  const std::optional<Batch> batch =
      command.inputs.empty() ? batch_from_data(config, content, *module) : batch_from_shapes(command.inputs);
  if (!command.inputs.empty()) check_inputs(*module, *batch);
  auto* const script = dynamic_cast<TorchScriptModule*>(module.get());
  const std::string bytes = script ? bytes_of_script_module(*script, batch) : bytes_of_traced(*module, batch);
  if (!output.parent_path().empty()) fs::create_directories(output.parent_path(), error);
  refuse_existing();
  detail::write_durably(output, bytes);
  if (content.state.contains(keys::kData) && content.state.at(keys::kData).is_map() &&
      !content.state.at(keys::kData).as_map().empty())
    log::info(
        cat("the file takes inputs as the data module encodes them; what that needs from the training data, such "
            "as means and names of classes, is in the output of: ",
            program_name(), " inspect ", escape_controls(*command.argument), " --json"));
}

}  // namespace fulgur::cli
