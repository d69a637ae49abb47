#include "fulgur/trainer/config.h"

#include <algorithm>

#include "config/config_tree.h"
#include "config/links.h"
#include "config/plugins.h"
#include "config/renamed_options.h"
#include "config/weights_config.h"
#include "fulgur/core/options/form_hints.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/plugins.h"

namespace fulgur {

TypeInfo FieldTraits<SeedChoice>::type() {
  TypeInfo seed = FieldTraits<int64_t>::type();
  seed.minimum = 0;
  return {.kind = TypeInfo::Kind::any_of, .name = "bool or int", .parts = {FieldTraits<bool>::type(), seed}};
}

bool FieldTraits<SeedChoice>::read(const ConfigNode& node, SeedChoice& value, Problems& problems,
                                   const std::string& path) {
  SeedChoice read_value{.enabled = true, .seed = std::nullopt};
  if (node.is_scalar() && node.text().find_first_of("tTfF") == 0) {
    if (!detail::read_bool(node, read_value.enabled, problems, path)) return false;
  } else {
    uint64_t seed = 0;
    if (!FieldTraits<uint64_t>::read(node, seed, problems, path)) return false;
    read_value.seed = seed;
  }
  value = read_value;
  return true;
}

ConfigNode FieldTraits<SeedChoice>::write(const SeedChoice& value) {
  if (value.enabled && value.seed) return ConfigNode::scalar(std::to_string(*value.seed));
  return ConfigNode::boolean(value.enabled);
}

void Config::fields(Fields& f) {
  f(seed_everything, "seed_everything",
    "Seed of all random numbers; true: a random seed, which is printed and saved; false: none.");
  f(trainer, "trainer", "How the run is executed; `describe trainer` shows its keys.");
  f(model, "model", "The network and its training step.").nullable();
  f(data, "data", "The data of the run.").nullable();
  f(optimizer, "optimizer", "Optimizer for modules that do not configure one.");
  f(lr_scheduler, "lr_scheduler", "Learning-rate schedule of that optimizer.");
  f(lr_scheduler_interval, "lr_scheduler_interval", "Whether that schedule steps per epoch or per step.");
  f(lr_scheduler_frequency, "lr_scheduler_frequency",
    "Steps the schedule every N epochs or steps, counted over the run.")
      .at_least(1);
  f(lr_scheduler_monitor, "lr_scheduler_monitor", "Metric for a schedule that needs one.");
  f(lr_scheduler_strict, "lr_scheduler_strict", "A missing monitored metric is an error; false: a warning.");
  f(lr_scheduler_name, "lr_scheduler_name", "Name of the rate in the logs, for LearningRateMonitor.");
  f(ckpt_path, "ckpt_path",
    "Checkpoint to start from: last, best, a path, or (fit) auto: the newest that verifies, if there is one.");
  f(load, "load", "Which parts of that checkpoint are loaded.");
  f(pretrained, "pretrained", "Weights that the model begins with, in a run without a checkpoint.");
  f(adapters, "adapters",
    "Low-rank adapters of linear layers (LoRA): only they are trained, and the other parameters are frozen.");
  f(link, "link", "Maps target options to values of the data module: {model.init_args.num_classes: data.num_classes}.");
  f(silence, "silence", "Ids of warnings to silence.");
  f(plugin, "plugin",
    "Plug-ins: libraries that register classes, loaded before the rest of the config is read. A relative path begins "
    "at the folder of the config file.");
  f.hint_for_unknown = config::hint_for_top_key;
}

ConfigNode Config::write() const {
  ConfigNode node = FieldTraits<Config>::write(*this);
  config::escape_references(node);
  return node;
}

namespace {

/// `FULGUR_…` variables as overrides; classes first, since choosing one drops the options set before it.
std::vector<std::pair<std::string, std::string>> sorted_variables(const ConfigSources& sources) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (const auto& variable : sources.environment) {
    if (config::key_of_variable(variable.first)) variables.push_back(variable);
  }
  const auto chooses_class = [](const std::string& name) {
    return name.ends_with("__CLASS_PATH") || name.find("__") == std::string::npos;
  };
  std::ranges::sort(variables, [&](const auto& a, const auto& b) {
    return std::pair(!chooses_class(a.first), a.first) < std::pair(!chooses_class(b.first), b.first);
  });
  return variables;
}

// One underscore between the parts of a key is the likeliest slip, and such a variable sets nothing.
void warn_of_ignored_variables(const ConfigSources& sources, const Config& config) {
  const auto& silence = config.silence;
  // The launcher of this process has already said it.
  const bool launched = std::ranges::any_of(sources.environment,
                                            [](const auto& variable) { return variable.first == "FULGUR_LAUNCHER"; });
  if (launched || std::ranges::find(silence, "config.ignored_variable") != silence.end()) return;
  for (const auto& [name, value] : sources.environment)
    for (const std::string_view part : {"FULGUR_TRAINER_", "FULGUR_MODEL_", "FULGUR_OPTIMIZER_"})
      if (name.starts_with(part) && !config::key_of_variable(name))
        log::warn("config.ignored_variable", cat("the environment variable ", name,
                                                 " is ignored: two underscores separate the parts of a key. Write ",
                                                 part, "_", std::string_view(name).substr(part.size())));
}

bool lies_in(const std::string& path, const Problems& problems) {
  return std::ranges::any_of(problems.items(), [&](const Problem& problem) {
    return problem.path == path || (problem.path.starts_with(path) && problem.path[path.size()] == '.');
  });
}

/// Reads the result of interpolation; a value whose reference failed is not reported twice.
Config read_typed(ConfigNode node, Problems& problems) {
  Problems references;
  config::interpolate(node, references);
  config::remove_null_links(node);
  Problems typed;
  std::vector<std::string> taken = config::take_weights_config(node, typed);
  Config config = config::read_with_links(node, typed);
  config.pretrained.from_config = std::move(taken);
  for (const Problem& problem : references.items()) problems.add(problem.where, problem.path, problem.message);
  for (const Problem& problem : typed.items()) {
    if (!lies_in(problem.path, references)) problems.add(problem.where, problem.path, problem.message);
  }
  return config;
}

// Checkpoints load no code, so classes of the plug-ins of their run may be unknown.
std::string hint_of_plugins(const ConfigNode& root, const Problems& problems) {
  const ConfigNode* const plugins = root.find("plugin");
  if (plugins == nullptr || !plugins->is_list() || plugins->items().empty() ||
      std::ranges::none_of(problems.items(), [](const Problem& problem) {
        return problem.message.starts_with("unknown ") && !problem.message.starts_with("unknown key");
      }))
    return "";
  std::vector<std::string> files;
  for (const ConfigNode& file : plugins->items())
    if (file.is_scalar()) files.push_back(shell_word(file.text()));
  return cat(
      "\nThe run of this config loaded plug-ins, which a checkpoint does not load. If you trust them, add --plugin ",
      escape_controls(join(files, " --plugin ")));
}

// The class of the data module; empty if none is chosen.
std::string data_class_of(const ConfigNode& root) {
  const ConfigNode* node = root.find("data");
  if (node != nullptr && node->is_map()) node = node->find("class_path");
  return node != nullptr && node->is_scalar() ? node->text() : std::string();
}

// A value of the environment or the command line.
struct Setting {
  std::string key, value;
  Location where;
};

// In the order in which they win.
std::vector<Setting> settings_of(const ConfigSources& sources, Problems& problems) {
  std::vector<Setting> settings;
  for (const auto& [name, value] : sorted_variables(sources)) {
    const Location where{"environment variable " + name, 0, 0};
    if (!is_utf8(value))
      problems.add(where, "", "is not valid UTF-8");
    else
      settings.push_back({*config::key_of_variable(name), value, where});
  }
  int number = 0;
  for (const auto& [key, value] : sources.overrides) {
    const auto place = sources.places.find(key);
    if (place != sources.places.end()) {
      settings.push_back({key, value, place->second});
      continue;
    }
    Location where{.source = "command line", .argument = ++number};
    problems.keep_argument(number, cat("--", key, " ", value));
    where.column = config::value_column(key);
    settings.push_back({key, value, where});
  }
  return settings;
}

// Merges the sources; `load` is called with what the sources say about plug-ins, before the other settings are applied:
// what a setting means depends on the class that it concerns.
template <class Load>
ConfigNode merge_sources(const ConfigSources& sources, Problems& problems, const Load& load) {
  ConfigNode root = ConfigNode::map();
  for (const std::filesystem::path& file : sources.files) {
    ConfigNode node = load_yaml_file(file, problems);
    if (node.is_null()) continue;
    if (!node.is_map()) {
      const std::string spaced = node.is_scalar() ? detail::missing_space_hint(node.text()) : std::string();
      problems.add(node.where, "",
                   cat("a config is a map with keys such as trainer, model, data; got ", node.describe(),
                       spaced.empty() ? "" : "; ", spaced));
      continue;
    }
    const std::string before = data_class_of(root), after = data_class_of(node);
    if (!after.empty() && !before.empty() && after != before) config::make_links_optional(root);
    config::check_links_once(node, problems);
    config::merge_into(root, std::move(node));
    config::replace_earlier_links(root);
  }
  const std::unique_ptr<Fields> schema = FieldTraits<Config>::type().object();
  config::Overrider overrider(*schema, problems);
  const std::vector<Setting> settings = settings_of(sources, problems);
  for (const Setting& setting : settings)
    if (config::chooses_plugins(setting.key)) overrider.apply(root, setting.key, setting.value, setting.where);
  load(root);
  for (const Setting& setting : settings) {
    if (config::chooses_plugins(setting.key)) continue;
    const std::string before = data_class_of(root);
    overrider.apply(root, setting.key, setting.value, setting.where);
    config::replace_earlier_links(root);
    if (!before.empty() && data_class_of(root) != before) config::make_links_optional(root);
  }
  return root;
}

bool has_unreadable_source(const Problems& problems) {
  return std::ranges::any_of(problems.items(), [](const Problem& problem) { return problem.path.empty(); });
}

ConfigNode merge_with_plugins(const ConfigSources& sources, Problems& problems) {
  return merge_sources(sources, problems, [&](ConfigNode& root) {
    const size_t before = problems.items().size();
    config::load_plugins(root, sources, problems);
    // Without the classes of a plug-in, most of the config would be wrong.
    if (problems.items().size() != before) problems.throw_if_any();
  });
}

}  // namespace

