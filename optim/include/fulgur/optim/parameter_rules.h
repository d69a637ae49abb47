#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/text/matches_pattern.h"

namespace fulgur {

/// Hyper-parameters of the parameters whose names match a pattern.
struct FULGUR_API ParameterRule {
  std::string pattern;
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
  std::string name = {};
  void fields(Fields& f);
};

/// Which parameters of a module get different hyper-parameters. It is part of the options of each optimizer here.
/// `fields()` of an optimizer's options calls this `fields()`, so that the keys appear next to its own.
struct FULGUR_API ParameterRules {
  std::vector<ParameterRule> groups = {};
  bool no_decay_norm_and_bias = false;
  void fields(Fields& f);

  /// Splits each group into one group per pattern and a group of the parameters that no pattern matches. The first
  /// match applies. With `no_decay_norm_and_bias`, parameters with fewer than two dimensions (biases, weights of norms)
  /// get weight decay 0, unless their pattern or group sets one. Throws a ConfigError with similar names if a pattern
  /// matches nothing.
  std::vector<ParamGroup> apply(std::vector<ParamGroup> given) const;
};

/// Throws the ConfigError for `pattern` of `option` (`groups`), which matches none of `names`.
[[noreturn]] FULGUR_API void throw_no_match(const std::string& option, const std::string& pattern,
                                            const std::vector<std::string>& names);

}  // namespace fulgur
