#include "saving/failed_saves.h"

#include <bit>
#include <utility>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {

std::optional<std::string> FailedSaves::failed(const std::string& why) {
  ++in_a_row_;
  if (!std::has_single_bit(static_cast<uint64_t>(in_a_row_))) return std::nullopt;
  if (in_a_row_ == 1)
    return cat("a checkpoint could not be saved, and training continues (on_save_error: continue): ", why);
  return cat(in_a_row_,
             " checkpoints in a row could not be saved, and training continues; the next message comes after ",
             2 * in_a_row_, ": ", why);
}

std::optional<std::string> FailedSaves::succeeded() {
  const int64_t failed = std::exchange(in_a_row_, 0);
  if (failed == 0) return std::nullopt;
  return cat("checkpoints can be saved again, after ", failed,
             failed == 1 ? " attempt that" : " attempts in a row that", " failed");
}

}  // namespace fulgur::detail
