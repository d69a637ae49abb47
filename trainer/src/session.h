#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "run.h"
#include "startup.h"

namespace fulgur::detail {

/// Folder of run folders where no logger names another.
inline constexpr const char* kDefaultRunName = "fulgur_logs";

/// The `trainer:` section that these options come from.
ConfigNode options_node(TrainerOptions options);

/// Everything that happens around the loops of one run, in the order of docs/architecture.md.
class Session {
 public:
  Session(const TrainerOptions& options, const Parts& parts, Verb verb)
      : deterministic_(options.deterministic), run_(std::make_unique<Run>(options, parts, verb)), verb_(verb) {}

  Run& run() { return *run_; }

  /// Hardware, callbacks, data, weights, optimizers, run folder, restored state: all that comes before the loops.
  void prepare(std::shared_ptr<LightningModule> module, DataSource data, const std::optional<std::filesystem::path>& checkpoint);
  /// Closes loggers and tears down, once; what fails there is only told.
  void finish(RunStatus status) noexcept;
  /// Tells callbacks and the data module.
  void on_exception(const std::exception& error) noexcept;

 private:
  void choose_hardware();
  void take_folder();
  void make_callbacks();
  void make_loggers();
  void set_up_data();
  void set_up_stage(Stage stage, const BatchLimit& limit, std::string_view option);
  void make_optimizers();
  void set_limits();
  void restore(const CheckpointContent& content);
  void save_config();
  void print_start();

  DeterministicGuard deterministic_;
  std::unique_ptr<Run> run_;
  Verb verb_;
  ChosenDevices devices_;
  int64_t threads_ = 1;
  std::vector<std::shared_ptr<Logger>> started_loggers_;
  bool finished_ = false;
  bool set_up_ = false;
};

}  // namespace fulgur::detail
