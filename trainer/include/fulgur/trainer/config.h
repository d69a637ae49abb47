#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/data_module.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/options/options.h"
#include "fulgur/trainer/checkpoint_loading.h"
#include "fulgur/trainer/trainer_options.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur {

namespace detail {
struct FULGUR_API VerifiedCheckpoint;
}

/// `seed_everything: 42`, `true` (a random seed, which is printed and saved) or `false` (not seeded).
struct FULGUR_API SeedChoice {
  bool enabled = false;
  std::optional<uint64_t> seed;  ///< nullopt and enabled: random
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
  /// Target option → fact of the data module: `{model.init_args.num_classes: data.num_classes}`, applied after setup.
  std::map<std::string, std::string> link;
  std::vector<std::string> silence;  ///< warning ids to silence

  /// Folder of the last `--config` file; not an option, set by `load_config`.
  std::filesystem::path folder;

  void fields(Fields& f);
  /// The current config, with docs as comments; `config_from_node` reads the same config back.
  ConfigNode write() const;

  /// The values that the config itself sets at the targets of `link`; they must agree with the facts.
  std::map<std::string, ConfigNode> written_at_links;

  /// Not an option: the checkpoint that `agree_with_checkpoint` has read in order to choose it, for the first fit.
  std::shared_ptr<detail::VerifiedCheckpoint> verified_checkpoint = {};

  /// Not an option: `--resume` found no checkpoint. If a logger names the version, and a fit ended in its folder before
  /// its first checkpoint, the fit begins again in that folder.
  bool begins_again = false;

  /// Not an option: the start of the run, if a resume has replaced it in this config. The run saves this one, so that
  /// the saved config describes the whole run.
  std::optional<WrittenStart> written_start;
};

/// The config files, and the settings that the command line and the environment add to them.
struct FULGUR_API ConfigSources {
  std::vector<std::filesystem::path> files;  ///< `--config`, later wins
  std::vector<std::pair<std::string, std::string>>
      overrides;  ///< `trainer.max_epochs` → `3`, in order; a key may end in `+`
  std::vector<std::pair<std::string, std::string>> environment;  ///< name → value; only `FULGUR_…__…` are read
};

/// Files, environment and command line merged in this order (later wins), with short forms and `+=` resolved; `${…}` is
/// kept.
FULGUR_API ConfigNode merge_config(const ConfigSources& sources, Problems& problems);
/// The typed config; throws a ConfigError that lists all errors.
FULGUR_API Config load_config(const ConfigSources& sources);
/// The typed config from one node, with `${…}` resolved; throws the same errors.
FULGUR_API Config config_from_node(const ConfigNode& node);

/// Writes `facts` of the data module into the options named by `link`; throws a ConfigError for an invalid link.
FULGUR_API void apply_links(Config& config, const StateTree& facts);

/// JSON Schema (draft 2020-12) of the config, with every registered component.
FULGUR_API std::string config_json_schema();
/// `describe NAME`: doc and options of a component, as a table. Throws a ConfigError for unknown names.
FULGUR_API std::string describe_component(const std::string& name);
/// `list [kind]`: all components with the first line of their docs.
FULGUR_API std::string list_components(const std::optional<std::string>& kind);

}  // namespace fulgur
