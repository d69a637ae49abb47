#include "fulgur/core/contracts/module.h"

#include <ATen/ops/ones.h>

#include <algorithm>
#include <set>

#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

std::string expected_step(std::string_view step) {
  static const std::pair<std::string_view, std::string_view> kSignatures[] = {
#define FULGUR_SIGNATURE(hook, ...) {#hook, FULGUR_HOOK_TEXT(hook, __VA_ARGS__)},
      FULGUR_STEP_SIGNATURES(FULGUR_SIGNATURE)
#undef FULGUR_SIGNATURE
  };
  const auto* found = std::ranges::find(kSignatures, step, &std::pair<std::string_view, std::string_view>::first);
  return std::string(found == std::end(kSignatures) ? step : found->second);
}

StepNotOverridden::StepNotOverridden(const std::string& step)
    : Error(cat("[core.LightningModule] ", step, " is not overridden by the module. Override it as `",
                expected_step(step), "`, or do not run this stage.")) {}
StepNotOverridden::~StepNotOverridden() = default;

LightningModule::~LightningModule() = default;

Outputs LightningModule::validation_step(const Batch&, int64_t, int64_t) { throw StepNotOverridden("validation_step"); }
Outputs LightningModule::test_step(const Batch&, int64_t, int64_t) { throw StepNotOverridden("test_step"); }
Outputs LightningModule::predict_step(const Batch&, int64_t, int64_t) { throw StepNotOverridden("predict_step"); }
OptimizerPlan LightningModule::configure_optimizers() { return {}; }
std::vector<std::shared_ptr<Callback>> LightningModule::configure_callbacks() { return {}; }

void LightningModule::optimizer_zero_grad(int64_t, int64_t, Optimizer& optimizer) { optimizer.zero_grad(); }

void LightningModule::backward(const Tensor& loss, const BackwardOptions& options) {
  // LibTorch would create the 1 each time. If a hook has written into it, its version is no longer 0.
  if (loss.numel() == 1 && !options.create_graph) {
    const bool fits = root_gradient_.defined() && root_gradient_.scalar_type() == loss.scalar_type() &&
                      root_gradient_.device() == loss.device() && root_gradient_.dim() == loss.dim() &&
                      root_gradient_._version() == 0;
    if (!fits)
      root_gradient_ = at::ones(loss.sizes(), loss.options().requires_grad(false)).variable_data();  // version 0
  }
  const Tensor& root = loss.numel() == 1 && !options.create_graph ? root_gradient_ : Tensor();
  if (options.inputs.empty()) return loss.backward(root, options.retain_graph, options.create_graph);
  loss.backward(root, options.retain_graph, options.create_graph, at::TensorList(options.inputs));
}

void LightningModule::optimizer_step(int64_t, int64_t, OptimizerHandle& optimizer, const Closure& closure) {
  optimizer.step(closure);
}

void LightningModule::lr_scheduler_step(LrScheduler& scheduler, std::optional<double> metric) {
  scheduler.step(metric);
}

Batch LightningModule::transfer_batch_to_device(Batch batch, const at::Device& device, int64_t) {
  if (batch.is_on(device)) return batch;
  return batch.to(device, /*non_blocking=*/true);
}

void LightningModule::configure_gradient_clipping(Optimizer& optimizer, std::optional<double> clip_val,
                                                  ClipAlgorithm algorithm) {
  // As in Lightning, 0 means no clipping; it would set every gradient to 0.
  if (clip_val && *clip_val > 0) clip_gradients(optimizer, *clip_val, algorithm);
}

Tensor LightningModule::clip_gradients(Optimizer& optimizer, double clip_val, ClipAlgorithm algorithm) {
  if (run_) run_->manual_optimization().unscale_gradients(optimizer);
  Tensor norm;
  if (algorithm == ClipAlgorithm::norm) {
    norm = clip_grad_norm(optimizer, clip_val);
  } else {
    // After clipping by value an infinite gradient is finite.
    if (notes_norms_) norm = grad_norm(optimizer);
    clip_grad_value(optimizer.gradients(), clip_val);
  }
  // If clipped twice, the first norm is that of the gradients.
  const auto noted = std::ranges::find(clipped_norms_, &optimizer, &std::pair<const Optimizer*, Tensor>::first);
  if (norm.defined() && noted == clipped_norms_.end()) clipped_norms_.emplace_back(&optimizer, norm);
  return algorithm == ClipAlgorithm::norm ? norm : Tensor();
}

Tensor GradientNorm::take(LightningModule& module, const Optimizer& optimizer) {
  auto& norms = module.clipped_norms_;
  const auto noted = std::ranges::find(norms, &optimizer, &std::pair<const Optimizer*, Tensor>::first);
  if (noted == norms.end()) return {};
  Tensor norm = std::move(noted->second);
  norms.erase(noted);
  return norm;
}

