#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fulgur/core/contracts/module.h"

namespace fulgur::detail {

/// The members that a module's class adds, as bytes: numbers, flags, handles, the ends of vectors; not what they point
/// to. Host code that changes them may change what a captured step should do. If the module's class is not known,
/// nothing is seen.
class WatchedMembers {
 public:
  explicit WatchedMembers(const LightningModule& module);
  /// Keeps the present bytes.
  void remember();
  bool changed() const;
  /// Whether a change since `remember` calls for a comparison: the first, second, fourth, eighth … change of one of the
  /// words does. So a counter that nothing depends on costs few comparisons. Takes some nanoseconds if nothing changed.
  bool due();
  /// What the last call of `due` has found, for display; nullopt if nothing had changed. C++ keeps no names of members,
  /// so this is the place in the object, as `offsetof` gives it.
  std::optional<std::string> last_change() const;

 private:
  std::string class_;
  const std::byte* whole_ = nullptr;
  std::optional<size_t> changed_at_;
  std::vector<std::span<const std::byte>> parts_;
  std::vector<std::byte> before_;
  std::vector<uint32_t> changes_;  // by word
};

}  // namespace fulgur::detail
