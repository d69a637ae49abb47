#include "reading/shown_differences.h"

#include <algorithm>
#include <map>
#include <set>

#include "fulgur/core/text/text.h"
#include "fulgur/trainer/default_options.h"
#include "reading/config_keys.h"

namespace fulgur::history {
namespace {

constexpr std::string_view kClass = ".class_path", kArguments = ".init_args.";

/// `trainer.callbacks[0].init_args.monitor` → `trainer.callbacks[EarlyStopping].init_args.monitor`. The second one of
/// its class is `EarlyStopping 2`.
ConfigKeys named_by_class(const ConfigKeys& keys) {
  std::map<std::string, std::string> names;  // of `trainer.callbacks[0]`: what its brackets contain
  std::map<std::string, int> counts;
  for (const auto& [key, text] : keys) {
    if (!key.ends_with(std::string(1, ']') + std::string(kClass))) continue;
    const std::string element = key.substr(0, key.size() - kClass.size());
    const int count = ++counts[element.substr(0, element.rfind('[')) + "\n" + text];
    names[element] = count == 1 ? text : cat(text, " ", count);
  }
  ConfigKeys named;
  for (const auto& [key, text] : keys) {
    std::string out;
    size_t taken = 0;
    for (size_t end = key.find(']'); end != std::string::npos; end = key.find(']', end + 1)) {
      const auto name = names.find(key.substr(0, end + 1));
      if (name == names.end()) continue;
      out += cat(key.substr(taken, key.rfind('[', end) + 1 - taken), name->second, "]");
      taken = end + 1;
    }
    named.emplace_back(out + key.substr(taken), text);
  }
  return named;
}

bool is_below(const std::string& key, const std::string& place) {
  return key.size() > place.size() && key.starts_with(place) && (key[place.size()] == '.' || key[place.size()] == '[');
}

/// The places of the components that not all configs have with the same class, without those inside another one.
std::vector<std::string> differing_components(const std::vector<ConfigKeys>& configs) {
  std::map<std::string, std::set<std::string>> classes;
  std::map<std::string, size_t> counts;
  std::vector<std::string> order;
  size_t with_keys = 0;
  for (const ConfigKeys& config : configs) {
    with_keys += config.empty() ? 0 : 1;
    for (const auto& [key, text] : config) {
      if (!key.ends_with(kClass)) continue;
      const std::string place = key.substr(0, key.size() - kClass.size());
      if (++counts[place] == 1) order.push_back(place);
      classes[place].insert(text);
    }
  }
  std::erase_if(order,
                [&](const std::string& place) { return classes[place].size() == 1 && counts[place] == with_keys; });
  std::vector<std::string> outermost;
  for (const std::string& place : order)
    if (std::none_of(order.begin(), order.end(), [&](const std::string& other) { return is_below(place, other); }))
      outermost.push_back(place);
  return outermost;
}

/// A list of components inside a component, of which only the classes are shown: their options would be too long.
struct InnerList {
  std::string name;
  size_t part = 0;  // its place among the options of the component
  std::vector<std::string> classes;
  bool is_default = true;
};

/// `transforms[Normalize]` of `transforms[Normalize].init_args.mean`, if this is a component; empty for other options.
std::string inner_element(const ConfigKeys& config, const std::string& begin, const std::string& option) {
  const size_t end = option.find(']');
  if (end == std::string::npos) return {};
  std::string element = option.substr(0, end + 1);
  return find_key(config, cat(begin, element, kClass)) ? element : std::string();
}

int64_t elements_of(const ConfigKeys& options, const std::string& list) {
  return std::count_if(options.begin(), options.end(), [&](const auto& entry) {
    const std::string& key = entry.first;
    return key.starts_with(list + "[") && key.find(']') + 1 + kClass.size() == key.size() && key.ends_with(kClass);
  });
}

/// `EarlyStopping(monitor=val_acc)`; the text of a value that is not a component, such as `null`; `-` if there is none.
std::string component_text(const ConfigKeys& config, const std::string& place) {
  const std::string* const name = find_key(config, place + std::string(kClass));
  if (!name) {
    const std::string* const value = find_key(config, place);
    return value ? *value : "-";
  }
  const auto options = detail::default_options(*name);
  const ConfigKeys defaults = options ? named_by_class(flatten(*options)) : ConfigKeys();
  std::vector<std::string> parts;
  std::vector<InnerList> lists;
  for (const auto& [key, text] : config) {
    if (!is_below(key, place) || key == place + std::string(kClass)) continue;
    const std::string begin = place + std::string(kArguments);
    // Options beside `init_args`, such as `every` of a callback, are null unless they are set.
    const bool is_argument = key.starts_with(begin);
    const std::string option = key.substr(is_argument ? begin.size() : place.size() + 1);
    const std::string* const usual = is_argument ? find_key(defaults, option) : nullptr;
    if (const std::string element = is_argument ? inner_element(config, begin, option) : ""; !element.empty()) {
      const std::string list = element.substr(0, element.find('['));
      if (lists.empty() || lists.back().name != list) {
        lists.push_back({.name = list, .part = parts.size(), .classes = {}});
        parts.emplace_back();
      }
      if (option == element + std::string(kClass)) lists.back().classes.push_back(text);
      if (!usual || *usual != text) lists.back().is_default = false;
      continue;
    }
    if (is_argument ? (usual && *usual == text) : (text == "null" || option == "init_args")) continue;
    parts.push_back(cat(option, "=", text));
  }
  for (const InnerList& list : lists)
    if (!list.is_default || elements_of(defaults, list.name) != static_cast<int64_t>(list.classes.size()))
      parts[list.part] = cat(list.name, "=[", join(list.classes), "]");
  std::erase(parts, "");
  return parts.empty() ? *name : cat(*name, "(", join(parts), ")");
}

}  // namespace

ShownDifferences shown_differences(const std::vector<const ConfigKeys*>& configs) {
  std::vector<ConfigKeys> named;
  for (const ConfigKeys* config : configs) named.push_back(named_by_class(*config));
  const std::vector<std::string> components = differing_components(named);
  std::vector<const ConfigKeys*> pointers;
  for (const ConfigKeys& config : named) pointers.push_back(&config);

  ShownDifferences shown;
  std::set<std::string> done;
  const auto add_component = [&](const std::string& place) {
    if (!done.insert(place).second) return;
    ShownDifferences::Entry entry{.key = place, .is_listed = place.ends_with(']'), .texts = {}};
    for (const ConfigKeys& config : named) entry.texts.push_back(component_text(config, place));
    shown.entries.push_back(std::move(entry));
  };
  for (const std::string& key : different_keys_of_runs(pointers)) {
    const auto component = std::find_if(components.begin(), components.end(),
                                        [&](const std::string& place) { return key == place || is_below(key, place); });
    if (component != components.end()) {
      add_component(*component);
      continue;
    }
    // An empty list, or no component, where another config has some: these say it.
    const bool is_empty = std::all_of(named.begin(), named.end(), [&](const ConfigKeys& config) {
      const std::string* const text = find_key(config, key);
      return !text || *text == "[]";
    });
    if (is_empty && std::any_of(components.begin(), components.end(),
                                [&](const std::string& place) { return is_below(place, key); }))
      continue;
    ShownDifferences::Entry entry{.key = key, .texts = {}};
    for (const ConfigKeys& config : named) {
      const std::string* const text = find_key(config, key);
      entry.texts.push_back(text ? *text : "-");
    }
    shown.entries.push_back(std::move(entry));
  }
  return shown;
}

}  // namespace fulgur::history