// Modes are saved per submodule, so that a frozen layer kept in eval mode stays in it.
void LightningModule::enter_evaluation() {
  modes_before_evaluation_.clear();
  modes_before_evaluation_.emplace_back(this, is_training());
  for (const auto& part : modules(/*include_self=*/false))
    modes_before_evaluation_.emplace_back(part.get(), part->is_training());
  eval();
}

void LightningModule::leave_evaluation() {
  if (modes_before_evaluation_.empty()) return;
  // Parents come first; their train() reaches the children, which then get their own mode back.
  for (const auto& [part, training] : modes_before_evaluation_)
    if (part->is_training() != training) part->train(training);
  modes_before_evaluation_.clear();
}

void LightningModule::on_validation_model_zero_grad() {}
void LightningModule::on_validation_model_eval() { enter_evaluation(); }
void LightningModule::on_validation_model_train() { leave_evaluation(); }
void LightningModule::on_test_model_eval() { enter_evaluation(); }
void LightningModule::on_test_model_train() { leave_evaluation(); }
void LightningModule::on_predict_model_eval() { enter_evaluation(); }
void LightningModule::on_predict_model_train() { leave_evaluation(); }

void LightningModule::log(std::string_view name, const Tensor& value, const LogOptions& options) {
  if (run_) return run_->log(name, value, options);
  log::warn("module.log_outside_run", "log() was called outside a run and has no effect");
}

void LightningModule::log(std::string_view name, double value, const LogOptions& options) {
  if (run_) return run_->log(name, value, options);
  log::warn("module.log_outside_run", "log() was called outside a run and has no effect");
}

void LightningModule::log(std::string_view name, Metric& metric, const LogOptions& options) {
  if (run_) return run_->log(name, metric, options);
  log::warn("module.log_outside_run", "log() was called outside a run and has no effect");
}

void LightningModule::log_dict(const std::vector<std::pair<std::string, Tensor>>& values, const LogOptions& options) {
  for (const auto& [name, value] : values) log(name, value, options);
}

void LightningModule::log_dict(const Metrics& values, const LogOptions& options) {
  for (const auto& [name, value] : values) log(name, value, options);
}

void LightningModule::log_media(const MediaRecord& record) {
  if (run_) return run_->log_media(record);
  log::warn("module.log_outside_run", "log_media() was called outside a run and has no effect");
}

void LightningModule::log_artifact(const std::filesystem::path& path) {
  if (run_) return run_->log_artifact(path);
  log::warn("module.log_outside_run", "log_artifact() was called outside a run and has no effect");
}

void LightningModule::print(std::string_view line) {
  if (run_)
    run_->print(line);
  else
    log::info(line);
}

OptimizerHandle& LightningModule::optimizers(size_t index) const {
  const auto all = run().optimizer_handles();
  if (index >= all.size())
    throw Error(cat("[core.LightningModule.optimizers] there is no optimizer ", index,
                    "; configure_optimizers() planned ", all.size(), "."));
  return *all[index];
}

void LightningModule::check_optimizer_count(size_t wanted) const {
  const size_t all = run().optimizer_handles().size();
  if (all != wanted)
    throw Error(cat("[core.LightningModule.optimizers] optimizers<", wanted, ">() asks for ", wanted,
                    "; configure_optimizers() planned ", all, "."));
}

LrScheduler& LightningModule::lr_schedulers(size_t index) const {
  const auto all = run().lr_schedulers();
  if (index >= all.size())
    throw Error(cat("[core.LightningModule.lr_schedulers] there is no schedule ", index,
                    "; configure_optimizers() planned ", all.size(), "."));
  return *all[index];
}

void LightningModule::sync_gradients(OptimizerHandle& optimizer) const {
  run().manual_optimization().sync_gradients(optimizer.optimizer());
}

void LightningModule::manual_backward(const Tensor& loss, const BackwardOptions& options) {
  run().manual_optimization().manual_backward(loss, options);
}

void LightningModule::manual_backward(const Tensor& loss, OptimizerHandle& optimizer, BackwardOptions options) {
  for (Tensor& parameter : optimizer.parameters())
    if (parameter.requires_grad()) options.inputs.push_back(std::move(parameter));
  run().manual_optimization().manual_backward(loss, options);
}

ToggledOptimizer LightningModule::toggled(OptimizerHandle& optimizer) const {
  return {optimizer, run().optimizer_handles()};
}

