#pragma once

#include <cstdint>

#include "fulgur/strategies/mesh.h"

namespace fulgur::detail {

/// Throws a ConfigError for options that do not go together.
void check_mesh_options(const MeshStrategy::Options& options);
/// Those of the ranks along `data` and `shard`: hybrid sharding.
FSDPStrategy::Options fsdp_options(const MeshStrategy::Options& options);
/// The size of the axis `data`. Throws a ConfigError that names the axis which does not divide the ranks.
int64_t data_size(const MeshAxes& axes, int64_t ranks);

}  // namespace fulgur::detail
