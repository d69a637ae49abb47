#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur {

/// `monitor 'val_los' was not logged; there are: val_loss; did you mean 'val_loss'?`: a whole sentence.
FULGUR_API std::string monitor_not_logged(std::string_view monitor, const std::vector<std::string>& names);

/// Whether `monitor` is a misspelt name of a metric of validation, all of which are `names`. Only where that is sure: a
/// metric may come from training, or be logged every few epochs. It begins with the same word as a name that differs in
/// one or two letters, and not in numbers only.
FULGUR_API bool misspells_validation_metric(std::string_view monitor, const std::vector<std::string>& names);

}  // namespace fulgur