LightningModule::NoSync::NoSync(RunContext& run) : run_(run) { run_.manual_optimization().set_manual_sync(false); }
LightningModule::NoSync::~NoSync() { run_.manual_optimization().set_manual_sync(true); }

void LightningModule::freeze() {
  for (auto& parameter : parameters()) parameter.requires_grad_(false);
  eval();
}

void LightningModule::unfreeze() {
  for (auto& parameter : parameters()) parameter.requires_grad_(true);
  train();
}

std::vector<Tensor> LightningModule::all_gather(const Tensor& value, bool with_gradients) const {
  return run().collectives().all_gather(value, with_gradients);
}

RunContext& LightningModule::run() const {
  if (!run_)
    throw Error(
        "[core.LightningModule.run] the module is not in a run; call it from a hook or a step that the Trainer runs.");
  return *run_;
}

at::Device LightningModule::device() const {
  const auto all = parameters();
  return all.empty() ? at::Device(at::kCPU) : all.front().device();
}

std::vector<NamedParameter> unique_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> unique;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters())
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      unique.push_back({item.key(), item.value()});
  return unique;
}

namespace {

// Module keeps its parameters protected and cannot replace one.
struct ParametersAccess : torch::nn::Module {
  static auto member() { return &ParametersAccess::parameters_; }
};

using ParameterDict = torch::OrderedDict<std::string, Tensor>;

ParameterDict with_replaced(const ParameterDict& parameters, const std::string& key, const Tensor& value) {
  ParameterDict out(parameters.key_description());
  for (const auto& item : parameters) out.insert(item.key(), item.key() == key ? value : item.value());
  return out;
}

// The module that owns the dotted name, and the last part of it.
std::pair<torch::nn::Module*, std::string> owner_of(torch::nn::Module& root, const std::string& dotted) {
  torch::nn::Module* owner = &root;
  std::string rest = dotted;
  for (size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
    const std::string child = rest.substr(0, dot);
    const auto children = owner->named_children();
    const auto* found = children.find(child);
    if (!found) throw Error(cat("[core.tie_parameters] there is no submodule '", child, "' in '", dotted, "'."));
    owner = found->get();
    rest = rest.substr(dot + 1);
  }
  return {owner, rest};
}

}  // namespace

void tie_parameters(torch::nn::Module& module, const std::string& name, const std::string& other) {
  const auto parameters = module.named_parameters();
  std::vector<std::string> names = parameters.keys();
  for (const std::string& wanted : {name, other})
    if (!parameters.find(wanted))
      throw Error(cat("[core.tie_parameters] there is no parameter '", wanted, "'", did_you_mean(wanted, names), "."));
  if (parameters[name].sizes() != parameters[other].sizes())
    throw Error(cat("[core.tie_parameters] '", name, "' and '", other, "' must have the same shape."));
  auto [owner, leaf] = owner_of(module, other);
  owner->*ParametersAccess::member() = with_replaced(owner->*ParametersAccess::member(), leaf, parameters[name]);
}

std::vector<ParamGroup> trainable_groups(const torch::nn::Module& module) {
  ParamGroup group;
  for (auto& [name, value] : unique_parameters(module)) {
    if (!value.requires_grad()) continue;
    group.params.push_back(value);
    group.names.push_back(name);
  }
  return {std::move(group)};
}

std::vector<ParamGroup> parameter_groups(const torch::nn::Module& module, std::string_view prefix) {
  std::vector<ParamGroup> groups = trainable_groups(module);
  const ParamGroup all = std::exchange(groups.front(), {});
  std::set<std::string> first_parts;
  for (size_t i = 0; i < all.names.size(); ++i) {
    first_parts.insert(cat("'", all.names[i].substr(0, all.names[i].find('.') + 1), "'"));
    if (!all.names[i].starts_with(prefix)) continue;
    groups.front().params.push_back(all.params[i]);
    groups.front().names.push_back(all.names[i]);
  }
  if (groups.front().params.empty())
    throw ConfigError(cat("[core.parameter_groups] no trainable parameter has a name that begins with '", prefix,
                          "'. Names begin with ", join({first_parts.begin(), first_parts.end()}), "."));
  return groups;
}

void convert_floating(torch::nn::Module& module, at::ScalarType dtype, const std::unordered_set<const void*>& keep) {
  at::NoGradGuard no_grad;
  const auto convert = [&](Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == dtype ||
        keep.contains(tensor.unsafeGetTensorImpl()))
      return;
    replace_data(tensor, changed_values(tensor, [dtype](const Tensor& value) { return value.to(dtype); }));
  };
  for (auto& parameter : module.parameters()) convert(parameter);
  for (auto& buffer : module.buffers()) convert(buffer);
}

}  // namespace fulgur
