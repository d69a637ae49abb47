#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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
};

/// The name in the module; nullopt if `name` does not fit the rule. Empty if the tensor is left out.
FULGUR_API std::optional<std::string> renamed_by(const KeyRule& rule, std::string_view name);

}  // namespace fulgur
