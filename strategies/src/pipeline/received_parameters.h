#pragma once

#include "distributed/mesh_groups.h"
#include "fulgur/strategies/stage_plan.h"
#include "tensor/tensor_shards.h"

namespace fulgur::detail {

/// Gives a parameter that stands for values, as those of `deferred_init` do, what this rank has of them: its part if
/// `parts`, which may be nullptr, divides the parameter, and memory that cannot be read if it belongs to other stages.
/// The values are those of the first rank. All ranks must call it for the same parameters in the same order.
void receive_parameter(MeshGroups& mesh, const StageTensor& parameter, TensorShards* parts, at::Device device);

}  // namespace fulgur::detail
