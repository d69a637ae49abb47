#include "planning/traced_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <map>
#include <utility>

#include "fulgur/core/contracts/batch_transforms.h"
#include "fulgur/core/contracts/data_module.h"
#include "fulgur/core/contracts/precision.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "planning/meta_memory.h"
#include "tuning/tuned_config.h"

namespace fulgur::cli {
namespace {

struct NotesGradient final : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::autograd::Variable& parameter) override {
    MetaMemory::instance().mark(parameter.grad(), MemoryUse::gradients);
  }
};

// `2048:int64` or `tokens=2048:int64`: one sample of an entry of a batch.
Batch::Entry planned_input(const std::string& text, size_t index) {
  const size_t equals = text.find('=');
  const std::string name = equals == std::string::npos ? cat(index) : text.substr(0, equals);
  const std::string described = equals == std::string::npos ? text : text.substr(equals + 1);
  const size_t colon = described.find(':');
  const std::string dtype = colon == std::string::npos ? "float32" : described.substr(colon + 1);
  const bool known = dtype == "float32" || dtype == "int64" || dtype == "bool";
  std::vector<int64_t> shape{1};
  const std::string sizes = described.substr(0, colon);
  for (const std::string& part : sizes.empty() ? std::vector<std::string>() : split_text(sizes, ',')) {
    const auto size = parse_whole<int64_t>(part);
    if (!size || *size < 1 || !known || name.empty())
      throw ConfigError(
          cat("[cli.plan] --input takes the shape of one sample of an entry of a batch, as 3,32,32, with a type, as "
              "2048:int64 (float32, int64 or bool; :int64 alone is one number), and with the name of the entry, as "
              "tokens=2048:int64; got '",
              escape_controls(text), "'."));
    shape.push_back(*size);
  }
  const at::ScalarType type = dtype == "int64" ? at::kLong : dtype == "bool" ? at::kBool : at::kFloat;
  return {name, at::empty(shape, at::TensorOptions(type).device(at::kMeta))};
}

Batch batch_of_inputs(const std::vector<std::string>& inputs) {
  Batch batch;
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto [name, value] = planned_input(inputs[i], i);
    if (batch.contains(name))
      throw ConfigError(cat("[cli.plan] --input names the entry '", escape_controls(name), "' twice."));
    batch.add(std::move(name), std::move(value));
  }
  return batch;
}

// The first batch of training, complete, on the CPU.
Batch batch_of_data(DataModule& data) {
  const Loaders loaders = data.loaders(RunningStage::train);
  if (loaders.empty())
    throw ConfigError("[cli.plan] the data module has no batches of training. Describe a batch with --input.");
  Loader& loader = *loaders.front();
  loader.configure(/*seed=*/0, /*rank=*/0, /*world_size=*/1);
  loader.start_epoch(0);
  Batch batch;
  if (!loader.next(batch)) throw ConfigError("[cli.plan] the training data has no batch. Describe one with --input.");
  if (const BatchTransforms* transforms = data.batch_transforms(RunningStage::train)) batch = transforms->apply(batch);
  return batch;
}

at::Tensor with_rows(const at::Tensor& tensor, int64_t rows_before, int64_t rows) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  if (!sizes.empty() && sizes[0] == rows_before) sizes[0] = rows;
  return at::empty(sizes, tensor.options().device(at::kMeta));
}

template <class Item>
std::vector<Item> repeated(const std::vector<Item>& items, int64_t count) {
  std::vector<Item> all;
  for (int64_t i = 0; i < count && !items.empty(); ++i) all.push_back(items[static_cast<size_t>(i) % items.size()]);
  return all;
}

// A batch of the same shapes with another number of samples, on `meta`.
Batch resized(const Batch& batch, int64_t samples) {
  const int64_t before = batch.size();
  Batch made;
  for (const auto& [name, value] : batch) {
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      made.add(name, with_rows(*tensor, before, samples));
    } else if (const auto* list = std::get_if<std::vector<Tensor>>(&value)) {
      std::vector<Tensor> tensors = repeated(*list, samples);
      for (Tensor& one : tensors) one = with_rows(one, -1, 0);
      made.add(name, std::move(tensors));
    } else {
      made.add(name, repeated(std::get<std::vector<std::string>>(value), samples));
    }
  }
  return made;
}

std::optional<at::ScalarType> autocast_of(const std::string& precision) {
  if (precision == "bf16-mixed") return at::kBFloat16;
  if (precision == "16-mixed") return at::kHalf;
  return std::nullopt;
}

// As fsdp's `units: auto`: each element of a ModuleList that is in no other one.
void find_unit_modules(const torch::nn::Module& module, const std::string& prefix, std::vector<std::string>& names) {
  const bool is_list = dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr;
  for (const auto& child : module.named_children()) {
    const std::string name = prefix + child.key();
    if (is_list)
      names.push_back(name + ".");
    else
      find_unit_modules(*child.value(), name + ".", names);
  }
}

