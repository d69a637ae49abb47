#pragma once

#include <string>
#include <vector>

#include "fulgur/history/run.h"

namespace fulgur::history {

/// What differs between configs, as it is shown to a person.
///
/// Components of a list are named by their class (`trainer.callbacks[EarlyStopping]`), so that one more of them moves
/// no other. A component that only some of the configs have, or that is of another class in some, is one entry: its
/// class and its options that do not have their defaults, `EarlyStopping(monitor=val_acc, patience=5)`. Components in a
/// list inside it are shown by their classes: `ImageFolderDataModule(transforms=[ToFloat, Normalize])`.
///
/// A config without keys is that of a run which ended before it wrote one. It makes no difference; its texts are `-`.
struct ShownDifferences {
  struct Entry {
    std::string key;
    bool is_listed = false;          ///< a component of a list, whose text names it
    std::vector<std::string> texts;  ///< one for each config; `-`: it does not have the key
  };
  std::vector<Entry> entries;
};

ShownDifferences shown_differences(const std::vector<const ConfigKeys*>& configs);

}  // namespace fulgur::history
