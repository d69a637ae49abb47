#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "fulgur/checkpoint/adapters.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/contracts/module.h"

namespace fulgur {

/// Module options that differ from those in the checkpoint, as on the command line: `{{"dropout", "0.0"}}`. Dotted
/// names reach into nested options.
using OptionOverrides = std::vector<std::pair<std::string, std::string>>;

namespace detail {

/// The hyper-parameters in a checkpoint's state, with `overrides`. Throws a ConfigError for an override that is not
/// valid YAML.
FULGUR_API ConfigNode checkpoint_hparams(const StateTree& state, const OptionOverrides& overrides);

/// Throws a CheckpointError if `hparams` lacks options, as it does for a module that was constructed directly.
FULGUR_API void require_hparams(const ConfigNode& hparams, const Fields& fields);

/// Throws a ConfigError that lists `problems`, if there are any, or says that the checkpoint is of another class than
/// `wanted`.
FULGUR_API void check_hparams(const StateTree& state, const std::type_info& wanted, const Problems& problems);

}  // namespace detail

/// The module in a checkpoint, as an M, ready for inference: options from the checkpoint, weights loaded (with adapters
/// merged into them), on the CPU and in eval mode. Needs no Trainer or config, and nothing in the checkpoint selects
/// code: only M does. Throws a CheckpointError if the checkpoint is damaged, does not fit M or does not contain M's
/// options (if the module was created with make_shared: use make_component, or pass all of them), and a ConfigError for
/// options that M does not have, which says so if the checkpoint is of another class.
template <std::derived_from<LightningModule> M>
std::shared_ptr<M> load_from_checkpoint(const std::filesystem::path& path, const OptionOverrides& overrides = {}) {
  CheckpointContent content = read_checkpoint(path, CheckpointParts::weights_and_state);
  const ConfigNode hparams = detail::checkpoint_hparams(content.state, overrides);
  OptionsOf<OptionsType<M>> options;
  Problems problems;
  Fields fields;
  options.fields(fields);
  detail::require_hparams(hparams, fields);
  fields.read(hparams, problems, "hparams");
  detail::check_hparams(content.state, typeid(M), problems);
  auto module = make_component<LightningModule, M>(options.value);
  LightningModule& base = *module;  // an M may have members of the same names
  base.configure_model();
  base.on_load_checkpoint(content.state);
  if (const auto adapters = adapters_of(content.state)) merge_adapters(content.module, *adapters);
  load_module_state(base, content.module);
  base.eval();
  return module;
}

}  // namespace fulgur
