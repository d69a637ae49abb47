#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"

/// Reads run folders and shows them. Nothing here writes to a run folder, takes its lock or needs LibTorch, so runs can
/// be read while they train.
namespace fulgur::history {

enum class RunStatus { running, finished, failed, interrupted };
/// `running`, `finished`, `failed` or `interrupted`.
FULGUR_API std::string_view status_name(RunStatus status);

/// The metric by which a run ranks its checkpoints.
struct Monitor {
  std::string metric;
  bool smaller_is_better = true;
};

/// What a run has logged of one metric. NaN and infinity are never the least or the greatest value.
struct MetricValues {
  std::string name;
  int64_t count = 0;
  double last = 0;
  std::optional<double> least, most;
  int64_t last_step = 0, least_step = 0, most_step = 0;
};

struct CheckpointEntry {
  std::string name;
  int64_t epoch = 0, step = 0;
  uint64_t bytes = 0;
  std::optional<double> fit_time_s;       ///< when it was saved, in seconds of training
  std::map<std::string, double> metrics;  ///< the newest values at that time
  bool is_last = false, is_best = false, weights_only = false;
  std::string problem;  ///< why it cannot be read; the other members are then not set
};

/// A config as `key.of.option` → text, in the order of the file. A list of plain values is one entry.
using ConfigKeys = std::vector<std::pair<std::string, std::string>>;

struct FULGUR_API Run {
  std::filesystem::path folder;
  std::string name;          ///< for display
  std::string verb = "fit";  ///< or validate, test, predict, which have no epochs
  RunStatus status = RunStatus::interrupted;
  std::string reason;  ///< why it stopped or failed, if known
  int64_t epochs = 0;  ///< completed
  int64_t steps = 0;
  std::optional<double> duration_s;  ///< training time over all parts of a resumed run
  std::optional<Monitor> monitor;
  std::vector<MetricValues> metrics;         ///< in the order of the log
  std::vector<CheckpointEntry> checkpoints;  ///< by step
  ConfigKeys config;
  std::vector<std::pair<std::string, std::string>> system;  ///< device, versions, …
  std::string damage;  ///< what was wrong with its rows or its config, if they were not to throw

  const MetricValues* find_metric(std::string_view metric) const;
  /// The best value of the monitored metric and its step.
  std::optional<std::pair<double, int64_t>> best() const;
  bool is_fit() const { return verb == "fit"; }
  /// The status of a fit; for another verb it begins with the verb: `test, finished`.
  std::string status_text() const;
  /// Steps per second of training time, over the whole run.
  std::optional<double> steps_per_s() const;
};

/// What is done with damaged rows and configs: an exception, or an entry in Run::damage.
enum class Damage { throws, is_noted };

/// Reads a run folder. Throws a ConfigError if `folder` does not exist or is not a run folder, and a DataError for a
/// damaged log or config. A last row that is still being written is left out, unless the run has finished.
FULGUR_API Run read_run(const std::filesystem::path& folder, Damage damage = Damage::throws);

/// The folders of fits at and below `root`, sorted by name with numbers by value. Links and hidden folders are not
/// followed. Throws a ConfigError if `root` is not a folder.
FULGUR_API std::vector<std::filesystem::path> find_runs(const std::filesystem::path& root);

/// Returns `folder` if it is a run folder. Otherwise returns a run that trains, of those below it, or if none does the
/// run that began last. Throws a ConfigError if there is no run.
FULGUR_API std::filesystem::path newest_run(const std::filesystem::path& folder);

/// Returns `folder` if it is a run folder, and otherwise the runs that find_runs finds. Throws a ConfigError if there
/// is none.
FULGUR_API std::vector<std::filesystem::path> runs_at(const std::filesystem::path& folder);

/// Reads the runs that find_runs finds; their names are their paths below `root`. Damage is noted. The monitor of a
/// trial of a sweep is the metric of the sweep.
FULGUR_API std::vector<Run> read_runs(const std::filesystem::path& root);

}  // namespace fulgur::history
