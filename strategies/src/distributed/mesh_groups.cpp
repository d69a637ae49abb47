#include "distributed/mesh_groups.h"

#include <algorithm>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {

MeshGroups::MeshGroups(ProcessGroup& whole, int64_t data, int64_t pipeline)
    : whole_(whole), sizes_{data, pipeline}, places_{whole.place().rank % data, whole.place().rank / data} {
  // A group is named by the coordinate that its ranks have in common.
  const auto make = [&](MeshAxis axis, MeshAxis other, const char* name) {
    if (size(axis) == 1) return;
    groups_[static_cast<size_t>(axis)].emplace(
        whole,
        whole.impl().make_group(cat(name, place(other)), static_cast<int>(place(axis)), static_cast<int>(size(axis))));
  };
  make(MeshAxis::data, MeshAxis::pipeline, "data");
  make(MeshAxis::pipeline, MeshAxis::data, "pipeline");
}

c10::intrusive_ptr<c10d::ProcessGroup> MeshGroups::connect(const std::string& name,
                                                           const std::vector<int64_t>& places) {
  const auto own = std::ranges::find(places, place(MeshAxis::pipeline)) - places.begin();
  return whole_.impl().make_group(cat(name, "_", place(MeshAxis::data)), static_cast<int>(own),
                                  static_cast<int>(places.size()));
}

}  // namespace fulgur::detail
