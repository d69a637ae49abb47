#include "fulgur/trainer/trainer_options.h"

#include <algorithm>

#include "config/renamed_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

TypeInfo FieldTraits<LoggerChoice>::type() {
  TypeInfo logger = FieldTraits<Spec<Logger>>::type();
  TypeInfo list{.kind = TypeInfo::Kind::list, .name = "list of logger", .parts = {logger}};
  return {.kind = TypeInfo::Kind::any_of,
          .name = "bool, logger or list of logger",
          .parts = {FieldTraits<bool>::type(), logger, list}};
}

bool FieldTraits<LoggerChoice>::read(const ConfigNode& node, LoggerChoice& value, Problems& problems,
                                     const std::string& path) {
  LoggerChoice read_value;
  if (node.is_list()) {
    if (!FieldTraits<std::vector<Spec<Logger>>>::read(node, read_value.loggers, problems, path)) return false;
    read_value.enabled = !read_value.loggers.empty();
  } else if (node.is_map() || (node.is_scalar() && (node.quoted() || reads_as_text(node.text())))) {
    read_value.loggers.emplace_back();
    if (!read_value.loggers.back().read(node, problems, path)) return false;
  } else if (!detail::read_bool(node, read_value.enabled, problems, path)) {
    return false;
  }
  value = std::move(read_value);
  return true;
}

ConfigNode FieldTraits<LoggerChoice>::write(const LoggerChoice& value) {
  if (!value.enabled || value.loggers.empty()) return ConfigNode::boolean(value.enabled);
  return FieldTraits<std::vector<Spec<Logger>>>::write(value.loggers);
}

TypeInfo FieldTraits<FastDevRun>::type() {
  TypeInfo count = FieldTraits<int64_t>::type();
  count.minimum = 0;
  return {.kind = TypeInfo::Kind::any_of, .name = "bool or int", .parts = {FieldTraits<bool>::type(), count}};
}

bool FieldTraits<FastDevRun>::read(const ConfigNode& node, FastDevRun& value, Problems& problems,
                                   const std::string& path) {
  if (node.is_scalar() && !node.quoted() && !reads_as_text(node.text()) && node.text().find_first_of("tTfF") == 0) {
    bool on = false;
    if (!detail::read_bool(node, on, problems, path)) return false;
    value.batches = on ? 1 : 0;
    return true;
  }
  return detail::read_int(node, value.batches, problems, path);
}

ConfigNode FieldTraits<FastDevRun>::write(const FastDevRun& value) {
  return value.batches == 0 ? ConfigNode::boolean(false) : ConfigNode::integer(value.batches);
}

namespace {

TypeInfo choice(const char* text) { return {.kind = TypeInfo::Kind::string, .name = text, .choices = {text}}; }

/// `"0,3"`, `"3,"`; nullopt if the text is not such a list.
std::optional<std::vector<int64_t>> device_indices(std::string_view text) {
  std::vector<int64_t> indices;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view item = text.substr(0, comma);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    const auto index = parse_whole<int64_t>(item);
    if (!index) return std::nullopt;
    indices.push_back(*index);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return indices;
}

/// The value that the option has with this text in a config.
template <class T>
T from_text(const char* text, const char* option) {
  T value;
  Problems problems;
  FieldTraits<T>::read(ConfigNode::scalar(text), value, problems, option);
  if (!problems.empty()) throw ConfigError(cat("[", option, "] ", problems.items().front().message));
  return value;
}

}  // namespace

TypeInfo FieldTraits<DeviceChoice>::type() {
  TypeInfo count = FieldTraits<int64_t>::type();
  count.minimum = -1;
  TypeInfo index = FieldTraits<int64_t>::type();
  index.minimum = 0;
  return {.kind = TypeInfo::Kind::any_of,
          .name = "auto, number of devices, or list of their indices",
          .parts = {choice("auto"),
                    count,
                    {.kind = TypeInfo::Kind::list, .name = "list of int", .min_items = 1, .parts = {index}},
                    {.kind = TypeInfo::Kind::string,
                     .name = "indices as text, such as \"0,3\" or \"3,\"",
                     .pattern = "^ *[0-9]+ *(, *[0-9]+ *)*,? *$"}}};
}

