#include "fulgur/checkpoint/module_state.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>

#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/matches_pattern.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

std::string describe(const Tensor& tensor) {
  return cat(c10::toString(tensor.scalar_type()), " ", shape_text(tensor.sizes()));
}

// A foreign file may cause any number of lines.
std::string first_of(const std::vector<std::string>& lines, std::string_view separator) {
  constexpr size_t kShown = 100;
  if (lines.size() <= kShown) return join(lines, separator);
  return cat(join({lines.begin(), lines.begin() + kShown}, separator), separator, "… and ", lines.size() - kShown,
             " more");
}

// The tensors under their names in the module.
std::map<std::string, const Tensor*> renamed(const NamedTensors& tensors,
                                             const std::map<std::string, std::string>& prefixes) {
  std::map<std::string, const Tensor*> given;
  std::set<std::string> used;
  for (const auto& [name, tensor] : tensors) {
    // Longer prefixes sort after the shorter ones that they start with.
    const auto fits = std::find_if(prefixes.rbegin(), prefixes.rend(),
                                   [&](const auto& prefix) { return name.starts_with(prefix.first); });
    std::string in_module = name;
    if (fits != prefixes.rend()) {
      in_module = fits->second + name.substr(fits->first.size());
      used.insert(fits->first);
    }
    if (!given.emplace(in_module, &tensor).second)
      throw CheckpointError(cat("[checkpoint.load_module_state] two tensors of the checkpoint would be '",
                                escape_controls(in_module), "' in the module; one of them is '", escape_controls(name),
                                "'. Change key_prefixes."));
  }
  for (const auto& [prefix, replacement] : prefixes)
    if (!used.contains(prefix))
      throw CheckpointError(
          cat("[checkpoint.load_module_state] key_prefixes: no tensor of the checkpoint begins with '",
              escape_controls(prefix), "' (or a longer prefix matches all that do). Names there begin with '",
              tensors.empty() ? "" : escape_controls(tensors.front().first), "'."));
  return given;
}

// A Python state dict lists a tied parameter under all of its names, or under only one, which need not be the name that
// comes first here.
void untie(const torch::nn::Module& module, std::map<std::string, const Tensor*>& given) {
  for (const auto& [alias, name] : parameter_aliases(module)) {
    const auto found = given.find(alias);
    if (found == given.end()) continue;
    const auto [kept, is_new] = given.emplace(name, found->second);
    if (!is_new && !read_now(*kept->second).equal(read_now(*found->second)))
      throw CheckpointError(cat("[checkpoint.load_module_state] '", alias, "' and '", name,
                                "' are one parameter in the module; the checkpoint has two different ones."));
    given.erase(found);
  }
}

// Which names are ignored; notes which patterns have matched.
class IgnoredNames {
 public:
  explicit IgnoredNames(const std::vector<std::string>& patterns) : patterns_(patterns), used_(patterns.size()) {}
  bool has(const std::string& name) {
    bool matches = false;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (!matches_pattern(patterns_[i], name)) continue;
      matches = used_[i] = true;
    }
    return matches;
  }
  void check_used(const NamedTensors& of_module) const {
    for (size_t i = 0; i < patterns_.size(); ++i)
      if (!used_[i])
        throw CheckpointError(
            cat("[checkpoint.load_module_state] ignore: neither the module nor the checkpoint has a tensor that '",
                escape_controls(patterns_[i]), "' matches. Names in the module are such as '",
                of_module.empty() ? "" : of_module.back().first, "'."));
  }

 private:
  const std::vector<std::string>& patterns_;
  std::vector<bool> used_;
};

}  // namespace

NamedTensors module_state(const torch::nn::Module& module) {
  NamedTensors state;
  for (auto& [name, value] : unique_parameters(module)) state.emplace_back(name, value);
  for (const auto& item : module.named_buffers())
    if (item.value().defined()) state.emplace_back(item.key(), item.value());
  return state;
}

std::map<std::string, std::string> parameter_aliases(const torch::nn::Module& module) {
  std::map<const void*, std::string> first;
  std::map<std::string, std::string> aliases;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().defined()) continue;
    const auto [place, is_new] = first.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!is_new) aliases.emplace(item.key(), place->second);
  }
  return aliases;
}

LoadReport load_module_state(torch::nn::Module& module, const NamedTensors& tensors, const LoadOptions& options) {
  std::map<std::string, const Tensor*> given = renamed(tensors, options.key_prefixes);
  untie(module, given);
  LoadReport report;
  std::vector<std::string> wrong;
  std::vector<std::pair<Tensor, const Tensor*>> copies;
  std::set<std::string> known;
  IgnoredNames ignored(options.ignore);
  std::erase_if(given, [&](const auto& item) { return ignored.has(item.first); });
  const NamedTensors of_module = module_state(module);
  for (const auto& [name, target] : of_module) {
    known.insert(name);
    if (ignored.has(name)) {
      report.ignored.push_back(name);
      continue;
    }
    const auto found = given.find(name);
    if (found == given.end()) {
      wrong.push_back(cat("missing: ", name, " (the module has ", describe(target), ")"));
      report.missing.push_back(name);
      continue;
    }
    const Tensor& source = *found->second;
    const bool converts = options.convert_formats && source.is_floating_point() && target.is_floating_point();
    if (source.sizes() != target.sizes() || (source.scalar_type() != target.scalar_type() && !converts)) {
      wrong.push_back(
          cat("other shape or dtype: ", name, ": checkpoint ", describe(source), ", module ", describe(target)));
      report.mismatched.push_back(name);
      continue;
    }
    if (source.scalar_type() != target.scalar_type())
      report.converted.push_back(cat(name, ", ", c10::toString(source.scalar_type()), " in the checkpoint, ",
                                     c10::toString(target.scalar_type()), " here"));
    copies.emplace_back(target, &source);
    report.loaded.push_back(name);
  }
  for (const auto& [name, tensor] : given) {
    if (known.contains(name)) continue;
    wrong.push_back(cat("unexpected: ", escape_controls(name), " (the checkpoint has ", describe(*tensor), ")"));
    report.unexpected.push_back(name);
  }
  ignored.check_used(of_module);
  report.differences = first_of(wrong, "\n");
  if (options.strict && !wrong.empty())
    throw CheckpointError(cat("[checkpoint.load_module_state] the checkpoint does not fit the module:\n  ",
                              first_of(wrong, "\n  "),
                              "\nUse the config with which the checkpoint was saved (it is in the run folder)."));
  for (auto& [target, source] : copies) assign_values(target, *source);
  return report;
}

}  // namespace fulgur
