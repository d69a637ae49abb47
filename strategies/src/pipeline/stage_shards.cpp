#include "pipeline/stage_shards.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "fulgur/core/text/text.h"
#include "pipeline/received_parameters.h"
#include "sharding/gradient_shards.h"
#include "sharding/storages.h"
#include "sharding/unit_reducer.h"

namespace fulgur::detail {
namespace {

std::vector<NamedParameter> parameters_of_plan(const std::vector<StageTensor>& tensors) {
  std::vector<NamedParameter> parameters;
  for (const StageTensor& tensor : tensors)
    if (tensor.is_parameter) parameters.push_back({tensor.name, tensor.value});
  return parameters;
}

// Ranks that step the same parameters have the same units of them: parameters of several stages, and those that ranks
// along `tensor` do not divide, are apart from the others.
DividedUnits::Making making_of(MeshGroups& mesh, const std::vector<StageTensor>& tensors,
                               const std::optional<std::vector<std::string>>& patterns, TensorShards* parts,
                               ParameterShards& parameters, at::Device device) {
  std::unordered_map<const void*, std::string> kinds;
  std::unordered_map<const void*, const StageTensor*> places;
  for (const StageTensor& tensor : tensors) {
    places.emplace(tensor.value.unsafeGetTensorImpl(), &tensor);
    std::string kind = parts && parts->has(tensor.value) ? "part" : "whole";
    for (const int64_t rank : tensor.ranks) kind += cat(" ", rank);
    kinds.emplace(tensor.value.unsafeGetTensorImpl(), std::move(kind));
  }
  return {.patterns = patterns,
          .keep_parts = true,
          // All ranks take part in sending the values of each unit, and those of its stage keep them.
          .begin_unit =
              [&mesh, places = std::move(places), parts, device](const std::vector<NamedParameter>& members) {
                for (const NamedParameter& member : members)
                  receive_parameter(mesh, *places.at(member.value.unsafeGetTensorImpl()), parts, device);
                const std::vector<int64_t>& ranks = places.at(members.front().value.unsafeGetTensorImpl())->ranks;
                return std::ranges::find(ranks, mesh.place(MeshAxis::pipeline)) != ranks.end();
              },
          .on_unit =
              [parts, &parameters](FlatUnit& unit) {
                if (parts) parts->move_to(unit);
                const c10::Storage away = parameters.add(unit);
                if (parts) parts->know_while_free(unit, away);
              },
          .kind_of = [kinds = std::move(kinds)](
                         const Tensor& parameter) { return kinds.at(parameter.unsafeGetTensorImpl()); }};
}

}  // namespace

StageShards::StageShards(const LightningModule& module, MeshGroups& mesh, const std::vector<StageTensor>& tensors,
                         TensorShards* parts, const std::vector<Optimizer*>& optimizers,
                         const std::optional<std::vector<std::string>>& patterns, at::Device device)
    : groups_(mesh),
      parameters_(groups_, {.strategy = "mesh", .instead = ""}),
      units_(module, parameters_of_plan(tensors), optimizers, groups_, device,
             making_of(mesh, tensors, patterns, parts, parameters_, device)),
      steps_in_units_(mesh.along(MeshAxis::pipeline) == nullptr) {}

void StageShards::begin_step() {
  if (steps_in_units_)
    parameters_.begin_forward();
  else
    gather();
}

void StageShards::begin_backward() {
  if (steps_in_units_) parameters_.begin_backward();
}

void StageShards::end_step() {
  if (steps_in_units_)
    parameters_.divide();
  else
    free();
}

void StageShards::gather() {
  if (!std::exchange(are_there_, true)) parameters_.hold();
}

void StageShards::free() {
  if (std::exchange(are_there_, false)) parameters_.release();
}

Tensor StageShards::while_gathered(const Tensor& parameter) const {
  Tensor place = parameter.detach();
  set_storage(place, units_.units()[units_.place_of(parameter).unit]->buffer().storage());
  return place;
}

Tensor StageShards::own_elements(const Tensor& parameter) const {
  const auto [unit, index] = units_.place_of(parameter);
  return units_.units()[unit]->own_elements(index);
}

Tensor StageShards::whole(size_t unit) { return parameters_.whole(unit); }

std::unique_ptr<GradientExchange> StageShards::make_reducer(std::vector<NamedParameter> parameters) {
  return std::make_unique<UnitReducer>(groups_, units_, std::move(parameters), /*reduce_dtype=*/std::nullopt,
                                       /*find_unused=*/std::nullopt);
}

void StageShards::average_gradients(const std::vector<Tensor>& parameters) {
  GradientShards(groups_, units_, /*reduce_dtype=*/std::nullopt).average(parameters, /*may_be_missing=*/false);
}

}  // namespace fulgur::detail
