#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fulgur::detail {

/// What is said of saves that fail one after the other while training continues: of the 1st, 2nd, 4th, 8th, … in a row,
/// and once when a save succeeds again. A disk that stays full does not fill the log as well.
class FailedSaves {
 public:
  /// What to say of one more, if anything.
  std::optional<std::string> failed(const std::string& why);
  /// What to say of a save that has succeeded, if anything.
  std::optional<std::string> succeeded();

 private:
  int64_t in_a_row_ = 0;
};

}  // namespace fulgur::detail
