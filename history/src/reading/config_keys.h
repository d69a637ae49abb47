#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/options/config_node.h"
#include "fulgur/history/run.h"

namespace fulgur::history {

/// The nodes of a run's `config.yaml`; null if the file does not exist. Throws a DataError if it is damaged.
ConfigNode read_config(const std::filesystem::path& run_dir);

/// The verb that the first line of a run's `config.yaml` names; `fit` if it names none.
std::string read_verb(const std::filesystem::path& run_dir);

/// Why a run without rows has none, if its config says it: no logger, or none whose files can be read. Empty otherwise.
std::string why_no_log(const Run& run);

using NodeText = std::string (*)(const ConfigNode&);
std::string plain_text(const ConfigNode& node);  ///< of a value without its quotes; `null`

/// The values of a config by their paths, as texts: `value` of a single value or an empty map, `item` of a value in a
/// list.
ConfigKeys flatten(const ConfigNode& config, NodeText value = plain_text, NodeText item = plain_text);

/// The monitor of the first ModelCheckpoint, or else of the first EarlyStopping, that has one.
std::optional<Monitor> monitor_in(const ConfigNode& config);

/// The text of the key; nullptr if the config does not have it.
const std::string* find_key(const ConfigKeys& config, std::string_view key);

/// The keys that have different values in some of the runs, or that some of the runs do not have; in the order of the
/// configs.
std::vector<std::string> different_keys(const std::vector<const ConfigKeys*>& configs);

/// `different_keys` of the configs that have keys: a run that ended before it wrote its config differs in nothing.
std::vector<std::string> different_keys_of_runs(std::vector<const ConfigKeys*> configs);

/// For each key the shortest end of it, from a dot on, that is not the end of another key: `lr` for
/// `optimizer.init_args.lr`.
std::vector<std::string> short_names(const std::vector<std::string>& keys);

}  // namespace fulgur::history
