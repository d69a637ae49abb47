#include "distributed/mesh_groups.h"

#include <algorithm>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr std::array<const char*, kMeshAxes> kAxisNames{"tensor", "shard", "data", "pipeline"};

}  // namespace

MeshGroups::MeshGroups(ProcessGroup& whole, const MeshSizes& sizes)
    : whole_(whole), sizes_{sizes.tensor, sizes.shard, sizes.data, sizes.pipeline}, places_{} {
  int64_t rest = whole.place().rank;
  for (size_t axis = 0; axis < sizes_.size(); ++axis) {
    places_[axis] = rest % sizes_[axis];
    rest /= sizes_[axis];
  }
  for (size_t axis = 0; axis < sizes_.size(); ++axis) {
    if (sizes_[axis] == 1) continue;
    // A group is named by the coordinates that its ranks have in common.
    std::string name = kAxisNames[axis];
    for (size_t other = 0; other < sizes_.size(); ++other)
      if (other != axis) name += cat("_", places_[other]);
    groups_[axis].emplace(
        whole, whole.impl().make_group(name, static_cast<int>(places_[axis]), static_cast<int>(sizes_[axis])));
  }
}

c10::intrusive_ptr<c10d::ProcessGroup> MeshGroups::connect(const std::string& name,
                                                           const std::vector<int64_t>& places) {
  const auto own = std::ranges::find(places, place(MeshAxis::pipeline)) - places.begin();
  return whole_.impl().make_group(
      cat(name, "_", place(MeshAxis::data), "_", place(MeshAxis::shard), "_", place(MeshAxis::tensor)),
      static_cast<int>(own), static_cast<int>(places.size()));
}

}  // namespace fulgur::detail
