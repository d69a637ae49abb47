#include "fulgur/trainer/load_from_checkpoint.h"

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur::detail {

ConfigNode checkpoint_hparams(const StateTree& state, const OptionOverrides& overrides) {
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

}  // namespace fulgur::detail
