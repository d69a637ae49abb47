#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/data_module.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/options/options.h"
#include "fulgur/trainer/adapters.h"
#include "fulgur/trainer/checkpoint_loading.h"
#include "fulgur/trainer/pretrained_weights.h"
#include "fulgur/trainer/trainer_options.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur {

namespace detail {
struct VerifiedCheckpoint;
}

/// `seed_everything: 42`, `true` (a random seed, which is printed and saved) or `false` (not seeded).
struct FULGUR_API SeedChoice {
  bool enabled = false;
  std::optional<uint64_t> seed;  ///< random if enabled and nullopt
};

template <>
struct FULGUR_API FieldTraits<SeedChoice> {
  static TypeInfo type();
  static bool read(const ConfigNode& node, SeedChoice& value, Problems& problems, const std::string& path);
  static ConfigNode write(const SeedChoice& value);
};

/// Where a fit starts, as the user wrote it: the options `ckpt_path` and `load` of a config.
struct FULGUR_API WrittenStart {
  std::optional<std::string> ckpt_path;
  CheckpointLoading load;
};

/// The config of a run, typed and validated.
struct FULGUR_API Config {
  SeedChoice seed_everything;
  TrainerOptions trainer;
  Spec<LightningModule> model;
  Spec<DataModule> data;
  std::optional<Spec<Optimizer>> optimizer;
  std::optional<Spec<LrScheduler>> lr_scheduler;
  ScheduleInterval lr_scheduler_interval = ScheduleInterval::epoch;  ///< when the config's scheduler steps
  int64_t lr_scheduler_frequency = 1;                                ///< every N epochs or steps, counted over the run
  std::optional<std::string> lr_scheduler_monitor;
  bool lr_scheduler_strict = true;
  std::optional<std::string> lr_scheduler_name;
  std::optional<std::string> ckpt_path;
  CheckpointLoading load;
  PretrainedWeights pretrained;
  std::optional<Adapters> adapters;  ///< nullopt: all parameters are trained
  /// Maps a target option to a value of the data module: `{model.init_args.num_classes: data.num_classes}`, applied
  /// after setup.
  std::map<std::string, std::string> link;
  std::vector<std::string> silence;  ///< warning ids to silence
  /// Files of plug-ins, with absolute paths; `load_config` has loaded them.
  std::vector<std::string> plugin;

  /// Folder of the last `--config` file. It is not an option; `load_config` sets it.
  std::filesystem::path folder;

  void fields(Fields& f);
  /// The current config, with docs as comments; `config_from_node` reads the same config back.
  ConfigNode write() const;

  /// The values that the config itself sets at the targets of `link`; they must agree with the linked values.
  std::map<std::string, ConfigNode> written_at_links;

  /// The checkpoint that `agree_with_checkpoint` has read in order to choose it, for the first fit. Not an option.
  std::shared_ptr<detail::VerifiedCheckpoint> verified_checkpoint = {};

  /// True if `--resume` found no checkpoint; not an option. If a logger names the version, and a fit ended in its
  /// folder before its first checkpoint, the fit begins again in that folder.
  bool begins_again = false;

  /// Not an option: `TrainerComponents::profile_steps`.
  int64_t profile_steps = 0;

  /// The start of the run, if a resume has replaced it in this config; not an option. The run saves this one, so that
  /// the saved config describes the whole run.
  std::optional<WrittenStart> written_start;
};

/// The config files, and the settings that the command line and the environment add to them.
struct FULGUR_API ConfigSources {
  std::vector<std::filesystem::path> files;  ///< the files of `--config`, of which later ones win
  std::vector<std::pair<std::string, std::string>>
      overrides;  ///< values by key, such as `3` for `trainer.max_epochs`, in order; a key may end in `+`
  std::vector<std::pair<std::string, std::string>> environment;  ///< values by name; only `FULGUR_…__…` are read
  std::map<std::string, Location> places = {};      ///< of overrides that a file contains, by key, for messages
  std::vector<std::filesystem::path> plugins = {};  ///< files of `--plugin`, added to those of the key `plugin`
};

/// Merges files, environment and command line in this order (later wins) and resolves short forms and `+=`; `${…}` is
/// kept.
FULGUR_API ConfigNode merge_config(const ConfigSources& sources, Problems& problems);
/// Returns the typed config, or throws a ConfigError that lists all errors. Before it reads the options of components,
/// it loads the plug-ins that the sources name, which runs their code.
FULGUR_API Config load_config(const ConfigSources& sources);
/// Returns the typed config from one node, with `${…}` resolved, or throws the same errors. It loads no plug-in, since
/// the node may be that of a checkpoint.
FULGUR_API Config config_from_node(const ConfigNode& node);

/// Why the data module does not provide a value of this name, as `DataModule::why_not_exported`.
using WhyNoFact = std::function<std::string(std::string_view name)>;
/// Writes `facts`, the values of the data module, into the options named by `link`; throws a ConfigError for an invalid
/// link.
FULGUR_API void apply_links(Config& config, const StateTree& facts, const WhyNoFact& why_no_fact = {});

/// JSON Schema (draft 2020-12) of the config, with every registered component.
FULGUR_API std::string config_json_schema();
/// What `describe NAME` prints: doc and options of a component, as a table. Throws a ConfigError for unknown names.
FULGUR_API std::string describe_component(const std::string& name);
/// What `list [kind]` prints: all components with the first line of their docs.
FULGUR_API std::string list_components(const std::optional<std::string>& kind);

}  // namespace fulgur
