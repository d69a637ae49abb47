#include "fulgur/core/state/stage.h"

namespace fulgur {

std::string_view name_of(TrainerFn fn) {
  switch (fn) {
    case TrainerFn::fit:
      return "fit";
    case TrainerFn::validate:
      return "validate";
    case TrainerFn::test:
      return "test";
    case TrainerFn::predict:
      return "predict";
  }
  return "";
}

std::string_view name_of(RunningStage stage) {
  switch (stage) {
    case RunningStage::train:
      return "train";
    case RunningStage::validate:
      return "validate";
    case RunningStage::test:
      return "test";
    case RunningStage::predict:
      return "predict";
  }
  return "";
}

}  // namespace fulgur