DeviceChoice::DeviceChoice(const char* text) : DeviceChoice(from_text<DeviceChoice>(text, "trainer.devices")) {}

bool FieldTraits<DeviceChoice>::read(const ConfigNode& node, DeviceChoice& value, Problems& problems,
                                     const std::string& path) {
  DeviceChoice chosen;
  if (node.is_list()) {
    if (!FieldTraits<std::vector<int64_t>>::read(node, chosen.indices, problems, path)) return false;
  } else if (node.is_scalar() && node.text() != "auto") {
    const auto indices = device_indices(node.text());
    if (!indices || indices->empty()) return detail::wrong_type(node, type(), problems, path);
    // As in Lightning, "2" is two devices and "2," is device 2.
    if (node.text().find(',') == std::string::npos)
      chosen.count = indices->front();
    else
      chosen.indices = *indices;
  } else if (!node.is_scalar()) {
    return detail::wrong_type(node, type(), problems, path);
  }
  if (chosen.count && (*chosen.count == 0 || *chosen.count < -1)) {
    problems.add(node.where, path, cat("must be at least 1, or -1 for all devices; got ", node.text()));
    return false;
  }
  for (size_t i = 0; i < chosen.indices.size(); ++i) {
    if (chosen.indices[i] < 0 || std::ranges::count(chosen.indices, chosen.indices[i]) > 1) {
      problems.add(node.where, path,
                   cat("each index of a device must be at least 0 and may occur only once; got ", chosen.indices[i]));
      return false;
    }
  }
  value = std::move(chosen);
  return true;
}

ConfigNode FieldTraits<DeviceChoice>::write(const DeviceChoice& value) {
  if (!value.indices.empty()) return FieldTraits<std::vector<int64_t>>::write(value.indices);
  return value.count ? ConfigNode::integer(*value.count) : ConfigNode::scalar("auto");
}

TypeInfo FieldTraits<DeterministicChoice>::type() {
  return {.kind = TypeInfo::Kind::any_of, .name = "bool or warn", .parts = {FieldTraits<bool>::type(), choice("warn")}};
}

DeterministicChoice::DeterministicChoice(const char* text)
    : DeterministicChoice(from_text<DeterministicChoice>(text, "trainer.deterministic")) {}

bool FieldTraits<DeterministicChoice>::read(const ConfigNode& node, DeterministicChoice& value, Problems& problems,
                                            const std::string& path) {
  DeterministicChoice read_value;
  if (node.is_scalar() && node.text() == "warn")
    read_value = DeterministicChoice(true, true);
  else if (!detail::read_bool(node, read_value.enabled, problems, path))
    return false;
  value = read_value;
  return true;
}

ConfigNode FieldTraits<DeterministicChoice>::write(const DeterministicChoice& value) {
  return value.warn_only ? ConfigNode::scalar("warn") : ConfigNode::boolean(value.enabled);
}

TypeInfo FieldTraits<ValCheckInterval>::type() {
  TypeInfo type = FieldTraits<BatchLimit>::type();
  type.name = "int, float or interval";
  type.parts.push_back(FieldTraits<Interval>::type());
  return type;
}

bool FieldTraits<ValCheckInterval>::read(const ConfigNode& node, ValCheckInterval& value, Problems& problems,
                                         const std::string& path) {
  if (node.is_scalar() && Interval::parse(node.text())) {
    value = ValCheckInterval(*Interval::parse(node.text()));
    return true;
  }
  ValCheckInterval read_value;
  if (!detail::read_batch_limit(node, read_value.batches, problems, path)) return false;
  value = read_value;
  return true;
}

