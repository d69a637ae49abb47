#include "pipeline/received_parameters.h"

#include <algorithm>
#include <utility>

#include "fulgur/core/state/stored_values.h"
#include "sharding/first_rank_values.h"
#include "sharding/storages.h"

namespace fulgur::detail {

void receive_parameter(MeshGroups& mesh, const StageTensor& parameter, TensorShards* parts, at::Device device) {
  const Tensor& value = parameter.value;
  if (!stored_values(value)) return;
  const bool is_divided = parts && parts->has(value);
  Tensor own = values_of_first_rank(mesh.whole(), "mesh", value, device);
  if (is_divided) own = parts->part_of(value, own);
  // A gradient of a checkpoint, of an accumulation window, has the shape of the part.
  const Tensor gradient = std::exchange(value.mutable_grad(), Tensor());
  replace_data(value, own);
  if (gradient.defined()) value.mutable_grad() = gradient.to(device);
  if (std::ranges::find(parameter.ranks, mesh.place(MeshAxis::pipeline)) == parameter.ranks.end())
    // `StageParameters` says later how it can be read.
    set_storage(value, unreadable_storage(own.storage(), "[strategies.mesh] the parameter belongs to other stages"));
  else if (is_divided)
    parts->keep(value);
}

}  // namespace fulgur::detail
