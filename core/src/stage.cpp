#include "fulgur/core/stage.h"

namespace fulgur {

std::string_view name_of(Verb verb) {
  switch (verb) {
    case Verb::fit:
      return "fit";
    case Verb::validate:
      return "validate";
    case Verb::test:
      return "test";
    case Verb::predict:
      return "predict";
  }
  return "";
}

std::string_view name_of(Stage stage) {
  switch (stage) {
    case Stage::train:
      return "train";
    case Stage::validate:
      return "validate";
    case Stage::test:
      return "test";
    case Stage::predict:
      return "predict";
  }
  return "";
}

}  // namespace fulgur
