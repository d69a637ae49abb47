#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fulgur::detail {

/// Messages about consecutive failed saves while training continues: for the 1st, 2nd, 4th, 8th, … in a row, and once
/// when a save succeeds again, so that a full disk does not fill the log too.
class FailedSaves {
 public:
  /// The message for one more failure, if any.
  std::optional<std::string> failed(const std::string& why);
  /// The message for a successful save, if any.
  std::optional<std::string> succeeded();

 private:
  int64_t in_a_row_ = 0;
};

}  // namespace fulgur::detail
