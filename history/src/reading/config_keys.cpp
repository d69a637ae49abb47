#include "reading/config_keys.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur::history {
namespace {

bool is_plain(const ConfigNode& node) { return node.is_null() || node.is_scalar(); }

struct Flattening {
  NodeText value, item;
  ConfigKeys keys = {};

  void add(const ConfigNode& node, const std::string& path) {
    if (node.is_map() && !node.entries().empty()) {
      for (const auto& [key, child] : node.entries()) add(child, join_path(path, key));
    } else if (node.is_list() && !std::all_of(node.items().begin(), node.items().end(), is_plain)) {
      for (size_t i = 0; i < node.items().size(); ++i) add(node.items()[i], cat(path, "[", i, "]"));
    } else if (node.is_list()) {
      std::vector<std::string> items;
      for (const ConfigNode& each : node.items()) items.push_back(item(each));
      keys.emplace_back(path, cat("[", join(items), "]"));
    } else {
      keys.emplace_back(path, node.is_map() ? "{}" : value(node));
    }
  }
};

std::string text_at(const ConfigNode& node, std::string_view key) {
  const ConfigNode* const found = node.find(key);
  return found && found->is_scalar() ? found->text() : "";
}

std::optional<Monitor> monitor_of(const ConfigNode& callback, std::string_view component) {
  const ConfigNode* const arguments = callback.find("init_args");
  if (text_at(callback, "class_path") != component || !arguments) return std::nullopt;
  const std::string metric = text_at(*arguments, "monitor");
  if (metric.empty()) return std::nullopt;
  return Monitor{metric, text_at(*arguments, "mode") != "max"};
}

}  // namespace

ConfigNode read_config(const std::filesystem::path& run_dir) {
  const std::filesystem::path file = run_dir / run_layout::kConfig;
  const auto text = read_regular_file(file);
  if (!text) return ConfigNode::null();
  Problems problems;
  ConfigNode config = parse_yaml(*text, file.string(), problems);
  if (!problems.empty())
    throw DataError(cat("[history.config] the config of a run is YAML; ", problems.report(),
                        ". Repair the file, or remove it to see the run without its config."));
  return config;
}

std::string read_verb(const std::filesystem::path& run_dir) {
  const std::string line = first_line(read_regular_file(run_dir / run_layout::kConfig).value_or(""));
  for (const char* verb : {"validate", "test", "predict"})
    if (line == std::string(run_layout::kVerbLine) + verb) return verb;
  return "fit";
}

std::string why_no_log(const Run& run) {
  if (!run.metrics.empty()) return "";
  constexpr const char* kAdvice = ": metrics are read from the files of a CsvLogger or a JsonlLogger";
  const std::string* const whole = find_key(run.config, "trainer.logger");
  if (whole && *whole == "false") return cat("the run has no logger", kAdvice);
  std::vector<std::string> loggers;
  for (const auto& [key, text] : run.config)
    if (key.starts_with("trainer.logger") && key.ends_with(".class_path")) loggers.push_back(text);
  if (loggers.empty()) return "";
  for (const char* read : {"CsvLogger", "JsonlLogger"})
    if (std::find(loggers.begin(), loggers.end(), read) != loggers.end()) return "";
  return cat("the run has no log that can be read, only ", join(loggers), kAdvice);
}

std::string plain_text(const ConfigNode& node) { return node.is_null() ? "null" : node.text(); }

ConfigKeys flatten(const ConfigNode& config, NodeText value, NodeText item) {
  Flattening flattening{.value = value, .item = item};
  if (!config.is_null()) flattening.add(config, "");
  return std::move(flattening.keys);
}

std::optional<Monitor> monitor_in(const ConfigNode& config) {
  const ConfigNode* const trainer = config.find("trainer");
  const ConfigNode* const callbacks = trainer ? trainer->find("callbacks") : nullptr;
  if (!callbacks) return std::nullopt;
  const auto all = callbacks->is_list() ? callbacks->items() : std::vector<ConfigNode>{*callbacks};
  for (const char* component : {"ModelCheckpoint", "EarlyStopping"})
    for (const ConfigNode& callback : all)
      if (auto monitor = monitor_of(callback, component)) return monitor;
  return std::nullopt;
}

const std::string* find_key(const ConfigKeys& config, std::string_view key) {
  const auto found = std::find_if(config.begin(), config.end(), [&](const auto& entry) { return entry.first == key; });
  return found == config.end() ? nullptr : &found->second;
}

std::vector<std::string> different_keys(const std::vector<const ConfigKeys*>& configs) {
  struct Seen {
    const std::string* text = nullptr;
    size_t count = 0;
    bool differs = false;
  };
  std::unordered_map<std::string_view, Seen> all;
  std::vector<std::string_view> order;
  for (const ConfigKeys* config : configs) {
    for (const auto& [key, text] : *config) {
      const auto [place, added] = all.try_emplace(key);
      if (added) order.push_back(key);
      Seen& seen = place->second;
      if (seen.text && *seen.text != text) seen.differs = true;
      seen.text = &text;
      ++seen.count;
    }
  }
  std::vector<std::string> keys;
  for (const std::string_view key : order)
    if (const Seen& seen = all.at(key); seen.differs || seen.count != configs.size()) keys.emplace_back(key);
  return keys;
}

std::vector<std::string> different_keys_of_runs(std::vector<const ConfigKeys*> configs) {
  std::erase_if(configs, [](const ConfigKeys* config) { return config->empty(); });
  return different_keys(configs);
}

std::vector<std::string> short_names(const std::vector<std::string>& keys) {
  std::unordered_map<std::string_view, int> ends;
  const auto each_end = [](std::string_view key, const auto& use) {
    for (size_t dot = key.rfind('.'); dot != std::string_view::npos && dot > 0; dot = key.rfind('.', dot - 1))
      if (!use(key.substr(dot + 1))) return;
    use(key);
  };
  for (const std::string& key : keys) each_end(key, [&](std::string_view end) { return ++ends[end] > 0; });
  std::vector<std::string> names;
  for (const std::string& key : keys) {
    std::string_view name = key;
    each_end(key, [&](std::string_view end) {
      name = end;
      // `init_args` and `class_path` alone do not say what they belong to.
      return ends[end] > 1 || end == "class_path";
    });
    names.emplace_back(name);
  }
  return names;
}

}  // namespace fulgur::history
