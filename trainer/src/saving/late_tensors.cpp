#include "saving/late_tensors.h"

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

const void* memory_of(const Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace

void LateTensors::watch_parameters() {
  for (const PlannedOptimizer& planned : run_.optimizer_plan().optimizers)
    for (const ParamGroup& group : planned.optimizer->groups())
      for (const Tensor& parameter : group.of_module()) watch(parameter);
}

void LateTensors::collect(const StateTree& optimizers) {
  late_.clear();
  for (const PlannedOptimizer& planned : run_.optimizer_plan().optimizers)
    for (const ParamGroup& group : planned.optimizer->groups())
      for (const auto* list : {&group.params, &group.of_module()})
        for (const Tensor& parameter : *list) late_.insert(memory_of(parameter));
  add(optimizers);
  for (const void* memory : written_) late_.erase(memory);
  late_.erase(nullptr);
}

void LateTensors::add(const StateTree& state) {
  if (state.is_tensor()) {
    if (state.tensor().defined()) late_.insert(memory_of(state.tensor()));
  } else if (state.is_map()) {
    for (const auto& [key, value] : state.as_map()) add(value);
  } else if (state.is_list()) {
    for (const StateTree& value : state.as_list()) add(value);
  }
}

bool LateTensors::take(const Tensor& tensor) {
  // Without a version counter, writes cannot be detected.
  if (tensor.is_inference() || !late_.contains(memory_of(tensor))) return false;
  watch(tensor);
  return true;
}

void LateTensors::watch(const Tensor& tensor) {
  if (!tensor.is_inference()) watched_.emplace_back(tensor, tensor._version());
}

std::string LateTensors::end_watch() {
  std::string name;
  for (const auto& [tensor, version] : watched_) {
    if (tensor._version() == version) continue;
    written_.insert(memory_of(tensor));
    if (name.empty()) name = name_of(tensor);
  }
  watched_.clear();
  return name;
}

std::string LateTensors::name_of(const Tensor& tensor) const {
  for (const auto& [name, value] : unique_parameters(run_.module()))
    if (memory_of(value) == memory_of(tensor)) return cat("the parameter '", name, "'");
  return "a tensor of an optimizer";
}

}  // namespace fulgur::detail
