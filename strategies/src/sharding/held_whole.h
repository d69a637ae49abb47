#pragma once

#include <exception>
#include <memory>

#include "fulgur/core/contracts/whole_parameters.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

/// While it exists, what divides parameters has all of them: it is between `hold` and `release` of that object, if it
/// still exists. All ranks must create and release it.
template <class Divider>
class HeldWhole final : public WholeParameters {
 public:
  explicit HeldWhole(const std::shared_ptr<Divider>& of) : of_(of) { of->hold(); }
  ~HeldWhole() override {
    try {
      if (const auto still_divided = of_.lock()) still_divided->release();
    } catch (const std::exception& error) {
      // An exception that is under way may have left the device, or a recording on it, unusable, and is reported
      // itself.
      if (std::uncaught_exceptions() == 0)
        log::error(cat("parameters that were whole cannot be divided again: ", error.what()));
    }
  }
  HeldWhole(const HeldWhole&) = delete;
  HeldWhole& operator=(const HeldWhole&) = delete;

 private:
  std::weak_ptr<Divider> of_;
};

}  // namespace fulgur::detail
