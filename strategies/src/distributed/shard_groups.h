#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distributed/mesh_groups.h"
#include "distributed/process_group_impl.h"

namespace fulgur::detail {

/// Who has the parts of what is divided, and who has the same part.
class ShardGroups {
 public:
  /// All ranks have parts.
  explicit ShardGroups(ProcessGroup& whole);
  /// Each `size` ranks in a row have the parts of one copy. All ranks must call it. Throws a ConfigError that names
  /// `option` if that does not divide their number.
  ShardGroups(ProcessGroup& whole, int64_t size, std::string_view option);
  /// Ranks along `shard`, of which there are several, have the parts of one copy, those along `data` have copies.
  /// `mesh` must outlive this.
  explicit ShardGroups(MeshGroups& mesh);
  ShardGroups(const ShardGroups&) = delete;
  ShardGroups& operator=(const ShardGroups&) = delete;

  /// How errors call the strategy.
  const char* strategy() const { return strategy_; }
  ProcessGroup& whole() const { return whole_; }
  /// The ranks that have the parts of this rank's copy.
  C10dCollectives& parts() const { return *parts_; }
  /// The ranks that have the same part; nullptr: this one alone.
  C10dCollectives* copies() const { return copies_; }
  /// The number of ranks whose gradients are averaged: all parts of all copies.
  int64_t shares() const { return parts_->world_size() * (copies_ ? copies_->world_size() : 1); }
  /// The maximum of a value over them. All of them must call it.
  Tensor max_over_shares(const Tensor& value) const;
  /// The value of the first of them. All of them must call it.
  Tensor of_first_share(const Tensor& value) const;

 private:
  void connect(std::optional<C10dCollectives>& group, const std::string& name, const std::vector<int64_t>& ranks);

  const char* strategy_ = "fsdp";
  ProcessGroup& whole_;
  C10dCollectives *parts_, *copies_ = nullptr;
  std::optional<C10dCollectives> own_parts_, own_copies_;
};

}  // namespace fulgur::detail
