#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "distributed/process_group_impl.h"

namespace fulgur::detail {

/// The axes of a mesh of ranks, the innermost first: ranks next to each other differ in it.
enum class MeshAxis { tensor, shard, data, pipeline };
inline constexpr size_t kMeshAxes = 4;

/// The number of ranks along each axis.
struct MeshSizes {
  int64_t tensor = 1, shard = 1, data = 1, pipeline = 1;
};

/// The ranks of a run as a mesh: rank = tensor + tensor ranks · (shard + shard ranks · (data + data ranks · pipeline)).
/// Ranks that differ in one coordinate only are a group.
class MeshGroups {
 public:
  /// All ranks must call it. The sizes multiply to the number of ranks.
  MeshGroups(ProcessGroup& whole, const MeshSizes& sizes);
  MeshGroups(const MeshGroups&) = delete;
  MeshGroups& operator=(const MeshGroups&) = delete;

  ProcessGroup& whole() const { return whole_; }
  int64_t size(MeshAxis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  /// The coordinate of this rank.
  int64_t place(MeshAxis axis) const { return places_[static_cast<size_t>(axis)]; }
  /// The ranks that differ from this one in this coordinate only, in its order; nullptr: this one alone.
  C10dCollectives* along(MeshAxis axis) {
    auto& group = groups_[static_cast<size_t>(axis)];
    return group ? &*group : nullptr;
  }
  /// A group of some ranks of this rank's pipeline, in increasing order, among them this one, which all call it. `name`
  /// is unique in the pipeline.
  c10::intrusive_ptr<c10d::ProcessGroup> connect(const std::string& name, const std::vector<int64_t>& places);

 private:
  ProcessGroup& whole_;
  std::array<int64_t, kMeshAxes> sizes_, places_;
  std::array<std::optional<C10dCollectives>, kMeshAxes> groups_;
};

}  // namespace fulgur::detail
