#include "pipeline/stage_shards.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "fulgur/core/text/text.h"
#include "sharding/gradient_shards.h"

namespace fulgur::detail {
namespace {

std::vector<NamedParameter> parameters_of_rank(const std::vector<StageTensor>& tensors, int64_t rank) {
  std::vector<NamedParameter> here;
  for (const StageTensor& tensor : tensors)
    if (tensor.is_parameter && std::ranges::find(tensor.ranks, rank) != tensor.ranks.end())
      here.push_back({tensor.name, tensor.value});
  return here;
}

// Ranks that step the same parameters have the same units of them: parameters of several stages, and those that ranks
// along `tensor` do not divide, are apart from the others.
DividedUnits::Making making_of(const std::vector<StageTensor>& tensors,
                               const std::optional<std::vector<std::string>>& patterns, TensorShards* parts,
                               ParameterShards& parameters) {
  std::unordered_map<const void*, std::string> kinds;
  for (const StageTensor& tensor : tensors) {
    std::string kind = parts && parts->has(tensor.value) ? "part" : "whole";
    for (const int64_t rank : tensor.ranks) kind += cat(" ", rank);
    kinds.emplace(tensor.value.unsafeGetTensorImpl(), std::move(kind));
  }
  return {.patterns = patterns,
          .keep_parts = true,
          .on_unit =
              [parts, &parameters](FlatUnit& unit) {
                if (parts) parts->move_to(unit);
                parameters.add(unit);
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
      units_(module, parameters_of_rank(tensors, mesh.place(MeshAxis::pipeline)), optimizers, groups_, device,
             making_of(tensors, patterns, parts, parameters_)) {
  gather();
}

void StageShards::gather() {
  if (!std::exchange(are_there_, true)) parameters_.hold();
}

void StageShards::free() {
  if (std::exchange(are_there_, false)) parameters_.release();
}

Tensor StageShards::own_elements(const Tensor& parameter) const {
  const auto [unit, index] = units_.place_of(parameter);
  return units_.units()[unit]->own_elements(index);
}

Tensor StageShards::whole(size_t unit) {
  const FlatUnit& flat = *units_.units()[unit];
  const Tensor buffer = at::empty({flat.numel()}, flat.kept_part().options());
  run_exchange(groups_.whole(), "mesh", [&] { groups_.parts().start_gather(buffer, flat.kept_part())->wait(); });
  return buffer;
}

void StageShards::average_gradients(const std::vector<Tensor>& parameters) {
  GradientShards(groups_, units_, /*reduce_dtype=*/std::nullopt).average(parameters);
}

}  // namespace fulgur::detail
