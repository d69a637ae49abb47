#include "fulgur/trainer/pretrained_weights.h"

#include "fulgur/core/text/errors.h"

namespace fulgur {

void PretrainedWeights::fields(Fields& f) {
  f(path, "path",
    "File with the weights: safetensors, a .pt file of torch.save, an index of safetensors shards, or a folder of "
    "Hugging Face's.");
  f(key_map, "key_map", "How the names in the file become those of the model; null: they are the same.").nullable();
  f(strict, "strict",
    "Names and shapes of all weights must match, except ignored ones; false: load what fits and report the rest.");
  f(ignore, "ignore",
    "Patterns of names in the model that keep their initial values, such as fc.* for a head with other classes.");
}

void PretrainedWeights::check() const {
  if (!path && (key_map || !strict || !ignore.empty()))
    throw ConfigError(
        "[pretrained] key_map, strict and ignore say how a file is loaded, and no file is named. Set "
        "pretrained.path, or remove them.");
}

}  // namespace fulgur
