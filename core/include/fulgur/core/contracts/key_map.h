#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur {

/// How one tensor of a weight file from another program becomes a tensor of a module. Names are compared part by part,
/// where parts are separated by dots: `*` stands for any one part, and `**` as the last part for all that remain (at
/// least one). In `to` they stand for the same parts, in the same order.
struct KeyRule {
  std::string from;
  std::string to;          ///< the name in the module; empty: the tensor is left out
  bool transpose = false;  ///< a matrix whose dimensions are swapped here
  /// The tensor is part number `part` of `parts` parts that are joined along dimension 0.
  int64_t part = 0, parts = 1;
};

/// What the other program's `config.json`, which lies beside the weights, says about one option of the model.
struct ConfigRule {
  /// Entries that may have the value; those of an object inside are separated by dots. The first one that is there and
  /// not null counts. Empty: the program knows no other value than `otherwise`.
  std::vector<std::string> keys;
  /// The option of the model. Empty: the model has no such option, and computes only what one of `values` means.
  std::string option;
  std::string otherwise = {};  ///< what no entry means; empty: nothing is known then
  /// The other program's words and ours. A word that is not among them is an error. Empty: the words are the same.
  std::vector<std::pair<std::string, std::string>> values = {};
  bool exact = true;  ///< false: another value in the config is right, too
};

/// The names of the weights of a model as another program writes them. Derive, and register it with
/// `Registry<KeyMap>::add`; `pretrained.key_map` of the config names it.
class FULGUR_API KeyMap {
 public:
  static constexpr const char* kRegistryKind = "key_map";
  virtual ~KeyMap();
  /// Removed from the beginning of each name that has it, before the rules are applied; it includes its dot.
  virtual std::string prefix() const { return {}; }
  /// The first rule that fits decides. A name that none fits is kept as it is, without the prefix.
  virtual std::vector<KeyRule> rules() const = 0;
  /// How the `config.json` beside the weights describes the model: options that the user's config does not set take its
  /// values. A model without an option of that name ignores the rule. A rule of `model_type` with `values` also tells
  /// an error about weights that do not fit which map they need.
  virtual std::vector<ConfigRule> config_rules() const { return {}; }
};

/// The name in the module; nullopt if `name` does not fit the rule. Empty if the tensor is left out.
FULGUR_API std::optional<std::string> renamed_by(const KeyRule& rule, std::string_view name);

}  // namespace fulgur
