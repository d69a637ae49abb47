#include "fulgur/trainer/trainer_options.h"

#include "config/renamed_options.h"
#include "fulgur/core/text.h"

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

void TrainerOptions::fields(Fields& f) {
  f(accelerator, "accelerator", "Kind of device; auto takes CUDA where there is a device, else the CPU.")
      .one_of({"auto", "cpu", "cuda", "gpu"});
  f(devices, "devices", "How many devices of that kind.").at_least(1);
  f(strategy, "strategy", "How the run is spread over devices.");
  f(precision, "precision", "Number format of parameters and computation.").one_of({"32-true", "64-true", "32", "64"});

  f(max_epochs, "max_epochs", "Epochs to train; -1: no end; null: 1000 where max_steps gives no end either.")
      .at_least(-1);
  f(max_steps, "max_steps",
    "Optimizer steps to train; -1: no end. Whichever of epochs and steps comes first ends the run.")
      .at_least(-1);
  f(fast_dev_run, "fast_dev_run",
    "Runs that many batches of each loop once, without checkpoints and loggers; true is 1.");
  f(limit_train_batches, "limit_train_batches", "Training batches per epoch: a count, or a fraction such as 0.1.");
  f(limit_val_batches, "limit_val_batches",
    "Validation batches per loader: a count, or a fraction; 0 switches validation off.");
  f(limit_test_batches, "limit_test_batches", "Test batches per loader: a count, or a fraction.");
  f(limit_predict_batches, "limit_predict_batches", "Predict batches per loader: a count, or a fraction.");
  f(val_check_interval, "val_check_interval",
    "Validates after that fraction of an epoch, or after that many training batches.")
      .greater_than(0);
  f(check_val_every_n_epoch, "check_val_every_n_epoch",
    "Validates every that many epochs; null: val_check_interval counts batches across epochs.")
      .at_least(1);
  f(num_sanity_val_steps, "num_sanity_val_steps", "Validation batches to try before training; -1: all.").at_least(-1);

  f(accumulate_grad_batches, "accumulate_grad_batches", "Batches whose gradients are averaged into one optimizer step.")
      .at_least(1);
  f(gradient_clip_val, "gradient_clip_val", "Limit of the gradients before a step; null: no clipping.").at_least(0);
  f(gradient_clip_algorithm, "gradient_clip_algorithm", "Limits the norm over all gradients, or each value.")
      .one_of({"norm", "value"});

  f(deterministic, "deterministic", "Uses deterministic algorithms only; an operation that has none is an error.");
  f(num_threads, "num_threads", "Threads of CPU operations; auto: the cores this process may use.").at_least(1);
  f(log_every_n_steps, "log_every_n_steps", "Writes step values to the loggers every that many steps; 0: never.")
      .at_least(0);

  f(default_root_dir, "default_root_dir", "Folder below which run folders are made.");
  f(logger, "logger", "Where metrics go: true is CsvLogger and JsonlLogger; false, none.");
  f(callbacks, "callbacks", "What watches and decides in the run, in this order.");
  f(enable_checkpointing, "enable_checkpointing", "Adds a ModelCheckpoint where the callbacks have none.");
  f(enable_progress_bar, "enable_progress_bar", "Adds a ProgressBar where the callbacks have none.");
  f.hint_for_unknown = config::hint_for_trainer_key;
}

}  // namespace fulgur