namespace detail {

void load_plugins_of(const ConfigSources& sources) {
  Problems problems;
  const ConfigNode root = merge_with_plugins(sources, problems);
  if (has_unreadable_source(problems)) problems.throw_if_any();
  const size_t before = problems.items().size();
  config::check_plugins(root, problems);
  if (problems.items().size() != before) problems.throw_if_any();
}

}  // namespace detail

ConfigNode merge_config(const ConfigSources& sources, Problems& problems) {
  return merge_sources(sources, problems, [](ConfigNode&) {});
}

Config load_config(const ConfigSources& sources) {
  Problems problems;
  const ConfigNode root = merge_with_plugins(sources, problems);
  // A file that could not be read would only cause further errors about its missing keys.
  if (has_unreadable_source(problems)) problems.throw_if_any();
  Config config = read_typed(root, problems);
  problems.throw_if_any();
  warn_of_ignored_variables(sources, config);
  if (!sources.files.empty()) {
    config.folder = sources.files.back().parent_path();
    if (config.folder.empty()) config.folder = ".";
  }
  return config;
}

Config config_from_node(const ConfigNode& node) {
  Problems problems;
  Config config = read_typed(node, problems);
  if (!problems.empty()) problems.throw_if_any(hint_of_plugins(node, problems));
  return config;
}

}  // namespace fulgur
