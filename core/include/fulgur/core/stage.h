#pragma once

#include <string_view>

#include "fulgur/core/export.h"

namespace fulgur {

/// What the user asked for; `setup(verb)` and `teardown(verb)` receive it.
enum class TrainerFn { fit, validate, test, predict };
/// Which loop runs.
enum class RunningStage { train, validate, test, predict };

FULGUR_API std::string_view name_of(TrainerFn fn);
FULGUR_API std::string_view name_of(RunningStage stage);

}  // namespace fulgur
