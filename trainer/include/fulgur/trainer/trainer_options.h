#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/checkpoint/checkpoint_writer.h"
#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/contracts/loader.h"
#include "fulgur/core/contracts/logger.h"
#include "fulgur/core/contracts/profiler.h"
#include "fulgur/core/contracts/strategy.h"
#include "fulgur/core/device/cpu_matmul.h"
#include "fulgur/core/export.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/options/options.h"
#include "fulgur/core/state/clip.h"
#include "fulgur/trainer/allocator_options.h"

namespace fulgur {

/// The reaction (`trainer.on_nonfinite`) to a loss or gradients that are NaN or infinite.
enum class OnNonFinite { raise, skip, stop, rollback, off };
constexpr auto enum_names(OnNonFinite) {
  return std::to_array<EnumName<OnNonFinite>>({{OnNonFinite::raise, "raise"},
                                               {OnNonFinite::skip, "skip"},
                                               {OnNonFinite::stop, "stop"},
                                               {OnNonFinite::rollback, "rollback"},
                                               {OnNonFinite::off, "off"}});
}

/// The reaction (`trainer.on_save_error`) to a checkpoint that cannot be written; `proceed` is `continue` in configs.
enum class OnSaveError { stop, proceed };
constexpr auto enum_names(OnSaveError) {
  return std::to_array<EnumName<OnSaveError>>({{OnSaveError::stop, "stop"}, {OnSaveError::proceed, "continue"}});
}

/// How learning rates follow the batch size (`trainer.scale_lr`).
enum class ScaleLr { none, linear, sqrt };
constexpr auto enum_names(ScaleLr) {
  return std::to_array<EnumName<ScaleLr>>(
      {{ScaleLr::none, "none"}, {ScaleLr::linear, "linear"}, {ScaleLr::sqrt, "sqrt"}});
}

/// The memory format of images (`trainer.memory_format`).
enum class MemoryFormat { contiguous, channels_last };
constexpr auto enum_names(MemoryFormat) {
  return std::to_array<EnumName<MemoryFormat>>(
      {{MemoryFormat::contiguous, "contiguous"}, {MemoryFormat::channels_last, "channels_last"}});
}

/// `true` (the default loggers), `false` (none), one component or a list of them.
struct FULGUR_API LoggerChoice {
  bool enabled = true;
  std::vector<Spec<Logger>> loggers;  ///< CsvLogger and JsonlLogger if enabled and empty
  LoggerChoice() = default;
  /// Not from a pointer.
  template <std::same_as<bool> B>
  LoggerChoice(B on) : enabled(on) {}
  LoggerChoice(Spec<Logger> logger) { loggers.push_back(std::move(logger)); }
  LoggerChoice(const char* class_path) : LoggerChoice(Spec<Logger>(class_path)) {}
  LoggerChoice(std::string class_path) : LoggerChoice(Spec<Logger>(std::move(class_path))) {}
  LoggerChoice(std::nullptr_t) = delete;
  /// None if the list is empty.
  LoggerChoice(std::vector<Spec<Logger>> list) : enabled(!list.empty()), loggers(std::move(list)) {}
  LoggerChoice(std::initializer_list<Spec<Logger>> list) : LoggerChoice(std::vector<Spec<Logger>>(list)) {}
};

template <>
struct FULGUR_API FieldTraits<LoggerChoice> {
  static TypeInfo type();
  static bool read(const ConfigNode& node, LoggerChoice& value, Problems& problems, const std::string& path);
  static ConfigNode write(const LoggerChoice& value);
};

/// `fast_dev_run: true` (one batch), `false`, or a number of batches.
struct FULGUR_API FastDevRun {
  int64_t batches = 0;  ///< 0 if off
  FastDevRun() = default;
  /// One batch if true. Not from a pointer, such as a text.
  template <std::integral N>
  requires(!std::same_as<N, char>) FastDevRun(N n) : batches(static_cast<int64_t>(n)) {}
};

template <>
struct FULGUR_API FieldTraits<FastDevRun> {
  static TypeInfo type();
  static bool read(const ConfigNode& node, FastDevRun& value, Problems& problems, const std::string& path);
  static ConfigNode write(const FastDevRun& value);
};

/// `auto`, a number of devices (-1: all), or indices: `[0, 3]`, `"0,3"`, `"3,"` (a list of one), `"2"` (a number).
struct FULGUR_API DeviceChoice {
  std::optional<int64_t> count;  ///< -1 for all
  std::vector<int64_t> indices;  ///< if not empty, these devices are used
  DeviceChoice() = default;
  DeviceChoice(int number) : count(number) {}
  DeviceChoice(std::vector<int64_t> list) : indices(std::move(list)) {}
  /// `options.devices = {0, 3}`: indices.
  DeviceChoice(std::initializer_list<int64_t> list) : indices(list) {}
  /// As in a config. Throws a ConfigError if the text is not a choice.
  DeviceChoice(const char* text);
  DeviceChoice(std::nullptr_t) = delete;
  bool is_auto() const { return !count && indices.empty(); }
};

template <>
struct FULGUR_API FieldTraits<DeviceChoice> {
  static TypeInfo type();
  static bool read(const ConfigNode& node, DeviceChoice& value, Problems& problems, const std::string& path);
  static ConfigNode write(const DeviceChoice& value);
};

/// `deterministic: true | false | warn`.
struct FULGUR_API DeterministicChoice {
  bool enabled = false;
  bool warn_only = false;  ///< an operation without a deterministic form warns instead of throwing
  DeterministicChoice() = default;
  /// Not from another pointer than a text.
  template <std::same_as<bool> B>
  DeterministicChoice(B on, bool only_warn = false) : enabled(on), warn_only(only_warn) {}
  /// `options.deterministic = "warn"`, as in a config. Throws a ConfigError if the text is not a choice.
  DeterministicChoice(const char* text);
  DeterministicChoice(std::nullptr_t) = delete;
};

template <>
struct FULGUR_API FieldTraits<DeterministicChoice> {
  static TypeInfo type();
  static bool read(const ConfigNode& node, DeterministicChoice& value, Problems& problems, const std::string& path);
  static ConfigNode write(const DeterministicChoice& value);
};

/// When validation runs in an epoch: after a number of batches, a fraction of the epoch, or an interval of the run.
struct FULGUR_API ValCheckInterval {
  BatchLimit batches;
  std::optional<Interval> interval;
  ValCheckInterval() = default;
  ValCheckInterval(int n) : batches(n) {}
  ValCheckInterval(int64_t n) : batches(n) {}
  ValCheckInterval(double fraction) : batches(fraction) {}
  ValCheckInterval(Interval every) : interval(every) {}
  ValCheckInterval(const char* text) : ValCheckInterval(Interval(text)) {}
  ValCheckInterval(std::nullptr_t) = delete;
  /// True if validation runs once, at the end of each epoch.
  bool at_epoch_end() const { return !interval && !batches.count && batches.fraction == 1.0; }
};

template <>
struct FULGUR_API FieldTraits<ValCheckInterval> {
  static TypeInfo type();
  static bool read(const ConfigNode& node, ValCheckInterval& value, Problems& problems, const std::string& path);
  static ConfigNode write(const ValCheckInterval& value);
};

/// All options of the `trainer:` section of a config.
struct FULGUR_API TrainerOptions {
  std::string accelerator = "auto";
  DeviceChoice devices;
  int64_t num_nodes = 1;
  Spec<Strategy> strategy{"single_device"};
  Spec<Precision> precision{"32-true"};
  bool sync_batchnorm = false;
  bool use_distributed_sampler = true;
  UnevenShares uneven_shares = UnevenShares::pad;
  Auto<int64_t> agree_every;

