#include "fulgur/trainer/checkpoint_config.h"

#include <algorithm>
#include <charconv>
#include <functional>

#include "checkpointing/resume.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/run_lock.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/components.h"
#include "fulgur/trainer/yaml.h"
#include "process/run_folder.h"

namespace fulgur {
namespace {

enum class Side { model, checkpoint, config, ignored };

bool is_at_or_below(std::string_view key, std::string_view parent) {
  return key.starts_with(parent) && (key.size() == parent.size() || key[parent.size()] == '.');
}

// Whether the config or the checkpoint decides an option in a resumed run.
Side side_of(std::string_view key) {
  const auto below = [&](std::string_view parent) { return is_at_or_below(key, parent); };
  if (below("ckpt_path") || below("load") || below("silence") || below("link")) return Side::ignored;
  if (below("model")) return Side::model;
  if (below("optimizer") || key.starts_with("lr_scheduler") || below("seed_everything")) return Side::checkpoint;
  if (below("data") && key.ends_with(".batch_size")) return Side::checkpoint;
  return Side::config;
}

const ConfigNode* class_of(const ConfigNode* node) {
  return node != nullptr && node->is_map() ? node->find("class_path") : nullptr;
}

std::string shown(const ConfigNode* node) {
  if (node == nullptr) return "";
  // Components are compared option by option; those shown as a whole are of another class, or on one side only.
  if (const ConfigNode* name = class_of(node); name != nullptr && name->is_scalar()) return name->text();
  std::string text = to_yaml(*node);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  constexpr size_t kMost = 80;
  return text.size() > kMost ? text.substr(0, kMost) + "…" : text;
}

struct Comparison {
  struct Item {
    std::string key;
    const ConfigNode* saved;
    const ConfigNode* present;
  };
  std::vector<Item> items;

  // Compares maps entry by entry, lists of maps item by item, everything else as a whole.
  void compare(const std::string& key, const ConfigNode* saved, const ConfigNode* present) {
    if (saved != nullptr && present != nullptr && saved->same_as(*present)) return;
    if (comparable_items(key, saved, present)) {
      const auto item = [](const ConfigNode& list, size_t i) {
        return i < list.items().size() ? &list.items()[i] : nullptr;
      };
      for (size_t i = 0; i < std::max(saved->items().size(), present->items().size()); ++i)
        compare(join_path(key, std::to_string(i)), item(*saved, i), item(*present, i));
      return;
    }
    const bool maps = (saved == nullptr || saved->is_map()) && (present == nullptr || present->is_map());
    const ConfigNode *there = class_of(saved), *here = class_of(present);
    const bool classes =
        there != nullptr && here != nullptr ? !there->same_as(*here) : there != nullptr || here != nullptr;
    if (!maps || classes || (saved == nullptr && present == nullptr)) {
      items.push_back({key, saved, present});
      return;
    }
    if (saved)
      for (const auto& [name, value] : saved->entries())
        compare(join_path(key, name), &value, present ? present->find(name) : nullptr);
    if (present)
      for (const auto& [name, value] : present->entries())
        if (!saved || !saved->find(name)) compare(join_path(key, name), nullptr, &value);
  }

