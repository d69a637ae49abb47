#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "distributed/process_group_impl.h"

namespace fulgur::detail {

/// Some ranks of a run that exchange among themselves. Its errors, timeouts and end are those of the run's group.
class SubGroup {
 public:
  /// `ranks` of `whole`, among them this one; all of them must call it. `name` differs from that of other groups with
  /// one of these ranks.
  SubGroup(ProcessGroup& whole, const std::string& name, const std::vector<int64_t>& ranks);

  /// The place of this rank in `ranks`, and their number.
  int64_t rank() const { return collectives_.rank(); }
  int64_t size() const { return collectives_.world_size(); }
  C10dCollectives& collectives() { return collectives_; }

 private:
  C10dCollectives collectives_;
};

/// Who has the parts of what is divided, and who has the same part.
class ShardGroups {
 public:
  /// All ranks have parts.
  explicit ShardGroups(ProcessGroup& whole);
  /// Each `shard_size` ranks in a row have the parts of one copy. All ranks must call it. Throws a ConfigError if that
  /// does not divide their number.
  ShardGroups(ProcessGroup& whole, int64_t shard_size);
  ShardGroups(const ShardGroups&) = delete;
  ShardGroups& operator=(const ShardGroups&) = delete;

  ProcessGroup& whole() const { return whole_; }
  /// The ranks that have the parts of this rank's copy.
  C10dCollectives& parts() { return parts_ ? parts_->collectives() : *whole_.impl().collectives; }
  /// The ranks that have the same part; nullptr: this one alone.
  C10dCollectives* copies() { return copies_ ? &copies_->collectives() : nullptr; }

 private:
  ProcessGroup& whole_;
  std::optional<SubGroup> parts_, copies_;
};

}  // namespace fulgur::detail
