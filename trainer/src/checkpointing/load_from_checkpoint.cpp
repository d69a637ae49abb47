#include "fulgur/trainer/load_from_checkpoint.h"

#include <c10/util/Type.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur::detail {
namespace {

// The class of the model in the config of a checkpoint; empty if it is not known.
std::string class_in_config(const StateTree& state) {
  if (!state.contains(checkpoint_keys::kConfig)) return {};
  Problems ignored;
  const ConfigNode config = parse_yaml(state.at(checkpoint_keys::kConfig).as_string(), "config", ignored);
  const ConfigNode* model = config.is_map() ? config.find("model") : nullptr;
  if (model != nullptr && model->is_map()) model = model->find("class_path");
  return model != nullptr && model->is_scalar() ? model->text() : std::string();
}

}  // namespace

ConfigNode checkpoint_hparams(const StateTree& state, const OptionOverrides& overrides) {
  if (state.contains(checkpoint_keys::kFabric))
    throw CheckpointError(
        "[trainer.load_from_checkpoint] Fabric wrote the checkpoint, which does not contain the module's options. "
        "Create the module, and load its weights with fulgur::load_module_state or Fabric::load.");
  Problems problems;
  ConfigNode hparams =
      parse_yaml(state.at(checkpoint_keys::kHparams).as_string(), "hparams of the checkpoint", problems);
  for (const auto& [name, text] : overrides) {
    ConfigNode value = text == "null" ? ConfigNode::null() : parse_yaml(text, cat("override of ", name), problems);
    ConfigNode* node = &hparams;
    for (const std::string& part : split_text(name, '.')) node = &node->get_or_add(part);
    *node = std::move(value);
  }
  problems.throw_if_any();
  return hparams;
}

void require_hparams(const ConfigNode& hparams, const Fields& fields) {
  // An option that is newer than the checkpoint gets its default.
  if (!hparams.is_map() || !hparams.entries().empty() || fields.all().empty()) return;
  throw CheckpointError(
      cat("[trainer.load_from_checkpoint] the checkpoint does not contain the module's options (", join(fields.names()),
          "): the module was created with make_shared. Create it with make_component<LightningModule, M>(options) or "
          "trainer.fit<M>(options, …) before it is trained, or pass the options here."));
}

void check_hparams(const StateTree& state, const std::type_info& wanted, const Problems& problems) {
  if (problems.empty()) return;
  const std::string saved = class_in_config(state), whole = c10::demangle(wanted.name());
  const std::string asked = whole.substr(whole.rfind(':') + 1);  // after the namespaces
  if (saved.empty() || saved == asked) problems.throw_if_any();
  const Problem& first = problems.items().front();
  throw ConfigError(cat("[trainer.load_from_checkpoint] the checkpoint is of ", escape_controls(saved), ", not ", asked,
                        ", which has other options (", escape_controls(first.path), ": ",
                        escape_controls(first.message), "). Load it as the class that was trained."));
}

}  // namespace fulgur::detail
