#pragma once

#include <string_view>

#include "fulgur/core/export.h"

namespace fulgur {

/// What the user asked for; `setup(verb)` and `teardown(verb)` receive it.
enum class Verb { fit, validate, test, predict };
/// Which loop runs.
enum class Stage { train, validate, test, predict };

FULGUR_API std::string_view name_of(Verb verb);
FULGUR_API std::string_view name_of(Stage stage);

}  // namespace fulgur
