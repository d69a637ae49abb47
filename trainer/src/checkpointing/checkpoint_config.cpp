#include "fulgur/trainer/checkpoint_config.h"

#include <algorithm>

#include "checkpointing/resume.h"
#include "config/links.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/checkpoint/run_lock.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "fulgur/trainer/components.h"
#include "fulgur/trainer/yaml.h"
#include "process/run_folder.h"
#include "saving/kept_checkpoints.h"

namespace fulgur {
namespace {

enum class Side { model, checkpoint, config, ignored };

bool is_at_or_below(std::string_view key, std::string_view parent) {
  return key.starts_with(parent) && (key.size() == parent.size() || key[parent.size()] == '.');
}

// Whether the config or the checkpoint decides an option in a resumed run.
Side side_of(std::string_view key) {
  const auto below = [&](std::string_view parent) { return is_at_or_below(key, parent); };
  if (below("ckpt_path") || below("load") || below("pretrained") || below("silence") || below("link"))
    return Side::ignored;
  // A checkpoint names no code to load, and the same plug-in may be elsewhere now.
  if (below("plugin")) return Side::ignored;
  // A resumed run stays in its run folder, which is printed.
  if (below("trainer.default_root_dir")) return Side::ignored;
  if (below("adapters.path")) return Side::ignored;
  if (below("model") || below("adapters")) return Side::model;
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
  std::ranges::replace(text, '\n', ' ');
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
      return std::ranges::all_of(list.items(), [](const auto& item) { return item.is_map(); });
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

const ConfigNode* find_node(const ConfigNode& root, const std::string& key) {
  const ConfigNode* node = &root;
  for (const std::string& part : split_text(key, '.')) {
    if (node->is_list()) {
      const auto index = parse_whole<size_t>(part);
      node = index && *index < node->items().size() ? &node->items()[*index] : nullptr;
    } else {
      node = node->find(part);
    }
    if (!node) return nullptr;
  }
  return node;
}

// The result that the run of a config has set in a callback that searches before the run; nullptr if it has none.
const ConfigNode* found_by(const ConfigNode& callback, std::string_view finder) {
  const ConfigNode* const name = class_of(&callback);
  if (name == nullptr || !name->is_scalar() || name->text() != finder) return nullptr;
  const ConfigNode* const found = find_node(callback, "init_args.found");
  return found != nullptr && found->is_scalar() ? found : nullptr;
}

bool any_found_by(const ConfigNode& config, std::string_view finder) {
  const ConfigNode* const callbacks = find_node(config, "trainer.callbacks");
  return callbacks != nullptr && callbacks->is_list() &&
         std::ranges::any_of(callbacks->items(), [&](const auto& item) { return found_by(item, finder) != nullptr; });
}

// A seed that is a number; nullopt for `true`, `false` or none.
std::optional<uint64_t> number_of(const ConfigNode* seed) {
  return seed && seed->is_scalar() ? parse_whole<uint64_t>(seed->text()) : std::nullopt;
}

// The config of the checkpoint's run with what the run has decided, such as a drawn seed; null if there is none.
ConfigNode decided_config(const StateTree& state, const std::filesystem::path& checkpoint) {
  if (!state.contains(detail::checkpoint_keys::kConfig)) return {};
  Problems problems;
  ConfigNode resolved =
      parse_yaml(state.at(detail::checkpoint_keys::kConfig).as_string(), checkpoint.string(), problems);
  return problems.empty() && resolved.is_map() ? std::move(resolved) : ConfigNode();
}

// Whether the config has what the run has decided for an `auto`, as its saved config.yaml does.
bool is_decided_auto(const ConfigNode& decided, const std::string& key, const ConfigNode* saved,
                     const ConfigNode* present) {
  if (!saved || !present || !saved->is_scalar() || saved->text() != "auto") return false;
  const ConfigNode* const value = find_node(decided, key);
  return value && value->same_as(*present);
}

// What a checkpoint says about the config of its run.
struct SavedConfig {
  std::filesystem::path source;  // the checkpoint, or the file
  ConfigNode written;
  ConfigNode decided;  // the same with what the run has decided
};

// What a search for the run to resume needs, before any component exists.
TrainerComponents components_for_search(const Config& config) {
  TrainerComponents components;
  components.config_folder = config.folder;
  return components;
}

// What `ckpt_path` means: `last`, `best` or a path.
std::filesystem::path chosen_checkpoint(const Config& config) {
  return detail::find_checkpoint(*config.ckpt_path, config.trainer.default_root_dir,
                                 detail::run_name(config.trainer, {}), config.folder);
}

StateTree chosen_state(const Config& config) {
  const std::filesystem::path path = chosen_checkpoint(config);
  const auto& verified = config.verified_checkpoint;
  return verified && verified->content && verified->path == path ? verified->content->state
                                                                 : read_checkpoint_state(path);
}

// The configs in the state of a checkpoint; nullopt if its run had none.
std::optional<SavedConfig> saved_config_in(const StateTree& state, const std::filesystem::path& path) {
  if (!state.is_map() || !state.contains(detail::checkpoint_keys::kConfigWritten)) return std::nullopt;
  Problems problems;
  ConfigNode written =
      parse_yaml(state.at(detail::checkpoint_keys::kConfigWritten).as_string(), path.string(), problems);
  if (!problems.empty() || !written.is_map() || written.entries().empty()) return std::nullopt;
  return SavedConfig{path, std::move(written), decided_config(state, path)};
}

// The config of a finished run: that in its last checkpoint, as of a run that is resumed, or else its config.yaml.
// Nullopt if both are missing.
std::optional<SavedConfig> config_of_finished(const detail::FinishedRun& finished) {
  try {
    if (finished.last_checkpoint)
      if (auto saved = saved_config_in(read_checkpoint_state(*finished.last_checkpoint), *finished.last_checkpoint))
        return saved;
  } catch (const CheckpointError&) {
    // The report of the finished run names the damage.
  }
  const std::optional<ConfigNode> saved = detail::config_of_run(finished.run_dir);
  return saved ? std::optional(SavedConfig{finished.run_dir / run_layout::kConfig, *saved, *saved}) : std::nullopt;
}

// Nullopt if the fit starts from the beginning or has nothing to do, or if the checkpoint's run had no config. Replaces
// `auto` by the path of the checkpoint.
std::optional<SavedConfig> read_saved_config(Config& config, bool locks) {
  const TrainerComponents components = components_for_search(config);
  const bool searches = *config.ckpt_path == "auto";
  if (searches && detail::find_finished_run(config.trainer, components)) return std::nullopt;
  // An active run in the folder would change what is read here.
  std::optional<RunLock> lock;
  auto resolved = detail::resolve_checkpoint(*config.ckpt_path, config.trainer, components,
                                             [&](const std::filesystem::path& run_dir) {
                                               if (locks) lock.emplace(run_dir);
                                             });
  if (!resolved.path) return std::nullopt;
  const std::filesystem::path& path = *resolved.path;
  if (searches) config.ckpt_path = path.string();
  // Without a search, only the small files are read here.
  const StateTree state = resolved.content ? resolved.content->state : read_checkpoint_state(path);
  if (resolved.content)
    config.verified_checkpoint =
        std::make_shared<detail::VerifiedCheckpoint>(detail::VerifiedCheckpoint{path, std::move(resolved.content)});
  return saved_config_in(state, path);
}

// The config that a resumed run follows, and how it came about.
struct Agreement {
  ConfigNode config;
  bool changed = false;            // `config` is not the one that was given
  bool rate_was_searched = false;  // by a LearningRateFinder, in the run of the checkpoint
  std::vector<ConfigDifference> differences;
  std::vector<std::string> refused = {};  // differences of the model
  bool has_new_option = false;            // one of these is not set in the checkpoint

  void take_from_checkpoint(const Comparison::Item& item) {
    node_at(config, item.key) = item.saved ? *item.saved : ConfigNode::null();
    changed = true;
  }

  // Whether `item` is the result of a finder in the checkpoint's run, and the config has the same finder without one.
  bool is_search_result(const Comparison::Item& item) {
    constexpr std::string_view kFound = ".init_args.found";
    const auto& [key, there, here] = item;
    if (!key.starts_with("trainer.callbacks.") || !key.ends_with(kFound)) return false;
    if (!there || !there->is_scalar() || (here && !here->is_null())) return false;
    const ConfigNode* const name = class_of(&node_at(config, key.substr(0, key.size() - kFound.size())));
    return name && name->is_scalar() && (name->text() == "LearningRateFinder" || name->text() == "BatchSizeFinder");
  }

  // Decides about one item; `given` is the config as it was.
  void add(const Comparison::Item& item, const Config& given) {
    const auto& [key, there, here] = item;
    // The rate that was found is the one to train with, and scale_lr belongs to it.
    const bool scales = key == "trainer.scale_lr" || key == "trainer.base_batch_size";
    const Side side = scales && rate_was_searched ? Side::checkpoint : side_of(key);
    const bool config_wins = given.load.allow_config_change;
    // Options that the data fills in later are compared by shape, when the weights are loaded.
    if (side == Side::ignored || config::is_link_target(given, key)) return;
    // Checkpoints of earlier versions do not have the key.
    if (key == "adapters" && !there && here && here->is_null()) return;
    // In a resumed run, `auto` keeps what the run had.
    if ((key == "trainer.num_threads" || key == "trainer.cpu_matmul") && here && here->is_scalar() &&
        here->text() == "auto" && !config_wins)
      return;
    // `true` accepts any seed, so the checkpoint's is no difference.
    if (key == "seed_everything" && here && here->is_scalar() && here->text() == "true" && number_of(there) &&
        !config_wins)
      return take_from_checkpoint(item);
    // A resumed run searches nothing, so this is no difference either: its config describes the whole run.
    if (is_search_result(item) && !config_wins) return take_from_checkpoint(item);
    ConfigDifference difference{.key = key, .checkpoint = shown(there), .config = shown(here)};
    if (side == Side::model && (!config_wins || key == "model" || key == "model.class_path")) {
      has_new_option |= there == nullptr;
      refused.push_back(cat(key, ": ", there ? difference.checkpoint : "not set", " in the checkpoint, ",
                            here ? difference.config : "not set", " in the config"));
    }
    if (side == Side::checkpoint && !config_wins) {
      difference.config_won = false;
      take_from_checkpoint(item);
    }
    differences.push_back(std::move(difference));
  }

  // The same comparison for a run that is not resumed, since it has finished.
  void throw_if_other_model(const std::filesystem::path& run_dir) const {
    if (refused.empty()) return;
    throw ConfigError(cat(
        "[trainer.fit] the run in ", run_dir,
        " is finished, so there is nothing to resume, and the config describes a "
        "different model:\n  ",
        join(refused, "\n  "),
        "\nOmit --resume to train this config in a new run, choose another trainer.default_root_dir, or use the config "
        "of the finished run."));
  }

  void throw_if_refused(const std::filesystem::path& checkpoint) const {
    if (refused.empty()) return;
    throw CheckpointError(
        cat("[trainer.fit] the config describes a different model from that of ", checkpoint, ":\n  ",
            join(refused, "\n  "),
            "\nUse the config of its run, --load.weights_only true for a new run from these weights, or "
            "--allow-config-change for options that do not change shapes. Neither loads the weights of another class: "
            "for a new run without them, omit --resume and --ckpt_path.",
            has_new_option ? " An option that is not set in the checkpoint may be new in the module: continue with "
                             "--allow-config-change. The config's values then apply to all options, also those of the "
                             "optimizer, the schedule, the seed and the batch size."
                           : ""));
  }
};

Agreement compare_with(const SavedConfig& saved, const Config& config) {
  const ConfigNode present = config.write();
  Comparison comparison;
  comparison.compare("", &saved.written, &present);
  Agreement agreement{
      .config = present, .rate_was_searched = any_found_by(saved.written, "LearningRateFinder"), .differences = {}};
  for (const Comparison::Item& item : comparison.items)
    if (!is_decided_auto(saved.decided, item.key, item.saved, item.present)) agreement.add(item, config);
  return agreement;
}

}  // namespace

std::string ConfigDifference::describe() const {
  const std::string there = checkpoint.empty() ? "not set" : checkpoint, here = config.empty() ? "not set" : config;
  return cat(key, ": ", there, " in the checkpoint, ", here, " in the config; the run continues with ",
             config_won ? here : there);
}

std::vector<ConfigDifference> agree_with_checkpoint(Config& config, bool locks) {
  if (!config.ckpt_path || !config.load.loads_loops()) return {};
  const auto saved = read_saved_config(config, locks);
  if (!saved) return {};
  const Agreement agreement = compare_with(*saved, config);
  agreement.throw_if_refused(saved->source);
  if (agreement.changed) {
    Config next = config_from_node(agreement.config);
    next.folder = config.folder;
    next.written_at_links = config.written_at_links;
    next.written_start = config.written_start;
    next.verified_checkpoint = config.verified_checkpoint;
    config = std::move(next);
  }
  // A seed that was drawn belongs to the run: the rest of the epoch has its order.
  const bool draws = config.seed_everything.enabled && !config.seed_everything.seed;
  const auto& differences = agreement.differences;
  const bool asks_for_new = std::ranges::any_of(differences, [](const ConfigDifference& difference) {
    return difference.key == "seed_everything" && difference.config_won;
  });
  if (draws && !asks_for_new) config.seed_everything.seed = number_of(saved->decided.find("seed_everything"));
  return differences;
}

std::optional<StateTree> data_state_in_checkpoint(const Config& config) {
  // `auto` is left if there is nothing to resume.
  if (!config.ckpt_path || *config.ckpt_path == "auto") return std::nullopt;
  const StateTree state = chosen_state(config);
  if (!state.is_map() || !state.contains(detail::checkpoint_keys::kData)) return std::nullopt;
  const StateTree& data = state.at(detail::checkpoint_keys::kData);
  return data.is_null() ? std::nullopt : std::optional(data);
}

bool run_has_finished(const Config& config) {
  return detail::find_finished_run(config.trainer, components_for_search(config)).has_value();
}

void check_finished_run(const Config& config) {
  if (config.ckpt_path != "auto") return;
  const auto finished = detail::find_finished_run(config.trainer, components_for_search(config));
  if (!finished) return;
  if (const auto saved = config_of_finished(*finished))
    compare_with(*saved, config).throw_if_other_model(finished->run_dir);
}

bool starts_at_first_step(const Config& config) {
  if (!config.ckpt_path || !config.load.loads_loops()) return true;
  // `auto` is left if there is nothing to resume, or the run has finished.
  if (*config.ckpt_path == "auto") return !run_has_finished(config);
  const StateTree state = chosen_state(config);
  return state.is_map() && state.contains(detail::checkpoint_keys::kImported);
}

std::optional<std::filesystem::path> run_to_resume(const Config& config) {
  const auto run = detail::find_run_to_resume(config.trainer, components_for_search(config));
  return run ? std::optional(run->folder) : std::nullopt;
}

bool is_last_or_best(const std::optional<std::string>& ckpt_path) { return ckpt_path == "last" || ckpt_path == "best"; }

bool is_checkpoint_of(const std::filesystem::path& checkpoint, const std::filesystem::path& run_folder) {
  const std::filesystem::path path = detail::named_checkpoint(checkpoint);
  std::error_code error;
  if (const auto of = detail::run_folder_of(path)) return std::filesystem::equivalent(*of, run_folder, error);
  try {
    return summarize_checkpoint(path).origin.run == detail::origin_of_folder(detail::checkpoint_folder_of(run_folder));
  } catch (const CheckpointError&) {
    return false;
  }
}

std::optional<std::string> start_of_run(const std::filesystem::path& run_folder) {
  const std::filesystem::path file = run_folder / run_layout::kConfig;
  const auto text = read_regular_file(file);
  Problems problems;
  const ConfigNode saved = text ? parse_yaml(*text, file.string(), problems) : ConfigNode();
  const ConfigNode* const path = saved.is_map() ? saved.find("ckpt_path") : nullptr;
  return path != nullptr && path->is_scalar() && path->text() != "auto" ? std::optional(path->text()) : std::nullopt;
}

void resolve_start(Config& config) {
  const auto& choice = config.ckpt_path;
  if (config.load.loads_loops() || !is_last_or_best(choice)) return;
  const std::filesystem::path path = chosen_checkpoint(config);
  config.ckpt_path = link_target(path).value_or(path).string();
}

std::optional<std::filesystem::path> resume_candidate(const Config& config) {
  for (const auto& callback : config.trainer.callbacks)
    if (auto path = callback.create()->resume_candidate()) return path;
  return std::nullopt;
}

std::filesystem::path newest_run_folder(const Config& config) {
  if (detail::has_checkpoint_folder(config.folder)) return config.folder;
  return detail::newest_run_folder(config.trainer.default_root_dir, detail::run_name(config.trainer, {}));
}

}  // namespace fulgur
