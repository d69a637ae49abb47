#include "fulgur/trainer/pretrained_weights.h"

#include "fulgur/core/text/errors.h"

namespace fulgur {

void PretrainedWeights::fields(Fields& f) {
  f(path, "path",
    "File with the weights: safetensors, a .pt file of torch.save, an index of safetensors shards, or a folder of "
    "Hugging Face's.");
  f(key_map, "key_map", "How the names in the file become those of the model; null: they are the same.").nullable();
  f(key_prefix, "key_prefix",
    "Removed from the beginning of the names in the file, such as module. or model.; names without it remain.");
  f(strict, "strict",
    "Names and shapes of all weights must match, except ignored ones; false: load what fits and report the rest.");
  f(ignore, "ignore",
    "Patterns of names in the model that keep their initial values, such as fc.* for a head with other classes.");
  f(use_config, "use_config",
    "Options of the model that the config does not set are those of the config.json beside the weights, and the others "
    "must agree with it.");
}

void PretrainedWeights::check() const {
  if (!path && (key_map || !key_prefix.empty() || !strict || !ignore.empty() || !use_config))
    throw ConfigError(
        "[pretrained] key_map, key_prefix, strict, ignore and use_config say how a file is loaded, and no file is "
        "named. Set "
        "pretrained.path, or remove them.");
}

}  // namespace fulgur
