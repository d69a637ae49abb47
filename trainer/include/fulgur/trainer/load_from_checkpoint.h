#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/module.h"

namespace fulgur {

/// Options of a module that differ from those in the checkpoint, as on the command line: `{{"dropout", "0.0"}}`. Dotted
/// names reach into nested options.
using OptionOverrides = std::vector<std::pair<std::string, std::string>>;

namespace detail {

/// The hyper-parameters in a checkpoint's state, with `overrides`. Throws a ConfigError for an override that is no
/// YAML.
FULGUR_API ConfigNode checkpoint_hparams(const StateTree& state, const OptionOverrides& overrides);

/// Throws a CheckpointError where `hparams` lacks options: those of a module that was made by hand are not known.
FULGUR_API void require_hparams(const ConfigNode& hparams, const Fields& fields);

}  // namespace detail

/// The module that a checkpoint holds, as an M, ready for inference: its options from the checkpoint, its weights
/// loaded, on the CPU and in eval mode. No Trainer and no config is needed, and nothing in the checkpoint chooses code:
/// M does. Throws a CheckpointError where the checkpoint is damaged, does not fit M or does not know M's options (a
/// module that make_shared made: use make_component, or give all of them), a ConfigError for options that M has not.
template <std::derived_from<LightningModule> M>
std::shared_ptr<M> load_from_checkpoint(const std::filesystem::path& path, const OptionOverrides& overrides = {}) {
  const CheckpointContent content = read_checkpoint(path, CheckpointParts::weights_and_state);
  const ConfigNode hparams = detail::checkpoint_hparams(content.state, overrides);
  OptionsOf<OptionsType<M>> options;
  Problems problems;
  Fields fields;
  options.fields(fields);
  detail::require_hparams(hparams, fields);
  fields.read(hparams, problems, "hparams");
  problems.throw_if_any();
  auto module = make_component<LightningModule, M>(options.value);
  module->configure_model();
  module->on_load_checkpoint(content.state);
  load_module_state(*module, content.module);
  module->eval();
  return module;
}

}  // namespace fulgur