ConfigNode FieldTraits<ValCheckInterval>::write(const ValCheckInterval& value) {
  return value.interval ? FieldTraits<Interval>::write(*value.interval) : FieldTraits<BatchLimit>::write(value.batches);
}

void AllocatorOptions::fields(Fields& f) {
  f(keep_freed_memory, "keep_freed_memory",
    "malloc keeps up to 1 GiB of memory freed by CPU tensors, and Fulgur up to 1 GiB in blocks above 32 MiB, instead "
    "of returning pages to the system and faulting them in again. false: blocks of at least 1 MiB are returned at "
    "once, which takes time in each step. malloc's own environment variables take precedence for what malloc keeps.");
  f(cuda, "cuda",
    "Settings of the CUDA allocator, in the syntax of PYTORCH_CUDA_ALLOC_CONF, which they replace: "
    "expandable_segments:True,max_split_size_mb:128.");
}

void TrainerOptions::fields(Fields& f) {
  f(accelerator, "accelerator",
    "Kind of device; auto: CUDA if there is a device, else the CPU. virtual: devices simulated on the CPU, to try "
    "strategies with several devices.")
      .one_of({"auto", "cpu", "cuda", "gpu", "virtual"});
  f(devices, "devices", "Devices of that kind: a number (-1: all), or indices such as [3] or \"3,\".");
  f(num_nodes, "num_nodes", "Number of machines, each with `devices` devices.").at_least(1);
  f(strategy, "strategy", "How the run is distributed over devices.");
  f(sync_batchnorm, "sync_batchnorm", "BatchNorm layers of fulgur::nn normalise over the batches of all ranks.");
  f(use_distributed_sampler, "use_distributed_sampler",
    "Each rank reads its own share of the data; false: the loaders split it themselves.");
  f(uneven_shares, "uneven_shares",
    "If training samples do not divide evenly among the ranks: repeat some of the epoch's first (pad), leave out the "
    "last (drop), or fail (error).");
  f(agree_every, "agree_every",
    "Training steps after which the ranks agree on stops, signals and the clock again; auto: about a second.")
      .at_least(1);
  f(precision, "precision",
    "Precision of weights and computation; 16, bf16, 32 and 64 stand for 16-mixed, bf16-mixed, 32-true and 64-true.");

  f(max_epochs, "max_epochs",
    "Epochs to train; -1: no limit; null: 1000 if neither max_steps nor max_time sets a limit.")
      .at_least(-1);
  f(max_steps, "max_steps",
    "Training steps; -1: no limit. Whichever of epochs and steps is reached first ends the run.")
      .at_least(-1);
  f(min_epochs, "min_epochs", "A requested stop (early stopping, max_time) waits until this many epochs are done.")
      .at_least(1);
  f(min_steps, "min_steps", "A requested stop waits until this many steps are done.").at_least(1);
  f(max_time, "max_time", "Stops training after this time, counted over all parts of a resumed run: 90min, 12h.")
      .units({"s", "min", "h"});
  f(stop_after, "stop_after",
    "Ends the fit with a checkpoint after this many epochs or steps of the run, 3ep or 500st, and leaves it "
    "unfinished: --resume continues it. Limits and schedules are not affected.")
      .units({"ep", "st"});
  f(fast_dev_run, "fast_dev_run",
    "Runs this many batches of each loop once, without checkpoints and loggers; true: 1.");
  f(limit_train_batches, "limit_train_batches", "Training batches per epoch: a count, or a fraction such as 0.1.");
  f(limit_val_batches, "limit_val_batches",
    "Validation batches per loader: a count, or a fraction; 0 switches validation off.");
  f(limit_test_batches, "limit_test_batches", "Test batches per loader: a count, or a fraction.");
  f(limit_predict_batches, "limit_predict_batches", "Predict batches per loader: a count, or a fraction.");
  f(overfit_batches, "overfit_batches",
    "Trains and validates on only the first batches, unshuffled: a count, or a fraction; 0: off. A limit_val_batches "
    "of 0 still switches validation off.");
  f(val_check_interval, "val_check_interval",
    "Validates after this fraction of an epoch, this number of training batches, or each such interval of the run: "
    "30min, 500st, 0.1dur.")
      .greater_than(0);
  f(check_val_every_n_epoch, "check_val_every_n_epoch",
    "Validates every N epochs; null: val_check_interval counts batches across epochs.")
      .at_least(1);
  f(num_sanity_val_steps, "num_sanity_val_steps",
    "Validation batches to run as a sanity check before training; -1: all.")
      .at_least(-1);

  f(validate_first, "validate_first", "Runs a complete, logged validation before the first training step.");
  f(reload_dataloaders_every_n_epochs, "reload_dataloaders_every_n_epochs",
    "Recreates the training and validation loaders every N epochs; 0: never.")
      .at_least(0);

  f(accumulate_grad_batches, "accumulate_grad_batches", "Batches whose gradients are averaged into one optimizer step.")
      .at_least(1);
  f(global_batch_size, "global_batch_size",
    "Samples of an optimizer step, over all ranks: the number of batches that are accumulated follows from it, from "
    "the "
    "batch size and from the number of ranks, also after a resume with other ranks; null: accumulate_grad_batches says "
    "it.")
      .at_least(1);
  f(auto_micro_batch, "auto_micro_batch",
    "If a training step runs out of memory, its batch is halved into micro-batches, again and again, and later batches "
    "are split alike: the global batch and the gradients stay the same.");
  f(gradient_clip_val, "gradient_clip_val", "Limit of the gradients before a step; null or 0: no clipping.")
      .at_least(0);
  f(gradient_clip_algorithm, "gradient_clip_algorithm", "Limits the norm over all gradients, or each value.");
  f(log_grad_norm, "log_grad_norm",
    "Logs the joint 2-norm of the gradients before clipping as `grad_norm`, without synchronizing with the device.");
  f(scale_lr, "scale_lr",
    "Multiplies all learning rates by global batch / base_batch_size (linear) or by its root (sqrt); the global batch "
    "is batch size × "
    "accumulate_grad_batches × ranks.");
  f(base_batch_size, "base_batch_size", "The batch size that the learning rates are meant for; scale_lr needs it.")
      .at_least(1);

  f(deterministic, "deterministic",
    "Uses deterministic algorithms only; an operation without one causes an error, or with `warn` a warning.");
  f(benchmark, "benchmark", "Lets cuDNN benchmark its algorithms and keep the fastest; null: the process's setting.");
  f(capture, "capture",
    "Records the work of a training step after 3 steps and replays it: as a CUDA graph on a GPU (one per process), as "
    "a list of kernels without autograd on the CPU. For batches of the same shape; results are equal to the bit on "
    "the CPU, where steps of validation, test and predict are captured too. If a step cannot be captured, the run says "
    "why and continues with eager steps.");
  f(capture_shapes, "capture_shapes",
    "With capture on the CPU: the number of shapes of batches that have their own recording (in an evaluation, also "
    "for each loader); batches of further shapes run eagerly. On a GPU there is one.")
      .at_least(1);
  f(capture_min_eval_batches, "capture_min_eval_batches",
    "With capture on the CPU: a loader of an evaluation with fewer batches in a pass runs eagerly, because recordings "
    "are compared with eager steps in each pass, which takes longer than what such a pass gains.")
      .at_least(2);
  f(float32_matmul_precision, "float32_matmul_precision",
    "Precision of float32 matrix products: highest; high (TF32 on CUDA); medium (bfloat16 internally, if the device "
    "supports it); null: the process's setting.")
      .one_of({"highest", "high", "medium"});
  f(memory_format, "memory_format",
    "channels_last: stores 4-D floating-point tensors of the module and of batches with channels innermost, which is "
    "faster for convolutions; contiguous: leaves them unchanged.");
  f(allocator, "allocator", "How tensor memory is allocated and kept, for the lifetime of the process.");
  f(inference_mode, "inference_mode",
    "Whether validate, test and predict run in inference mode instead of only without gradients. Validation inside a "
    "fit never uses inference mode.");
  f(detect_anomaly, "detect_anomaly", "Names the operation whose backward produces NaN; slow.");
  f(debug, "debug",
    "Checks shapes, devices and finiteness of batches, losses, gradients and parameters in each step, with "
    "detect_anomaly; slow.");
  f(barebones, "barebones",
    "For benchmarks: no checkpoints, loggers, progress bar, summary, sanity check; log() does nothing.");
  f(profiler, "profiler",
    "What measures the run: simple (time of each action), memory (of each action and layer), kineto (a Chrome trace of "
    "a few steps), nvtx and itt (ranges for NVIDIA's and Intel's tools), or none.");
  f(num_threads, "num_threads",
    "Threads of CPU operations; auto: OMP_NUM_THREADS, else by the work of a batch, at most the CPUs that this process "
    "may use; a resumed run keeps its number.")
      .at_least(1);
  f(cpu_matmul, "cpu_matmul",
    "The library that multiplies float32 matrices on the CPU: mkl (LibTorch's kernels), onednn (oneDNN for large "
    "products), or auto (the faster one, from a table of processors); a resumed run keeps its library.");
  f(log_every_n_steps, "log_every_n_steps",
    "Writes a row of step values every N steps, with their means since the row before; 0: never.")
      .at_least(0);

  f(default_root_dir, "default_root_dir", "Folder in which run folders are created.");
  f(logger, "logger", "Loggers of the run; true: CsvLogger and JsonlLogger; false: none.");
  f(enable_autolog_hparams, "enable_autolog_hparams", "Sends the model's options to the loggers.");
  f(callbacks, "callbacks", "Callbacks of the run, called by phase and then in this order.");
  f(enable_checkpointing, "enable_checkpointing", "Adds a ModelCheckpoint if the callbacks contain none.");
  f(async_checkpoint, "async_checkpoint",
    "Writes checkpoints on a background thread, from a copy in memory; false: training waits.");
  f(checkpoint_writer, "checkpoint_writer", "What writes checkpoints: folder, or a class of your own.");
  f(on_save_error, "on_save_error", "If a checkpoint cannot be saved: end the run, or continue and report it.");
  f(on_nonfinite, "on_nonfinite",
    "If the loss or the gradients are NaN or infinite: raise an error; skip the optimizer step; stop the run; roll "
    "back to the last checkpoint and continue with the next batch; off: no checks.");
  f(check_every, "check_every",
    "Checks the loss, all gradients and all parameters every N steps and names what is not finite (synchronizes with "
    "the device); 0: only the loss, when metrics are written, before checkpoints and at the end of each epoch.")
      .at_least(0);
  f(enable_progress_bar, "enable_progress_bar", "Adds a ProgressBar if the callbacks contain none.");
  f(enable_model_summary, "enable_model_summary", "Adds a ModelSummary if the callbacks contain none.");
  f.hint_for_unknown = config::hint_for_trainer_key;
}

void TrainerOptions::check_scale_lr() const {
  if (scale_lr != ScaleLr::none && !base_batch_size)
    throw ConfigError(cat(
        "[trainer.scale_lr] ", enum_text(scale_lr),
        " needs base_batch_size, the batch size that the learning rates are meant for. Set it, or scale_lr: none."));
  if (scale_lr == ScaleLr::none && base_batch_size)
    throw ConfigError(
        "[trainer.base_batch_size] this option has no effect without scale_lr. Set scale_lr: linear or sqrt, or leave "
        "it out.");
}

}  // namespace fulgur
