#include "pipeline/stage_optimizers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "distributed/tensor_average.h"
#include "fulgur/core/state/state_bytes.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "sharding/first_rank_values.h"
#include "sharding/optimizer_shards.h"
#include "sharding/step_count.h"

namespace fulgur::detail {
namespace {

void check_stepped(const Optimizer& optimizer) {
  if (!optimizer.is_elementwise())
    throw ConfigError(
        cat("[strategies.mesh] a rank steps only the parameters of its stages, and its parts of divided "
            "layers, which ",
            optimizer.name(), " cannot. Use AdamW, Adam, SGD, RMSprop, Adagrad or Lion, or set ",
            "mesh.pipeline and mesh.tensor to 1."));
  for (const ParamGroup& group : optimizer.groups())
    if (!group.module_params.empty())
      throw ConfigError(
          "[strategies.mesh] the precision has made copies of the weights, which cannot be divided among ranks: only "
          "those of bf16-true and 16-true can. Use one of them, bf16-mixed or 32-true.");
}

}  // namespace

StageOptimizers::StageOptimizers(MeshGroups& mesh, const std::vector<StageTensor>& tensors,
                                 std::shared_ptr<const TensorShards> parts, std::shared_ptr<StageShards> shards,
                                 const StageParts& saved, std::vector<Optimizer*> optimizers,
                                 const std::map<const Optimizer*, StateTree>& whole,
                                 const std::unordered_map<const void*, Tensor>& copies, at::Device device)
    : mesh_(mesh),
      tensors_(tensors),
      saved_(saved),
      parts_(std::move(parts)),
      shards_(std::move(shards)),
      optimizers_(std::move(optimizers)) {
  std::unordered_set<const void*> known;
  for (const StageTensor& tensor : tensors) {
    known.insert(tensor.value.unsafeGetTensorImpl());
    // The first rank along the axis `tensor` steps what they all have.
    if (tensor.owner() == mesh.place(MeshAxis::pipeline) &&
        (mesh.place(MeshAxis::tensor) == 0 || divides(tensor.value)))
      owned_.insert(tensor.value.unsafeGetTensorImpl());
  }
  for (Optimizer* optimizer : optimizers_) check_stepped(*optimizer);
  const auto sum_over_ranks = [&mesh](const Tensor& value) {
    Tensor sum = value;
    for (const MeshAxis axis : {MeshAxis::tensor, MeshAxis::shard, MeshAxis::pipeline})
      if (C10dCollectives* const ranks = mesh.along(axis)) sum = ranks->all_reduce(sum, ReduceOp::sum);
    return sum;
  };
  for (Optimizer* optimizer : optimizers_) {
    const auto waits = whole.find(optimizer);
    const StateTree state = waits == whole.end() ? optimizer->state() : with_rates_of(*optimizer, waits->second);
    optimizer->step_shards(
        [&](const std::string& name, const Tensor& parameter) {
          if (!known.contains(parameter.unsafeGetTensorImpl()))
            throw ConfigError(cat("[strategies.mesh] ", optimizer->name(), " steps '", escape_controls(name),
                                  "', which is not a parameter of the module. Register it, or use strategy: ddp."));
          return shard_of(parameter, copies, device);
        },
        sum_over_ranks);
    load_state(*optimizer, state);
  }
}

Tensor StageOptimizers::shard_of(const Tensor& parameter, const std::unordered_map<const void*, Tensor>& copies,
                                 at::Device device) {
  const at::NoGradGuard no_grad;
  const auto copy = copies.find(parameter.unsafeGetTensorImpl());
  Tensor whole;
  if (copy != copies.end()) {
    with_copies_.insert(parameter.unsafeGetTensorImpl());
    // Ranks that step nothing of it take part in sending it, too.
    whole = values_of_first_rank(mesh_.whole(), "mesh", copy->second.detach(), device);
  }
  if (!owns(parameter)) return at::empty({0}, parameter.options().requires_grad(false)).set_requires_grad(true);
  if (!whole.defined())
    return shards_ ? shards_->units().make_shard(parameter) : parameter.detach().set_requires_grad(true);
  const Tensor own = own_copy(parameter, whole).set_requires_grad(true);
  if (shards_) {
    const auto [unit, index] = shards_->units().place_of(parameter);
    shards_->units().shard(unit, index) = own;
  }
  return own;
}

void StageOptimizers::give_back() const noexcept {
  for (Optimizer* optimizer : optimizers_) optimizer->step_whole_parameters();
}

GradientAverages* StageOptimizers::begin_averages() {
  averaged_.clear();
  C10dCollectives* const shares = mesh_.along(MeshAxis::data);
  if (shares == nullptr || shards_) return nullptr;
  if (!averages_) {
    std::vector<NamedParameter> alone;
    for (const StageTensor& tensor : tensors_)
      if (tensor.is_parameter && tensor.value.requires_grad() && tensor.ranks.size() == 1 &&
          tensor.stages.size() <= 1 && owns(tensor.value))
        alone.push_back({tensor.name, tensor.value});
    averages_ = std::make_unique<GradientAverages>(mesh_.whole(), *shares, std::move(alone), "mesh");
  }
  averages_->begin();
  is_averaging_ = true;
  return averages_.get();
}

void StageOptimizers::end_averages() {
  if (!std::exchange(is_averaging_, false)) return;
  averages_->end();
  for (const NamedParameter& parameter : averages_->parameters())
    averaged_.insert(parameter.value.unsafeGetTensorImpl());
}

GradientExchange* StageOptimizers::unit_averages() {
  averaged_.clear();
  if (!shards_ || !shards_->steps_in_units()) return nullptr;
  std::vector<const StageTensor*> learning;
  for (const StageTensor& tensor : tensors_)
    if (tensor.is_parameter && tensor.value.requires_grad() && shards_->units().steps(tensor.value))
      learning.push_back(&tensor);
  // Callbacks freeze and unfreeze parameters.
  const auto is_same = [](const NamedParameter& a, const StageTensor* b) { return a.value.is_same(b->value); };
  if (unit_averages_ && std::ranges::equal(unit_averages_->parameters(), learning, is_same))
    return unit_averages_.get();
  std::vector<NamedParameter> parameters;
  for (const StageTensor* tensor : learning) parameters.push_back({tensor->name, tensor->value});
  unit_averages_ = shards_->make_reducer(std::move(parameters));
  return unit_averages_.get();
}

void StageOptimizers::end_unit_averages() {
  unit_averages_->after_backward();
  for (const NamedParameter& parameter : unit_averages_->parameters())
    averaged_.insert(parameter.value.unsafeGetTensorImpl());
}

void StageOptimizers::take_gradients(Optimizer& optimizer) {
  std::vector<Tensor> own;
  for (const Tensor& parameter : parameters_of(optimizer))
    if (owns(parameter) && (shards_ || parameter.requires_grad()) &&
        averaged_.erase(parameter.unsafeGetTensorImpl()) == 0)
      own.push_back(parameter);
  if (shards_)
    shards_->average_gradients(own);
  else if (C10dCollectives* const shares = mesh_.along(MeshAxis::data); shares != nullptr && !own.empty())
    TensorAverage(kBlockMiB, DDPStrategy::Compression::none).average_gradients(own, *shares, /*may_be_missing=*/false);
  for (ParamGroup& group : optimizer.groups())
    for (size_t i = 0; i < group.params.size(); ++i) {
      Tensor& gradient = group.module_params[i].mutable_grad();
      // Hooks between backward and step may change what is stepped here.
      if (!owns(group.module_params[i])) {
        gradient.reset();
      } else if (!shards_ && !has_copy(group.module_params[i])) {
        group.params[i].mutable_grad() = gradient;
      } else if (!shards_ && gradient.defined()) {
        group.params[i].mutable_grad() = gradient.to(group.params[i].scalar_type());
        gradient.reset();
      }
    }
}

void StageOptimizers::note_step(Optimizer& optimizer) const {
  for (const ParamGroup& group : optimizer.groups())
    for (const Tensor& parameter : group.module_params)
      if (shards_ || !owns(parameter)) parameter.unsafeGetTensorImpl()->bump_version();
}

StateTree StageOptimizers::whole_state(const Tensor& parameter, const StateTree& state) const {
  if (!divides(parameter)) return state;
  StateTree::Map entries = state.as_map();
  for (auto& [name, value] : entries)
    if (value.is_tensor() && value.tensor().dim() > 0) value = parts_->whole_of(parameter, value.tensor());
  return entries;
}

StateTree StageOptimizers::own_state(const std::string& name, const Tensor& parameter, const StateTree& state) const {
  if (owns(parameter) && !divides(parameter) && !shards_) return state;
  StateTree::Map entries = state.as_map();
  for (auto& [entry, value] : entries) {
    if (!value.is_tensor() || entry == kStepCount) continue;
    if (!owns(parameter)) {
      value = at::empty({0}, value.tensor().options().device(at::kCPU));
      continue;
    }
    if (divides(parameter) && value.tensor().sizes() == parts_->whole_sizes(parameter))
      value = parts_->part_of(parameter, value.tensor());
    // Without shards, `load_state` of the optimizer reports other sizes.
    if (shards_) value = shards_->units().own_elements(name, parameter, entry, value.tensor());
  }
  return entries;
}

StateTree StageOptimizers::joined(const Optimizer& optimizer, StateTree of_parameters) const {
  // Those of the first share of the data have what rank 0 needs.
  if (mesh_.place(MeshAxis::data) != 0) return StateTree(nullptr);
  const bool is_first = mesh_.place(MeshAxis::shard) == 0;
  if (shards_) shards_->units().join_states(optimizer, of_parameters, is_first);
  if (!is_first) return StateTree(nullptr);
  StateTree::Map own;
  for (const ParamGroup& group : optimizer.groups())
    for (size_t i = 0; i < group.names.size(); ++i)
      if (owns(group.module_params[i]))
        own[group.names[i]] = whole_state(group.module_params[i], of_parameters.at(group.names[i]));
  if (mesh_.place(MeshAxis::tensor) != 0) return StateTree(nullptr);
  // One stage after the other bounds the memory.
  if (mesh_.along(MeshAxis::pipeline)) {
    const std::string packed = pack_state(own);
    for (int64_t rank = 1; rank < mesh_.size(MeshAxis::pipeline); ++rank) {
      const std::string of_rank =
          mesh_.along(MeshAxis::pipeline)
              ->broadcast_text(rank == mesh_.place(MeshAxis::pipeline) ? packed : std::string(), rank);
      if (mesh_.whole().place().rank != 0) continue;
      for (const auto& [name, value] : unpack_state(of_rank).as_map()) own[name] = value;
    }
  }
  return mesh_.whole().place().rank == 0 ? StateTree(std::move(own)) : StateTree(nullptr);
}

StateTree StageOptimizers::state(const Optimizer& optimizer) const {
  StateTree state = optimizer.state();
  const StateTree all = joined(optimizer, state.at("state"));
  if (all.is_null()) return StateTree(nullptr);
  for (const auto& [name, value] : all.as_map()) state["state"][name] = value;
  return state;
}

void StageOptimizers::load_state(Optimizer& optimizer, const StateTree& state) const {
  const at::NoGradGuard no_grad;
  StateTree own = state;
  for (const ParamGroup& group : optimizer.groups())
    for (size_t i = 0; i < group.names.size(); ++i)
      // `load_state` of the optimizer reports parameters that are missing.
      if (state.at("state").contains(group.names[i]))
        own["state"][group.names[i]] =
            own_state(group.names[i], group.module_params[i], state.at("state").at(group.names[i]));
  optimizer.load_state(own);
}

}  // namespace fulgur::detail
