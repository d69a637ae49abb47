#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/state/stage.h"

namespace fulgur {

/// A kind of work of a run: a part of the loop (`training_step`), or a hook of a class
/// (`EarlyStopping.on_validation_end`). There is one object for each kind, which lives as long as the run.
struct FULGUR_API ProfiledAction {
  std::string name;
  int64_t index = 0;  ///< 0, 1, 2, … in the order in which the run first comes to them
};

/// The run that a profiler measures.
struct FULGUR_API ProfiledRun {
  TrainerFn fn = TrainerFn::fit;
  at::Device device{at::kCPU};  ///< of batches and losses
  int64_t rank = 0;
  std::filesystem::path run_dir;            ///< empty if the run has no folder
  const LightningModule* module = nullptr;  ///< lives longer than the run
  bool records_graphs = false;              ///< with `capture`: an action may be inside the recording of a graph
};

/// What a profiler has measured.
struct FULGUR_API Profile {
  std::string table;  ///< for people, several lines
  std::string json;   ///< the same as a JSON object, for `profile.json` in the run folder; empty: no file is written
};

/// Measures runs (`trainer.profiler`). Each rank has one, and all calls come from the thread of the run. Actions are
/// nested: the one that began last ends first. A profiler must not wait for the device between `start` and `stop`,
/// except where its documentation says so. A profiler that is passed as an object (`TrainerComponents::profiler`)
/// measures all runs of its Trainer, one after another, each from `start` to `stop`; the actions of each run are
/// numbered from 0.
class FULGUR_API Profiler {
 public:
  static constexpr const char* kRegistryKind = "profiler";

  virtual ~Profiler();
  /// Called once for each run, when everything is prepared and before the loops; what was measured in the run before
  /// does not count any more. Throws a ConfigError if it cannot measure this run.
  virtual void start(const ProfiledRun& /*run*/) {}
  virtual void begin(const ProfiledAction& action) = 0;
  virtual void end(const ProfiledAction& action) noexcept = 0;
  /// Called between two steps: after each training batch of a fit with all that follows it, or after each batch of
  /// another function.
  virtual void step_done() {}
  /// Called in each backward that exchanges gradients, when the gradients of this rank are computed and backward begins
  /// to wait for those of the others. May come from the thread of the device's backward, while the run's waits for it.
  virtual void exchange_is_awaited() {}
  /// Called before `stop` if the run has failed on this rank only. From then on, do not wait for the device: it may
  /// wait for other ranks.
  virtual void abandon() {}
  /// Called once for each run, at its end, also if an exception has ended it. Nullopt if there is nothing to show.
  virtual std::optional<Profile> stop() = 0;
};

}  // namespace fulgur
