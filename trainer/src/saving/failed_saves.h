#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {

/// Messages about consecutive failed saves while training continues: for the 1st, 2nd, 4th, 8th, … in a row, and once
/// when a save succeeds again, so that a full disk does not fill the log too.
class FailedSaves {
 public:
  /// The message for one more failure, if any.
  std::optional<std::string> failed(const std::string& why) {
    ++in_a_row_;
    if (!std::has_single_bit(static_cast<uint64_t>(in_a_row_))) return std::nullopt;
    if (in_a_row_ == 1)
      return cat("a checkpoint could not be saved, and training continues (on_save_error: continue): ", why);
    return cat(in_a_row_,
               " checkpoints in a row could not be saved, and training continues; the next message comes after ",
               2 * in_a_row_, ": ", why);
  }
  /// The message for a successful save, if any.
  std::optional<std::string> succeeded() {
    const int64_t failed = std::exchange(in_a_row_, 0);
    if (failed == 0) return std::nullopt;
    return cat("checkpoints can be saved again, after ", failed,
               failed == 1 ? " attempt that" : " attempts in a row that", " failed");
  }

 private:
  int64_t in_a_row_ = 0;
};

}  // namespace fulgur::detail