std::vector<PlannedUnit> units_of(const LightningModule& module) {
  std::vector<std::string> prefixes;
  find_unit_modules(module, "", prefixes);
  std::vector<PlannedUnit> units(prefixes.size() + 1);
  for (size_t i = 0; i < prefixes.size(); ++i) units[i].name = prefixes[i].substr(0, prefixes[i].size() - 1);
  for (const NamedParameter& parameter : unique_parameters(module)) {
    const auto found =
        std::ranges::find_if(prefixes, [&](const std::string& prefix) { return parameter.name.starts_with(prefix); });
    PlannedUnit& unit = units[static_cast<size_t>(found - prefixes.begin())];
    const auto bytes = static_cast<int64_t>(parameter.value.nbytes());
    unit.parameter_bytes += bytes;
    if (parameter.value.requires_grad()) unit.gradient_bytes += bytes;
  }
  std::erase_if(units, [](const PlannedUnit& unit) { return unit.parameter_bytes == 0; });
  return units;
}

void refuse_unplanned(const Config& config) {
  if (!config.model)
    throw ConfigError("[cli.plan] plan needs a model; the config names none. Give --config FILE or --model NAME.");
  if (config.adapters)
    throw ConfigError("[cli.plan] plan does not know `adapters` yet. Leave them out: --adapters null.");
  const std::string strategy = config.trainer.strategy.class_path();
  for (const char* unknown : {"dp", "model_parallel", "hybrid"})
    if (strategy == unknown)
      throw ConfigError(cat("[cli.plan] plan knows single_device, ddp, fsdp and mesh; the config's strategy is ",
                            strategy, ". Use --trainer.strategy ddp."));
  if (const auto* const fsdp = fsdp_of(config); fsdp && fsdp->offload != FSDPStrategy::Offload::none)
    throw ConfigError(
        "[cli.plan] plan does not know `offload` yet: profiles do not say how fast a host steps. Use "
        "--trainer.strategy.offload none.");
}

}  // namespace

const FSDPStrategy::Options* fsdp_of(const Config& config) {
  const Spec<Strategy>& strategy = config.trainer.strategy;
  return strategy.class_path() == "fsdp"
             ? &static_cast<const OptionsOf<FSDPStrategy::Options>&>(strategy.options()).value
             : nullptr;
}

struct TracedModel::Impl {
  Config config;
  std::shared_ptr<DataModule> data;
  Batch sample;
  int64_t batch_size = 1;
  std::unique_ptr<MetaMode> mode;
  std::shared_ptr<LightningModule> module;
  std::shared_ptr<Precision> precision;
  std::vector<std::shared_ptr<Optimizer>> optimizers;
  ModelSize size;

  void find_batch(const std::vector<std::string>& inputs) {
    if (!inputs.empty()) {
      sample = batch_of_inputs(inputs);
      if (config.data) batch_size = batch_size_of(config);
      return;
    }
    if (!config.data)
      throw ConfigError(
          "[cli.plan] the shapes of a batch come from the config's data, and it names none. Set `data`, or describe "
          "the entries of a batch with --input, such as --input 2048:int64 --input 2048:int64.");
    data = config.data.create();
    data->prepare_data();
    data->setup(TrainerFn::fit);
    if (!config.link.empty())
      apply_links(config, data->exported_values(), [&](std::string_view name) { return data->why_not_exported(name); });
    sample = batch_of_data(*data);
    batch_size = sample.size();
  }

  void make_model() {
    MetaMemory::instance().set_use(MemoryUse::state);
    mode = std::make_unique<MetaMode>();
    module = config.model.create();
    module->configure_model();
    if (!module->automatic_optimization())
      throw ConfigError(cat("[cli.plan] plan needs a model with automatic optimization; ", config.model.class_path(),
                            " steps its optimizers itself."));
    precision = config.trainer.precision.create();
    precision->convert_module(*module);
    size.units = units_of(*module);
    for (const NamedParameter& parameter : unique_parameters(*module)) {
      const auto bytes = static_cast<int64_t>(parameter.value.nbytes());
      size.parameters += parameter.value.numel();
      size.parameter_bytes += bytes;
      if (!parameter.value.requires_grad()) continue;
      size.trainable += parameter.value.numel();
      size.gradient_bytes += bytes;
      torch::autograd::impl::set_post_acc_grad_hooks(parameter.value, std::make_unique<NotesGradient>());
    }
    for (const Tensor& buffer : module->buffers()) size.buffer_bytes += static_cast<int64_t>(buffer.nbytes());
    const int64_t before = MetaMemory::instance().bytes(MemoryUse::state);
    plan_optimizer();
    size.master_bytes = MetaMemory::instance().bytes(MemoryUse::state) - before;
    module->train();
    mode->take_operations();
    MetaMemory::instance().set_use(MemoryUse::step);
  }

  // The states of the optimizers are made in their first steps.
  void step_optimizers() {
    MetaMemory::instance().set_use(MemoryUse::state);
    for (const auto& optimizer : optimizers) {
      // The loss is not scaled, since it has no value; copies of weights get their gradients.
      if (size.master_bytes > 0) precision->unscale(*optimizer);
      precision->step(*optimizer, std::nullopt);
    }
    if (size.master_bytes > 0) precision->update();
    for (const auto& optimizer : optimizers) optimizer->zero_grad();
    MetaMemory::instance().set_use(MemoryUse::step);
  }

