#pragma once

#include <string_view>

#include "fulgur/core/export.h"

namespace fulgur {

/// What the user asked for. It is passed to `setup(verb)` and `teardown(verb)`.
enum class TrainerFn { fit, validate, test, predict };
/// The current loop.
enum class RunningStage { train, validate, test, predict };

FULGUR_API std::string_view name_of(TrainerFn fn);
FULGUR_API std::string_view name_of(RunningStage stage);

}  // namespace fulgur
