#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "fulgur/core/options/config_node.h"

/// Events of TensorBoard's HParams table (tensorboard/plugins/hparams/plugin_data.proto, api.proto).
namespace fulgur::tensorboard {

struct HParam {
  std::string name;  ///< `optimizer/lr`
  std::variant<double, bool, std::string> value;
};

/// The leaves of a map, named by their path from the root with `/`, like Lightning. Lists, null and non-finite numbers
/// become strings. Empty if `hparams` is not a map. If several leaves have the same name, the last one wins.
std::vector<HParam> flatten_hparams(const ConfigNode& hparams);

/// The same leaves as texts.
std::vector<std::pair<std::string, std::string>> hparam_texts(const ConfigNode& hparams);

/// The columns of the table for all runs: those of `hparams`, and one for `metric`.
std::string experiment_event(double wall_time, const std::vector<HParam>& hparams, std::string_view metric);
/// The hyper-parameters of this run.
std::string run_start_event(double wall_time, const std::vector<HParam>& hparams);
std::string run_end_event(double wall_time, bool success);

}  // namespace fulgur::tensorboard
