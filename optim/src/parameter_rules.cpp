#include "fulgur/optim/parameter_rules.h"

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

void ParameterRule::fields(Fields& f) {
  f(pattern, "pattern",
    "Pattern of parameter names: * matches any characters, ? one character, [ab] one of the characters listed.")
      .required();
  f(lr, "lr", "Learning rate of these parameters; null: the optimizer's.").greater_than(0);
  f(weight_decay, "weight_decay", "Weight decay of these parameters; null: the optimizer's.").at_least(0);
  f(name, "name", "Name of the group in logs; empty: the pattern.");
}

void ParameterRules::fields(Fields& f) {
  f(groups, "groups", "Parameters with their own hyper-parameters, by name; the first matching pattern applies.");
  f(no_decay_norm_and_bias, "no_decay_norm_and_bias",
    "Disables weight decay for parameters with fewer than two dimensions: biases and the weights of norms.");
}

void throw_no_match(const std::string& option, const std::string& pattern, const std::vector<std::string>& names) {
  std::string plain = pattern;
  std::erase(plain, '*');
  if (plain.starts_with('.')) plain.erase(0, 1);
  std::vector<std::string> near = nearest_names(plain, names);
  // `*.biass` is similar only to the ends of names.
  for (const std::string& name : names) {
    const std::string end = name.substr(std::min(name.size(), name.rfind('.') + 1));
    if (near.size() < 3 && !nearest_names(plain, {end}).empty() && std::ranges::find(near, name) == near.end())
      near.push_back(name);
  }
  constexpr size_t kShown = 8;
  std::string text = near.empty() ? "the parameters are " : "similar names are ";
  if (near.empty())
    near.assign(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kShown)));
  text += join(near);
  if (names.size() > kShown && near.size() == kShown) text += cat(", … (", names.size(), " in all)");
  throw ConfigError(cat("[optim.", option, "] the pattern '", pattern, "' matches no parameter; ", text, "."));
}

std::vector<ParamGroup> ParameterRules::apply(std::vector<ParamGroup> given) const {
  if (groups.empty() && !no_decay_norm_and_bias) return given;
  std::vector<ParamGroup> out;
  std::vector<std::string> names;
  std::vector<bool> used(groups.size()), matched(groups.size());
  for (const ParamGroup& group : given) {
    if (group.names.size() != group.params.size()) return given;  // attach reports it
    // For each rule, and first for parameters that no rule matches: those with decay, then those without.
    std::vector<ParamGroup> parts(2 * (groups.size() + 1));
    for (size_t i = 0; i < group.params.size(); ++i) {
      const std::string& name = group.names[i];
      names.push_back(name);
      size_t rule = groups.size();
      for (size_t r = groups.size(); r-- > 0;)
        if (matches_pattern(groups[r].pattern, name)) {
          matched[r] = true;
          rule = r;
        }
      const ParameterRule* own = rule < groups.size() ? &groups[rule] : nullptr;
      if (own) used[rule] = true;
      const bool decay_is_set = group.weight_decay || (own && own->weight_decay);
      const bool spared = no_decay_norm_and_bias && !decay_is_set && group.params[i].dim() < 2;
      ParamGroup& part = parts[2 * (own ? rule + 1 : 0) + (spared ? 1 : 0)];
      if (part.params.empty()) {
        part.name = group.name;
        part.lr = group.lr;
        part.initial_lr = group.initial_lr;
        part.weight_decay = group.weight_decay;
        if (own) {
          part.name = own->name.empty() ? own->pattern : own->name;
          if (own->lr) part.lr = part.initial_lr = *own->lr;
          if (own->weight_decay) part.weight_decay = own->weight_decay;
        }
        if (spared) {
          part.name += part.name.empty() ? "no_decay" : "_no_decay";
          part.weight_decay = 0.0;
        }
      }
      part.params.push_back(group.params[i]);
      part.names.push_back(name);
    }
    for (ParamGroup& part : parts)
      if (!part.params.empty()) out.push_back(std::move(part));
  }
  for (size_t r = 0; r < groups.size(); ++r) {
    if (!matched[r]) throw_no_match("groups", groups[r].pattern, names);
    if (!used[r])
      throw ConfigError(cat("[optim.groups] all parameters matched by the pattern '", groups[r].pattern,
                            "' are already matched by earlier patterns. Write the narrower pattern first."));
  }
  return out;
}

}  // namespace fulgur
