#include "fulgur/trainer/adapters.h"

namespace fulgur {

void Adapters::fields(Fields& f) {
  f(target, "target",
    "Patterns of the names of linear layers that get an adapter: * matches any characters, dots too; [\"*\"]: all "
    "linear layers.")
      .required()
      .min_items(1);
  f(rank, "rank", "Rank of the adapters.").at_least(1);
  f(alpha, "alpha", "The output of an adapter is multiplied by alpha / rank.").greater_than(0);
  f(dropout, "dropout", "Share of an adapter's inputs that is set to zero in training.").at_least(0).less_than(1);
  f(train, "train", "Patterns of the names of other parameters that are trained too, such as those of a new head.");
  f(path, "path",
    "Adapters to begin with: a folder that `trainer export --only_adapters` or PEFT has written, or its safetensors "
    "file; "
    "not read if the run begins with a checkpoint that has adapters.");
}

}  // namespace fulgur
