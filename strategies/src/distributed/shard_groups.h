#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
  ShardGroups(const ShardGroups&) = delete;
  ShardGroups& operator=(const ShardGroups&) = delete;

  ProcessGroup& whole() const { return whole_; }
  /// The ranks that have the parts of this rank's copy.
  C10dCollectives& parts() { return parts_ ? *parts_ : *whole_.impl().collectives; }
  /// The ranks that have the same part; nullptr: this one alone.
  C10dCollectives* copies() { return copies_ ? &*copies_ : nullptr; }

 private:
  void connect(std::optional<C10dCollectives>& group, const std::string& name, const std::vector<int64_t>& ranks);

  ProcessGroup& whole_;
  std::optional<C10dCollectives> parts_, copies_;
};

}  // namespace fulgur::detail
