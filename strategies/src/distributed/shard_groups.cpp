#include "distributed/shard_groups.h"

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

// The exchanges of `ranks`, among them this one; all of them call it. Errors, timeouts and end are those of the run's
// group.
void ShardGroups::connect(std::optional<C10dCollectives>& group, const std::string& name,
                          const std::vector<int64_t>& ranks) {
  const auto place = std::ranges::find(ranks, whole_.place().rank) - ranks.begin();
  group.emplace(whole_, whole_.impl().make_group(name, static_cast<int>(place), static_cast<int>(ranks.size())));
}

ShardGroups::ShardGroups(ProcessGroup& whole) : whole_(whole), parts_(&*whole.impl().collectives) {}

ShardGroups::ShardGroups(MeshGroups& mesh)
    : strategy_("mesh"),
      whole_(mesh.whole()),
      parts_(mesh.along(MeshAxis::shard)),
      copies_(mesh.along(MeshAxis::data)) {}

ShardGroups::ShardGroups(ProcessGroup& whole, int64_t size, std::string_view option) : ShardGroups(whole) {
  const int64_t rank = whole.place().rank, ranks = whole.place().world_size;
  if (ranks % size != 0)
    throw ConfigError(cat("[strategies] groups of ", size, " ranks do not divide the ", ranks,
                          " ranks of the run. Set trainer.strategy.init_args.", option, " to a divisor of ", ranks,
                          "."));
  if (size == ranks) return;
  const int64_t copy = rank / size, part = rank % size;
  std::vector<int64_t> parts, copies;
  for (int64_t i = 0; i < size; ++i) parts.push_back(copy * size + i);
  for (int64_t i = 0; i < ranks / size; ++i) copies.push_back(i * size + part);
  connect(own_parts_, cat("parts", copy), parts);
  connect(own_copies_, cat("copies", part), copies);
  parts_ = &*own_parts_;
  copies_ = &*own_copies_;
}

Tensor ShardGroups::max_over_shares(const Tensor& value) const {
  const Tensor of_copy = parts_->all_reduce(value, ReduceOp::max);
  return copies_ ? copies_->all_reduce(of_copy, ReduceOp::max) : of_copy;
}

Tensor ShardGroups::of_first_share(const Tensor& value) const {
  const Tensor of_copy = parts_->broadcast(value, 0);
  return copies_ ? copies_->broadcast(of_copy, 0) : of_copy;
}

}  // namespace fulgur::detail
