#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fulgur/core/callback.h"
#include "fulgur/core/export.h"
#include "fulgur/core/logger.h"
#include "fulgur/core/options.h"
#include "fulgur/core/strategy.h"

namespace fulgur {

/// `true` (the default loggers), `false` (none), one component or a list of them.
struct FULGUR_API LoggerChoice {
  bool enabled = true;
  std::vector<Spec<Logger>> loggers;  ///< empty and enabled: CsvLogger and JsonlLogger
};

template <>
struct FULGUR_API FieldTraits<LoggerChoice> {
  static TypeInfo type();
  static bool read(const ConfigNode& node, LoggerChoice& value, Problems& problems, const std::string& path);
  static ConfigNode write(const LoggerChoice& value);
};

/// `fast_dev_run: true` (one batch), `false`, or a number of batches.
struct FULGUR_API FastDevRun {
  int64_t batches = 0;  ///< 0: off
};

template <>
struct FULGUR_API FieldTraits<FastDevRun> {
  static TypeInfo type();
  static bool read(const ConfigNode& node, FastDevRun& value, Problems& problems, const std::string& path);
  static ConfigNode write(const FastDevRun& value);
};

/// Everything the `trainer:` section of a config may say.
struct FULGUR_API TrainerOptions {
  std::string accelerator = "auto";
  Auto<int64_t> devices;
  Spec<Strategy> strategy{"single_device"};
  std::string precision = "32-true";

  std::optional<int64_t> max_epochs;
  int64_t max_steps = -1;
  FastDevRun fast_dev_run;
  BatchLimit limit_train_batches;
  BatchLimit limit_val_batches;
  BatchLimit limit_test_batches;
  BatchLimit limit_predict_batches;
  BatchLimit val_check_interval;
  std::optional<int64_t> check_val_every_n_epoch = 1;
  int64_t num_sanity_val_steps = 2;

  int64_t accumulate_grad_batches = 1;
  std::optional<double> gradient_clip_val;
  std::string gradient_clip_algorithm = "norm";

  bool deterministic = false;
  Auto<int64_t> num_threads;
  int64_t log_every_n_steps = 50;

  std::filesystem::path default_root_dir = ".";
  LoggerChoice logger;
  std::vector<Spec<Callback>> callbacks;
  bool enable_checkpointing = true;
  bool enable_progress_bar = true;

  void fields(Fields& f);
};

}  // namespace fulgur