  void plan_optimizer() {
    OptimizerPlan plan = module->configure_optimizers();
    if (plan.empty()) {
      if (!config.optimizer)
        throw ConfigError(
            "[cli.plan] the module plans no optimizer and the config names none. Add `optimizer: AdamW`.");
      plan = OptimizerPlan({PlannedOptimizer{config.optimizer->create(), std::nullopt}});
    }
    size.is_elementwise = !plan.optimizers.empty();
    for (const PlannedOptimizer& planned : plan.optimizers) {
      Optimizer& optimizer = *planned.optimizer;
      if (!optimizer.attached()) optimizer.attach(trainable_groups(*module));
      if (optimizer.needs_closure())
        throw ConfigError(cat("[cli.plan] ", optimizer.name(),
                              " evaluates the loss several times in a step, as often as "
                              "its values require. Plan with another optimizer."));
      precision->prepare_optimizer(optimizer);
      size.is_elementwise = size.is_elementwise && optimizer.is_elementwise();
      size.optimizer = optimizer.name();
      optimizers.push_back(planned.optimizer);
    }
  }
};

TracedModel::TracedModel(const Config& config, const std::vector<std::string>& inputs,
                         std::optional<int64_t> batch_size)
    : impl_(std::make_unique<Impl>()) {
  refuse_unplanned(config);
  impl_->config = config;
  MetaMemory::instance().set_use(MemoryUse::state);
  log::silence({"module.log_outside_run"});
  impl_->find_batch(inputs);
  if (batch_size) impl_->batch_size = *batch_size;
  impl_->make_model();
  const int64_t before = MetaMemory::instance().bytes(MemoryUse::state);
  static_cast<void>(step(impl_->batch_size));
  impl_->size.state_bytes = MetaMemory::instance().bytes(MemoryUse::state) - before;
}

TracedModel::~TracedModel() = default;
const ModelSize& TracedModel::size() const { return impl_->size; }
int64_t TracedModel::batch_size() const { return impl_->batch_size; }

LightningModule& TracedModel::module() { return *impl_->module; }
MetaMode& TracedModel::mode() { return *impl_->mode; }
std::optional<at::ScalarType> TracedModel::autocast() const { return autocast_of(impl_->precision->name()); }

Batch TracedModel::batch(int64_t samples) {
  Batch batch = resized(impl_->sample, samples);
  impl_->precision->convert_input(batch);
  LightningModule& module = *impl_->module;
  if (impl_->data) {
    batch = impl_->data->on_before_batch_transfer(module, std::move(batch), 0);
    return impl_->data->on_after_batch_transfer(module, std::move(batch), 0);
  }
  return module.on_after_batch_transfer(module.on_before_batch_transfer(std::move(batch), 0), 0);
}

StepSize TracedModel::step(int64_t batch_size) {
  MetaMemory& memory = MetaMemory::instance();
  MetaMode& mode = *impl_->mode;
  LightningModule& module = *impl_->module;
  StepSize step;
  step.batch_size = batch_size;
  // A batch that the module cannot compute leaves nothing behind.
  struct Clean {
    TracedModel::Impl& of;
    ~Clean() {
      of.mode->set_backward(false);
      of.mode->set_autocast(std::nullopt);
      of.mode->take_operations();
      for (const auto& optimizer : of.optimizers) optimizer->zero_grad();
    }
  } const clean{*impl_};
  const int64_t before = memory.bytes(MemoryUse::step) + memory.bytes(MemoryUse::state);
  memory.begin_peaks();
  const Batch batch = this->batch(batch_size);
  step.batch_bytes = memory.bytes(MemoryUse::step) + memory.bytes(MemoryUse::state) - before;
  step.tokens = module.num_tokens(batch).value_or(0);
  mode.take_operations();
  {
    mode.set_autocast(autocast());
    Tensor loss;
    try {
      loss = module.training_step(batch, 0).loss;
    } catch (const Error& error) {
      // What the plan does not know is no matter of the batch.
      if (impl_->data || std::string_view(error.what()).starts_with("[plan]")) throw;
      throw ConfigError(
          cat("[cli.plan] training_step cannot use a batch of the entries that --input gives: ", error.what(),
              " Give an --input for each entry, in the order of the batch, or "
              "--input NAME=SHAPE for one that has a name."));
    }
    if (!loss.defined())
      throw ConfigError(cat("[cli.plan] training_step of ", impl_->config.model.class_path(),
                            " returned no loss for the planned batch, so there is no step to plan."));
    mode.set_backward(true);
    loss.backward();
  }
  step.operations = mode.take_operations();
  step.activation_bytes = memory.peak_without_gradients() - before - step.batch_bytes;
  step.backward_bytes = memory.peak() - before - step.batch_bytes;
  impl_->step_optimizers();
  step.bytes_with_optimizer = memory.peak_without_gradients() - before - step.batch_bytes;
  step.peak_bytes = memory.peak() - before - step.batch_bytes;
  step.block_bytes = memory.peak_of_blocks() - memory.peak();
  return step;
}

}  // namespace fulgur::cli
