#pragma once

#include <string>

#include "fulgur/core/export.h"
#include "fulgur/core/options/config_node.h"
#include "fulgur/core/state/stage.h"

namespace fulgur::detail {

/// What to do if the data module has no data for a stage: names the options among `options`, the `init_args` of the
/// data module (null: not known), that give it such data. For a model that is `trained`, those that divide its training
/// data are no help: it has seen all parts.
FULGUR_API std::string advice_for_missing_data(const ConfigNode* options, RunningStage stage, bool trained);

}  // namespace fulgur::detail
