#include "trainer_keys.h"

#include <algorithm>
#include <array>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {

std::optional<std::string> hint_for_trainer_key(std::string_view key) {
  static constexpr std::array<std::string_view, 7> kKeys{
      "accelerator", "accumulate_grad_batches", "capture", "devices", "num_nodes", "precision", "sync_batchnorm"};
  if (std::ranges::find(kKeys, key) == kKeys.end()) return std::nullopt;
  return cat("it is an option of the Trainer: trainer.", key);
}

}  // namespace fulgur::detail
