#include "config/weights_config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "config/links.h"
#include "fulgur/core/contracts/key_map.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::config {
namespace {

namespace fs = std::filesystem;
using WeightsJson = nlohmann::json;

// An entry of config.json that a rule has found.
struct FoundEntry {
  std::string key;   // as a message names it
  std::string text;  // of the value
};

// The text of a scalar node below `root`; nullopt if there is none.
std::optional<std::string> text_at(const ConfigNode& root, std::initializer_list<std::string_view> path) {
  const ConfigNode* node = &root;
  for (const std::string_view key : path)
    if (node = node->find(key); node == nullptr) return std::nullopt;
  return node->is_scalar() ? std::optional(node->text()) : std::nullopt;
}

// The class of a component, in its short form or its long one.
std::optional<std::string> class_of_node(const ConfigNode& root, std::initializer_list<std::string_view> path) {
  const ConfigNode* node = &root;
  for (const std::string_view key : path)
    if (node = node->find(key); node == nullptr) return std::nullopt;
  return node->is_scalar() ? std::optional(node->text()) : text_at(*node, {"class_path"});
}

std::shared_ptr<KeyMap> key_map_of(const ConfigNode& root) {
  const ConfigNode* const node = root.find("pretrained");
  const ConfigNode* const map = node != nullptr ? node->find("key_map") : nullptr;
  if (map == nullptr || map->is_null()) return nullptr;
  // Mistakes in it are reported when the whole config is read.
  Spec<KeyMap> spec;
  Problems ignored;
  if (!spec.read(*map, ignored, "") || !ignored.empty() || !spec) return nullptr;
  return spec.create();
}

fs::path config_beside(const fs::path& weights) {
  std::error_code none;
  return (fs::is_directory(weights, none) ? weights : weights.parent_path()) / "config.json";
}

// The config.json beside the weights, for a message; nullopt if it cannot be read.
std::optional<WeightsJson> json_beside(const fs::path& weights) {
  try {
    const auto text = read_regular_file(config_beside(weights));
    WeightsJson json = WeightsJson::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
    return json.is_object() ? std::optional(std::move(json)) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<FoundEntry> find_entry(const WeightsJson& json, const ConfigRule& rule) {
  for (const std::string& key : rule.keys) {
    const WeightsJson* value = &json;
    for (const std::string& part : split_text(key, '.')) {
      const auto found = value->is_object() ? value->find(part) : value->end();
      value = value->is_object() && found != value->end() ? &*found : nullptr;
      if (value == nullptr) break;
    }
    if (value == nullptr || !value->is_primitive() || value->is_null()) continue;
    const bool is_text = value->is_string();
    return FoundEntry{cat(key, ": ", is_text ? escape_controls(value->get<std::string>()) : value->dump()),
                      is_text                    ? value->get<std::string>()
                      : value->is_number_float() ? format_double(value->get<double>())
                                                 : value->dump()};
  }
  if (rule.otherwise.empty()) return std::nullopt;
  return FoundEntry{rule.keys.empty() ? "the key map" : cat("no ", rule.keys.front()), rule.otherwise};
}

// Numbers by their value, and words without regard to capitals.
bool same_value(const std::string& a, const std::string& b) {
  const auto x = parse_whole<double>(a), y = parse_whole<double>(b);
  if (x && y) return *x == *y;
  return std::ranges::equal(a, b, [](char p, char q) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
    return lower(p) == lower(q);
  });
}

}  // namespace

std::optional<std::pair<std::string, std::string>> key_map_beside(const fs::path& weights) {
  const auto json = json_beside(weights);
  if (!json) return std::nullopt;
  const auto type = json->find("model_type");
  if (type == json->end() || !type->is_string()) return std::nullopt;
  const std::string wanted = type->get<std::string>();
  for (const std::string& name : component_registry(KeyMap::kRegistryKind).names()) {
    const std::shared_ptr<KeyMap> map = Spec<KeyMap>(name).create();
    for (const ConfigRule& rule : map ? map->config_rules() : std::vector<ConfigRule>())
      if (rule.keys == std::vector<std::string>{"model_type"} &&
          std::ranges::any_of(rule.values, [&](const auto& value) { return value.first == wanted; }))
        return std::pair(wanted, name);
  }
  return std::nullopt;
}

namespace {

class WeightsConfig {
 public:
  WeightsConfig(ConfigNode& root, fs::path file, Problems& problems)
      : root_(root), file_(std::move(file)), problems_(problems) {}

  void apply(const ConfigRule& rule, const WeightsJson& json, const Fields& options) {
    if (!rule.option.empty() && options.find(rule.option) == nullptr) return;
    const std::optional<FoundEntry> entry = find_entry(json, rule);
    if (!entry) return;
    std::string value = entry->text;
    if (!rule.values.empty()) {
      const auto known = std::ranges::find(rule.values, value, &std::pair<std::string, std::string>::first);
      if (known == rule.values.end()) return refuse(*entry, rule);
      value = known->second;
    }
    if (!rule.option.empty()) set(rule, *entry, value);
  }

  std::vector<std::string> taken;

