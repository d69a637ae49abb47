#include "fulgur/strategies/placed_strategy.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "check_multi_device.h"
#include "device_utilization.h"
#include "fulgur/core/state/materialize_module.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/parallel_apply.h"
#include "trainer_keys.h"

namespace fulgur {
namespace {

std::vector<std::string> names_of(const std::vector<std::shared_ptr<PlacedModule>>& placed) {
  std::vector<std::string> names;
  for (const auto& one : placed) names.push_back(one->name());
  return names;
}

std::string join_devices(const std::vector<at::Device>& devices) {
  std::vector<std::string> names;
  for (const at::Device& device : devices) names.push_back(device.str());
  return join(names);
}

// `decoder` for `decoder.weight`; the module itself for its own parameters.
std::string owner_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::string("the module") : cat("'", name.substr(0, dot), "'");
}

struct Named {
  std::string name;
  Tensor value;
};

std::vector<Named> tensors_of(const torch::nn::Module& module) {
  std::vector<Named> all;
  for (const auto& parameter : module.named_parameters()) all.push_back({parameter.key(), parameter.value()});
  for (const auto& buffer : module.named_buffers())
    if (buffer.value().defined()) all.push_back({buffer.key(), buffer.value()});
  return all;
}

}  // namespace

PlacedStrategy::PlacedStrategy(Placement placement, int64_t micro_batches)
    : placement_(std::move(placement)), micro_batches_(micro_batches) {}
PlacedStrategy::~PlacedStrategy() = default;

void PlacedStrategy::configure(StrategySetup setup) {
  detail::check_multi_device(name(), setup);
  SingleProcessStrategy::configure(std::move(setup));
}

void PlacedStrategy::attach(LightningModule& module) {
  if (micro_batches_ > 1 && !module.automatic_optimization())
    throw ConfigError(cat("[strategies.", name(),
                          "] the module uses manual optimization (automatic_optimization() is false), so its batches "
                          "cannot be split into micro-batches; got ",
                          micro_batches_, ". Set micro_batches: 1."));
  module_ = &module;
  materialize_module(module);
  precision_->set_device(device());
  precision_->convert_module(module);
  if (placement_.empty())
    check_placed_by_hand(module);
  else
    apply_placement(module);
}

void PlacedStrategy::apply_placement(LightningModule& module) {
  const auto& placed = detail::ComponentAccess::placed_modules(module);
  for (const auto& [name_, group] : placement_) {
    if (std::ranges::any_of(placed, [&](const auto& one) { return one->name() == name_; })) continue;
    throw ConfigError(
        cat("[strategies.", name(), "] placement: '", name_, "' is not a submodule that can be placed. ",
            placed.empty()
                ? std::string("The module has none: hold the parts as nn::Placed, created by nn::register_placed")
                : cat("There are: ", join(names_of(placed))),
            "."));
  }
  struct Place {
    std::string name;
    at::Device device;
  };
  std::unordered_map<const void*, Place> at_their_place;
  for (const auto& one : placed) {
    const auto found = placement_.find(one->name());
    const std::vector<at::Device> devices =
        found == placement_.end()
            ? std::vector<at::Device>{device()}
            : found->second.resolve(devices_, cat("[strategies.", name(), "] placement of '", one->name(), "':"));
    one->check_inputs(false);
    one->place(devices);
    for (const auto& [tensor, value] : tensors_of(*one->module())) {
      const std::string full = cat(one->name(), ".", tensor);
      const auto [place, is_new] =
          at_their_place.try_emplace(value.unsafeGetTensorImpl(), Place{full, devices.front()});
      if (!is_new && place->second.device != devices.front())
        throw ConfigError(cat("[strategies.", name(), "] placement: '", place->second.name, "' and '", full,
                              "' are one tensor (tied), which cannot be on ", place->second.device.str(), " and on ",
                              devices.front().str(), ". Place both submodules on one device, or do not tie them."));
    }
    std::vector<std::shared_ptr<torch::nn::Module>> copies(one->replicas().begin() + 1, one->replicas().end());
    if (copies.empty()) continue;
    for (const auto& copy : copies) precision_->convert_module(*copy);
    groups_.push_back(std::make_unique<nn::ReplicaTensors>(*one->module(), std::move(copies)));
  }
  for (auto& [tensor, value] : tensors_of(module))
    if (!at_their_place.contains(value.unsafeGetTensorImpl())) value.set_data(value.to(device()));
}

void PlacedStrategy::check_placed_by_hand(const LightningModule& module) const {
  std::vector<std::string> wrong;
  for (const auto& [tensor, value] : tensors_of(module))
    if (std::ranges::find(devices_, value.device()) == devices_.end())
      wrong.push_back(cat("'", tensor, "' of ", owner_of(tensor), " is on ", value.device().str()));
  for (const auto& one : detail::ComponentAccess::placed_modules(module)) one->check_inputs(true);
  if (wrong.empty()) return;
  const size_t count = wrong.size();
  throw ConfigError(cat("[strategies.", name(),
                        "] without a placement each tensor must be on one of the devices of the run, ",
                        join_devices(devices_), "; ", static_cast<int64_t>(count),
                        count == 1 ? " is not: " : " are not: ", join_some(wrong, 5),
                        ". Move their modules in configure_model(), or give a placement."));
}

