#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "distributed/shard_groups.h"
#include "sharding/flat_unit.h"

namespace fulgur::detail {

/// float32 copies of this rank's parts of the units in half precision, which optimizers step in place of the parts.
class MasterParts {
 public:
  /// Whole copies, by the addresses of parameters.
  using Copies = std::unordered_map<const void*, Tensor>;
  /// Makes the parts of units whose parameters have copies. `units` must outlive this.
  MasterParts(const std::vector<std::unique_ptr<FlatUnit>>& units, const Copies& copies, at::Device device);

  bool has(size_t unit) const { return parts_[unit].defined(); }
  /// Of a parameter, as a view [count]; its unit `has` a part.
  Tensor own_elements(size_t unit, size_t index) const;
  /// Rounds the part to the values that the module has.
  void write_back(size_t unit) const;
  int64_t bytes() const;
  /// The parts of all ranks that share the unit, in a buffer that is as long. All of them must call it.
  Tensor gather(size_t unit, ShardGroups& groups) const;

 private:
  const std::vector<std::unique_ptr<FlatUnit>>& units_;
  std::vector<Tensor> parts_;  // of each unit; undefined without copies
};

}  // namespace fulgur::detail