 private:
  void refuse(const FoundEntry& entry, const ConfigRule& rule) {
    std::vector<std::string> known;
    for (const auto& [theirs, ours] : rule.values) known.push_back(theirs);
    // The rule of the model's type belongs to one key map; another one may know the type.
    const bool is_type = rule.keys == std::vector<std::string>{"model_type"};
    const auto other = is_type ? key_map_beside(file_) : std::nullopt;
    if (other)
      return problems_.add(place_of_path(), "pretrained.key_map",
                           cat("is for ", join(known), ", but ", shown(), " has ", entry.key,
                               ". Set pretrained.key_map: ", other->second));
    problems_.add(place_of_path(), "pretrained.path",
                  cat(shown(), " has ", entry.key, "; the model here computes only ", join(known),
                      ". The weights would give other numbers. To load them all the same, set pretrained.use_config: "
                      "false"));
  }

  void set(const ConfigRule& rule, const FoundEntry& entry, const std::string& value) {
    const std::string path = cat("model.init_args.", rule.option);
    if (names_link_target(root_, path)) return;
    ConfigNode& args = root_.get_or_add("model").get_or_add("init_args");
    const ConfigNode* const own = args.find(rule.option);
    const bool is_set = own != nullptr && !own->is_null() && !(own->is_scalar() && own->text() == "auto");
    if (!is_set) {
      ConfigNode node = ConfigNode::scalar(value);
      node.where = {file_.string(), 0, 0};
      args.set(rule.option, std::move(node));
      taken.push_back(rule.option);
      return;
    }
    if (!rule.exact || !own->is_scalar() || same_value(own->text(), value)) return;
    if (std::ranges::find(taken, rule.option) != taken.end())
      return problems_.add(place_of_path(), "pretrained.path",
                           cat(shown(), " means both ", own->text(), " and ", value, " (", entry.key, ") for ", path,
                               ": the model here has one value for both. To load the weights all the same, set "
                               "pretrained.use_config: false"));
    problems_.add(
        own->where, path,
        cat("is ", own->describe(), ", but ", shown(), " says ", value, " (", entry.key,
            "): the weights would not give the numbers that they were trained for. Set it to ", value,
            ", or remove it: it is taken from config.json then. To keep it, set pretrained.use_config: false"));
  }

  Location place_of_path() const {
    const ConfigNode* const pretrained = root_.find("pretrained");
    const ConfigNode* const path = pretrained != nullptr ? pretrained->find("path") : nullptr;
    return path != nullptr ? path->where : Location{};
  }
  std::string shown() const { return escape_controls(file_.string()); }

  ConfigNode& root_;
  fs::path file_;
  Problems& problems_;
};

}  // namespace

std::vector<std::string> options_unlike_config(const fs::path& weights, const KeyMap& map, const ConfigNode& options) {
  std::vector<std::string> unlike;
  const auto json = json_beside(weights);
  if (!json || !options.is_map()) return unlike;
  for (const ConfigRule& rule : map.config_rules()) {
    const ConfigNode* const own = rule.option.empty() ? nullptr : options.find(rule.option);
    const auto entry = own != nullptr && own->is_scalar() ? find_entry(*json, rule) : std::nullopt;
    if (!entry || !rule.values.empty() || same_value(own->text(), entry->text)) continue;
    unlike.push_back(cat("model.init_args.", rule.option, " is ", own->text(), " (", entry->key, ")"));
  }
  return unlike;
}

std::vector<std::string> take_weights_config(ConfigNode& root, Problems& problems) {
  const auto path = text_at(root, {"pretrained", "path"}), use = text_at(root, {"pretrained", "use_config"});
  const auto model = class_of_node(root, {"model"});
  const ComponentInfo* const info = model ? component_registry(LightningModule::kRegistryKind).find(*model) : nullptr;
  if (!path || path->empty() || info == nullptr || (use && same_value(*use, "false"))) return {};
  const std::shared_ptr<KeyMap> map = key_map_of(root);
  const std::vector<ConfigRule> rules = map ? map->config_rules() : std::vector<ConfigRule>();
  if (rules.empty()) return {};
  const fs::path file = config_beside(*path);
  std::error_code none;
  if (!fs::is_regular_file(file, none)) return {};
  WeightsConfig config(root, file, problems);
  const auto problem = [&](std::string_view what) {
    problems.add(root.find("pretrained")->where, "pretrained.path",
                 cat(escape_controls(file.string()), " ", what, ". Repair it, or set pretrained.use_config: false"));
    return std::vector<std::string>();
  };
  std::optional<std::string> text;
  try {
    text = read_regular_file(file);
  } catch (const Error& error) {
    return problem(cat("cannot be read: ", error.what()));
  }
  const WeightsJson json = WeightsJson::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return problem("must be a JSON object; it is not one");
  // The short form of a model has no place for options.
  if (ConfigNode& node = root.get_or_add("model"); node.is_scalar()) {
    ConfigNode whole = ConfigNode::map();
    whole.where = node.where;
    whole.set("class_path", node);
    node = std::move(whole);
  }
  const OptionFields options(info->make_options());
  for (const ConfigRule& rule : rules) config.apply(rule, json, options.fields);
  return std::move(config.taken);
}

}  // namespace fulgur::config
