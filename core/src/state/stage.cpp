#include "fulgur/core/state/stage.h"

#include <cstddef>

namespace fulgur {

std::string_view name_of(TrainerFn fn) {
  static constexpr std::string_view kNames[] = {"fit", "validate", "test", "predict"};
  return kNames[static_cast<size_t>(fn)];
}

std::string_view name_of(RunningStage stage) {
  static constexpr std::string_view kNames[] = {"train", "validate", "test", "predict"};
  return kNames[static_cast<size_t>(stage)];
}

}  // namespace fulgur