void PlacedStrategy::start_training(LightningModule&, const std::vector<Optimizer*>&) {
  busy_ = std::make_unique<detail::DeviceUtilization>(devices_);
}

void PlacedStrategy::copy_values() {
  for (const auto& group : groups_) group->copy_values();
}

void PlacedStrategy::before_forward(LightningModule&, GradSync) { copy_values(); }

std::vector<MicroBatch> PlacedStrategy::split(LightningModule& module, const Batch& batch, RunningStage) {
  copy_values();
  const std::vector<int64_t> sizes = nn::even_parts(batch.size(), micro_batches_);
  // The batch stays whole, whatever its entries: those of combined loaders may differ in their numbers of samples.
  if (sizes.size() < 2) return {{.module = &module, .batch = batch, .share = 1}};
  std::vector<MicroBatch> parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back({.module = &module,
                     .batch = batch.narrow(begin, size),
                     .share = static_cast<double>(size) / static_cast<double>(batch.size())});
    begin += size;
  }
  return parts;
}

void PlacedStrategy::run_parts(size_t parts, const std::function<void(size_t)>& work) {
  try {
    Strategy::run_parts(parts, work);
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    if (what.find("Expected all tensors to be on the same device") == std::string::npos) throw;
    // LibTorch reports the devices; we know which parameters are on them.
    std::map<std::string, std::string> first;
    std::vector<std::string> places;
    for (const auto& [tensor, value] : tensors_of(*module_))
      if (first.emplace(value.device().str(), tensor).second)
        places.push_back(cat(value.device().str(), " has ", owner_of(tensor), " with '", tensor, "'"));
    throw Error(cat("[strategies.", name(), "] ", first_line(what),
                    " An operation used a tensor and a parameter on different devices: ", join(places),
                    ". Move the tensor with .to(device), or hold the submodule as nn::Placed."));
  }
}

void PlacedStrategy::backward(LightningModule& module, const Tensor& loss, GradSync, const BackwardOptions& options) {
  module.backward(loss, options);
  for (const auto& group : groups_) group->reduce_gradients();
}

void PlacedStrategy::drop_gradients_of_copies() noexcept {
  for (const auto& group : groups_) group->drop_gradients();
}

std::string PlacedStrategy::device_report() const {
  if (!busy_) return "";
  const std::vector<double> shares = busy_->shares();
  std::vector<std::string> parts;
  for (size_t i = 0; i < shares.size(); ++i)
    parts.push_back(cat(devices_[i].str(), " ", format_fixed(100 * shares[i], 0), " %"));
  return cat("busy: ", join(parts, " · "), " of ", format_fixed(busy_->seconds(), 1), " s");
}

void PlacedStrategy::teardown() noexcept {
  busy_.reset();
  groups_.clear();
  if (module_)
    for (const auto& placed : detail::ComponentAccess::placed_modules(*module_)) placed->check_inputs(false);
  module_ = nullptr;
}

namespace {

constexpr const char* kMicroBatches =
    "Number of parts a batch is split into, so that devices compute at the same time; losses are weighted by their "
    "share of the samples.";

}  // namespace

void ModelParallelStrategy::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_trainer_key;
  f(placement, "placement",
    "Submodules (nn::Placed members) and the device of each: {encoder: 0, decoder: cuda:1}. Empty: the module places "
    "them in configure_model().");
  f(micro_batches, "micro_batches", kMicroBatches).at_least(1);
}

ModelParallelStrategy::ModelParallelStrategy(Options options)
    : PlacedStrategy(options.placement, options.micro_batches) {
  for (const auto& [submodule, group] : options.placement)
    if (group.indices.size() != 1)
      throw ConfigError(cat("[strategies.model_parallel] placement: '", submodule, "' must be on one device; got ",
                            static_cast<int64_t>(group.indices.size()), ". Use trainer.strategy: hybrid for several."));
}

void HybridStrategy::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_trainer_key;
  f(placement, "placement",
    "Submodules (nn::Placed members) and the devices of each, over which it is data-parallel: {encoder: [0..3], "
    "decoder: [4..7]}.")
      .required();
  f(micro_batches, "micro_batches", kMicroBatches).at_least(1);
}

HybridStrategy::HybridStrategy(Options options) : PlacedStrategy(options.placement, options.micro_batches) {
  if (options.placement.empty())
    throw ConfigError(
        "[strategies.hybrid] placement is empty. Say which submodule is on which devices, or use model_parallel or "
        "dp.");
}

[[maybe_unused]] static const bool model_parallel_registered = Registry<Strategy>::add<ModelParallelStrategy>(
    "model_parallel", "Submodules on different devices, in one process; micro-batches keep them busy.");
[[maybe_unused]] static const bool hybrid_registered = Registry<Strategy>::add<HybridStrategy>(
    "hybrid", "Submodules on groups of devices, data-parallel inside a group, in one process.");

}  // namespace fulgur
