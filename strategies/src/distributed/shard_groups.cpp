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

ShardGroups::ShardGroups(ProcessGroup& whole) : whole_(whole) {}

ShardGroups::ShardGroups(ProcessGroup& whole, int64_t shard_size) : whole_(whole) {
  const int64_t rank = whole.place().rank, ranks = whole.place().world_size;
  if (ranks % shard_size != 0)
    throw ConfigError(cat("[strategies.fsdp] ", shard_size,
                          " ranks have the parts of a copy, which does not divide the ", ranks,
                          " ranks of the run. Set trainer.strategy.init_args.shard_size to a divisor."));
  if (shard_size == ranks) return;
  const int64_t copy = rank / shard_size, part = rank % shard_size;
  std::vector<int64_t> parts, copies;
  for (int64_t i = 0; i < shard_size; ++i) parts.push_back(copy * shard_size + i);
  for (int64_t i = 0; i < ranks / shard_size; ++i) copies.push_back(i * shard_size + part);
  connect(parts_, cat("parts", copy), parts);
  connect(copies_, cat("copies", part), copies);
}

}  // namespace fulgur::detail
