#pragma once

#include <string>
#include <string_view>

#include "fulgur/core/export.h"
#include "fulgur/core/options/monitor_mode.h"

namespace fulgur::detail {

/// What is doubtful about ranking a metric by `mode`, such as `val_acc` by `min`, as a sentence without a full stop;
/// empty if nothing is. It goes by the words of the name (`acc`, `auroc`, `loss`, …), of which the last known one
/// counts.
FULGUR_API std::string doubtful_mode(std::string_view monitor, MonitorMode mode);

}  // namespace fulgur::detail
