#include "pipeline/stage_parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <map>
#include <string>
#include <utility>

#include "fulgur/core/state/state_bytes.h"
#include "fulgur/core/state/tensor_slice.h"
#include "sharding/step_count.h"

namespace fulgur::detail {
namespace {

// The elements of a tensor in the order of memory with the strides of `like`, as a vector.
Tensor elements_like(const Tensor& like, const Tensor& tensor) {
  if (!like.is_non_overlapping_and_dense()) return tensor.contiguous().flatten();
  if (tensor.strides() == like.strides()) return in_memory_order(tensor);
  return in_memory_order(at::empty_strided(tensor.sizes(), like.strides(), tensor.options()).copy_(tensor));
}

bool has_elements(const std::string& entry, const StateTree& value) { return entry != kStepCount && value.is_tensor(); }

}  // namespace

StageParts::StageParts(MeshGroups& mesh, const std::vector<StageTensor>& tensors,
                       std::shared_ptr<const TensorShards> parts, std::shared_ptr<const StageShards> shards)
    : mesh_(mesh), parts_(std::move(parts)), shards_(std::move(shards)) {
  for (const StageTensor& tensor : tensors) tensors_.emplace(tensor.value.unsafeGetTensorImpl(), &tensor);
}

bool StageParts::writes(const StageTensor& tensor) const {
  if (tensor.owner() != mesh_.place(MeshAxis::pipeline) || mesh_.place(MeshAxis::data) != 0) return false;
  if (mesh_.place(MeshAxis::tensor) != 0 && !divides(tensor.value)) return false;
  return tensor.is_parameter || mesh_.place(MeshAxis::shard) == 0;
}

Tensor StageParts::whole_of(const Tensor& tensor, at::ScalarType dtype) const {
  const auto options = at::TensorOptions().dtype(dtype).device(at::kMeta);
  if (divides(tensor)) {
    Tensor whole = at::empty(parts_->whole_sizes(tensor), options);
    set_slice(whole, parts_->slice_of(tensor));
    return whole;
  }
  return tensor.is_non_overlapping_and_dense() ? at::empty_strided(tensor.sizes(), tensor.strides(), options)
                                               : at::empty(tensor.sizes(), options);
}

int64_t StageParts::first_element(const StageTensor& tensor) const {
  if (!shards_ || !tensor.is_parameter) return 0;
  const auto [unit, index] = shards_->units().place_of(tensor.value);
  return shards_->units().units()[unit]->own_range(index).begin;
}

Tensor StageParts::own_values(const StageTensor& tensor) const {
  const Tensor value = tensor.value.detach();
  const bool is_joined = divides(tensor.value) && !parts_->are_divided();
  if (!shards_ || !tensor.is_parameter)
    return is_joined ? parts_->part_of(tensor.value, value).flatten() : elements_like(value, value);
  const auto [unit, index] = shards_->units().place_of(tensor.value);
  const FlatUnit& flat = *shards_->units().units()[unit];
  // What was written to a parameter that is whole now is not in the part yet.
  if (is_joined) {
    const auto [begin, count] = flat.own_range(index);
    return parts_->part_of(tensor.value, value).flatten().narrow(0, begin, count);
  }
  return shards_->are_there() ? flat.own_elements(index, flat.buffer()) : flat.own_elements(index);
}

Tensor StageParts::own_values(const Tensor& parameter, const Tensor& value) const {
  if (shards_) return value;  // already a vector
  return divides(parameter) ? value.contiguous().flatten() : elements_like(parameter, value);
}

TensorPart StageParts::part_of(const StageTensor& tensor, Tensor whole, const std::function<Tensor()>& own) const {
  const bool has_any = writes(tensor);
  Tensor values = has_any ? own() : at::empty({0}, whole.options().device(at::kCPU));
  return {.whole = std::move(whole), .begin = has_any ? first_element(tensor) : 0, .values = std::move(values)};
}

std::optional<TensorPart> StageParts::of_tensor(const Tensor& tensor) const {
  const at::NoGradGuard no_grad;
  const auto found = tensors_.find(tensor.unsafeGetTensorImpl());
  // Rank 0 has the buffers of its stages.
  if (found == tensors_.end() || (!found->second->is_parameter && found->second->owner() == 0)) return std::nullopt;
  return part_of(*found->second, whole_of(tensor, tensor.scalar_type()), [&] { return own_values(*found->second); });
}

TensorPart StageParts::of_copy(const Tensor& parameter, const Tensor& own) const {
  const at::NoGradGuard no_grad;
  return part_of(*tensors_.at(parameter.unsafeGetTensorImpl()), whole_of(parameter, at::kFloat),
                 [&] { return own_values(parameter, own.detach()); });
}

StateTree StageParts::described(const Optimizer& optimizer, const StateTree& of_parameters) const {
  StateTree::Map all;
  for (const ParamGroup& group : optimizer.groups())
    for (size_t i = 0; i < group.names.size(); ++i) {
      if (!writes(*tensors_.at(group.module_params[i].unsafeGetTensorImpl()))) continue;
      StateTree::Map entries = of_parameters.at(group.names[i]).as_map();
      for (auto& [entry, value] : entries)
        if (has_elements(entry, value))
          value = at::empty({0}, value.tensor().options().device(at::kCPU).requires_grad(false));
      all[group.names[i]] = std::move(entries);
    }
  return all;
}

StateTree StageParts::of_optimizer(const Optimizer& optimizer, std::vector<TensorPart>& parts) const {
  const at::NoGradGuard no_grad;
  StateTree state = optimizer.state();
  const StateTree own = state.at("state");
  StateTree& all = state["state"];
  // Ranks that divide a parameter have the same entries for it.
  const bool describes = mesh_.place(MeshAxis::tensor) == 0 && mesh_.place(MeshAxis::shard) == 0;
  const std::string text = pack_state(describes ? described(optimizer, own) : StateTree(StateTree::Map()));
  for (const std::string& of_rank : mesh_.whole().collectives().gather_text(text))
    for (const auto& [name, entries] : unpack_state(of_rank).as_map()) all[name] = entries;
  for (const ParamGroup& group : optimizer.groups())
    for (size_t i = 0; i < group.names.size(); ++i) {
      const Tensor& parameter = group.module_params[i];
      const StageTensor& tensor = *tensors_.at(parameter.unsafeGetTensorImpl());
      for (auto& [entry, value] : all[group.names[i]].as_map()) {
        if (!has_elements(entry, value)) continue;
        const Tensor whole = whole_of(parameter, value.tensor().scalar_type());
        value = StateTree(whole);
        parts.push_back(part_of(tensor, whole, [&, name = entry] {
          return own_values(parameter, own.at(group.names[i]).at(name).tensor());
        }));
      }
    }
  return state;
}

}  // namespace fulgur::detail