 private:
  static bool comparable_items(const std::string& key, const ConfigNode* saved, const ConfigNode* present) {
    if (saved == nullptr || present == nullptr || !saved->is_list() || !present->is_list()) return false;
    const auto all_maps = [](const ConfigNode& list) {
      return std::all_of(list.items().begin(), list.items().end(), [](const auto& item) { return item.is_map(); });
    };
    // Where the checkpoint's values win, a list of another length is replaced as a whole.
    const bool same_length = saved->items().size() == present->items().size();
    return all_maps(*saved) && all_maps(*present) && (same_length || side_of(key) == Side::config);
  }
};

ConfigNode& node_at(ConfigNode& root, std::string_view key) {
  ConfigNode* node = &root;
  while (!key.empty()) {
    const size_t dot = std::min(key.find('.'), key.size());
    const std::string_view part = key.substr(0, dot);
    node = node->is_list() ? &node->items().at(std::stoul(std::string(part))) : &node->get_or_add(part);
    key.remove_prefix(std::min(dot + 1, key.size()));
  }
  return *node;
}

// A seed that is a number; nullopt for `true`, `false` or none.
std::optional<uint64_t> number_of(const ConfigNode* seed) {
  if (seed == nullptr || !seed->is_scalar()) return std::nullopt;
  const char* const end = seed->text().data() + seed->text().size();
  uint64_t number = 0;
  const auto read = std::from_chars(seed->text().data(), end, number);
  return read.ec == std::errc() && read.ptr == end ? std::optional(number) : std::nullopt;
}

// The seed of the checkpoint's run, also if it was drawn.
std::optional<uint64_t> seed_of(const StateTree& state, const std::filesystem::path& checkpoint) {
  if (!state.contains("config")) return std::nullopt;
  Problems problems;
  const ConfigNode resolved = parse_yaml(state.at("config").as_string(), checkpoint.string(), problems);
  return problems.empty() && resolved.is_map() ? number_of(resolved.find("seed_everything")) : std::nullopt;
}

// The checkpoint that the fit will load; nullopt if it starts from the beginning or has nothing to do.
std::optional<std::filesystem::path> choose(Config& config,
                                            const std::function<void(const std::filesystem::path&)>& lock) {
  TrainerComponents components;
  components.config_folder = config.folder;
  if (*config.ckpt_path != "auto") {
    const auto path = detail::find_checkpoint(*config.ckpt_path, config.trainer.default_root_dir,
                                              detail::run_name(config.trainer, components), components.config_folder);
    if (const auto run_dir = detail::run_folder_of(path)) lock(*run_dir);
    return path;
  }
  if (detail::find_finished_run(config.trainer, components)) return std::nullopt;
  const auto run = detail::find_run_to_resume(config.trainer, components);
  if (!run) return std::nullopt;
  lock(run->folder);
  auto found = detail::find_resume_point(run->folder);
  if (!found) return std::nullopt;
  config.ckpt_path = found->path.string();
  return found->path;
}

}  // namespace

std::string ConfigDifference::describe() const {
  const std::string there = checkpoint.empty() ? "not set" : checkpoint, here = config.empty() ? "not set" : config;
  return cat(key, ": ", there, " in the checkpoint, ", here, " in the config; the run continues with ",
             config_won ? here : there);
}

std::vector<ConfigDifference> agree_with_checkpoint(Config& config, bool locks) {
  if (!config.ckpt_path || !config.load.loads_loops()) return {};
  // An active run in the folder would change what is read here.
  std::optional<RunLock> lock;
  const auto path = choose(config, [&](const std::filesystem::path& run_dir) {
    if (locks) lock.emplace(run_dir);
  });
  if (!path) return {};
  const StateTree state = read_checkpoint_state(*path);
  if (!state.is_map() || !state.contains("config_written")) return {};
  Problems problems;
  const ConfigNode saved = parse_yaml(state.at("config_written").as_string(), path->string(), problems);
  // A run started from code has no config to compare with.
  if (!problems.empty() || !saved.is_map() || saved.entries().empty()) return {};
  ConfigNode present = config.write();
  Comparison comparison;
  comparison.compare("", &saved, &present);

  std::vector<ConfigDifference> differences;
  std::vector<std::string> refused;
  bool new_option = false;
  ConfigNode agreed = present;
  bool changed = false;
  for (const auto& [key, there, here] : comparison.items) {
    const Side side = side_of(key);
    // Options that the data fills in later are compared by shape, when the weights are loaded.
    const bool linked = std::any_of(config.link.begin(), config.link.end(),
                                    [&, &name = key](const auto& link) { return is_at_or_below(name, link.first); });
    if (side == Side::ignored || linked) continue;
    // `true` accepts any seed, so the checkpoint's is no difference.
    if (key == "seed_everything" && here && here->is_scalar() && here->text() == "true" && number_of(there) &&
        !config.load.allow_config_change) {
      node_at(agreed, key) = *there;
      changed = true;
      continue;
    }
    ConfigDifference difference{.key = key, .checkpoint = shown(there), .config = shown(here)};
    if (side == Side::model && (!config.load.allow_config_change || key == "model" || key == "model.class_path")) {
      new_option |= there == nullptr;
      refused.push_back(cat(key, ": ", there ? difference.checkpoint : "not set", " in the checkpoint, ",
                            here ? difference.config : "not set", " in the config"));
    }
    if (side == Side::checkpoint && !config.load.allow_config_change) {
      difference.config_won = false;
      node_at(agreed, key) = there ? *there : ConfigNode::null();
      changed = true;
    }
    differences.push_back(std::move(difference));
  }
  if (!refused.empty())
    throw CheckpointError(cat("[trainer.fit] the config describes a different model from that of ", *path, ":\n  ",
                              join(refused, "\n  "),
                              "\nUse the config of its run, --load.weights_only true for a new run from these weights, "
                              "or --allow-config-change for options that do not change shapes.",
                              new_option ? " An option that is not set in the checkpoint may be new in the module: "
                                           "continue with --allow-config-change. The config's values then apply to all "
                                           "options, also those of the optimizer, the schedule, the seed and the batch "
                                           "size."
                                         : ""));
  if (changed) {
    Config next = config_from_node(agreed);
    next.folder = config.folder;
    next.written_at_links = config.written_at_links;
    config = std::move(next);
  }
  // A seed that was drawn belongs to the run: the rest of the epoch has its order.
  const bool draws = config.seed_everything.enabled && !config.seed_everything.seed;
  const bool asks_for_new = std::any_of(differences.begin(), differences.end(), [](const ConfigDifference& difference) {
    return difference.key == "seed_everything" && difference.config_won;
  });
  if (draws && !asks_for_new) config.seed_everything.seed = seed_of(state, *path);
  return differences;
}

std::filesystem::path newest_run_folder(const Config& config) {
  std::error_code error;
  if (!config.folder.empty() && std::filesystem::is_directory(detail::checkpoint_folder_of(config.folder), error))
    return config.folder;
  return detail::newest_run_folder(config.trainer.default_root_dir, detail::run_name(config.trainer, {}));
}

}  // namespace fulgur