  std::optional<int64_t> max_epochs, min_epochs;
  int64_t max_steps = -1;
  std::optional<int64_t> min_steps;
  std::optional<Interval> max_time;
  std::optional<Interval> stop_after;
  FastDevRun fast_dev_run;
  BatchLimit limit_train_batches;
  BatchLimit limit_val_batches;
  BatchLimit limit_test_batches;
  BatchLimit limit_predict_batches;
  BatchLimit overfit_batches{0.0};
  ValCheckInterval val_check_interval;
  std::optional<int64_t> check_val_every_n_epoch = 1;
  int64_t num_sanity_val_steps = 2;
  bool validate_first = false;
  int64_t reload_dataloaders_every_n_epochs = 0;

  int64_t accumulate_grad_batches = 1;
  std::optional<int64_t> global_batch_size = {};
  bool auto_micro_batch = false;
  std::optional<double> gradient_clip_val;
  ClipAlgorithm gradient_clip_algorithm = ClipAlgorithm::norm;
  bool log_grad_norm = false;
  ScaleLr scale_lr = ScaleLr::none;
  std::optional<int64_t> base_batch_size;

  DeterministicChoice deterministic;
  std::optional<bool> benchmark;
  bool capture = false;
  int64_t capture_shapes = 8;
  int64_t capture_min_eval_batches = 200;
  std::optional<std::string> float32_matmul_precision;
  MemoryFormat memory_format = MemoryFormat::contiguous;
  AllocatorOptions allocator;
  bool inference_mode = true;
  bool detect_anomaly = false;
  bool debug = false;
  bool barebones = false;
  Spec<Profiler> profiler{"none"};
  Auto<int64_t> num_threads;
  CpuMatmul cpu_matmul = CpuMatmul::automatic;
  int64_t log_every_n_steps = 50;

  std::filesystem::path default_root_dir = ".";
  LoggerChoice logger;
  bool enable_autolog_hparams = true;
  std::vector<Spec<Callback>> callbacks;
  bool enable_checkpointing = true;
  bool async_checkpoint = true;
  Spec<CheckpointWriter> checkpoint_writer{"folder"};
  OnSaveError on_save_error = OnSaveError::stop;
  OnNonFinite on_nonfinite = OnNonFinite::raise;
  int64_t check_every = 0;
  bool enable_progress_bar = true;
  bool enable_model_summary = true;

  void fields(Fields& f);
  /// Throws a ConfigError if one of `scale_lr` and `base_batch_size` is set without the other.
  void check_scale_lr() const;
};

}  // namespace fulgur
