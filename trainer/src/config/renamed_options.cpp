#include "config/renamed_options.h"

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/fields.h"
#include "fulgur/core/text/text.h"

namespace fulgur::config {

namespace {

struct Renamed {
  std::string_view old_name;
  std::string_view today;
};

constexpr Renamed kRenamed[] = {
    {"gpus", "write `accelerator: cuda` and `devices: N`"},
    {"num_gpus", "write `accelerator: cuda` and `devices: N`"},
    {"auto_select_gpus", "write `devices: auto`"},
    {"num_processes", "write `devices: N`"},
    {"distributed_backend", "write `strategy: NAME`"},
    {"amp_level", "write `precision: NAME`"},
    {"amp_backend", "write `precision: NAME`"},
    {"checkpoint_callback", "write `enable_checkpointing: true` or `false`"},
    {"progress_bar_refresh_rate", "write `enable_progress_bar: true` or `false`"},
    {"process_position", "write `enable_progress_bar: true` or `false`"},
    {"terminate_on_nan", "write `on_nonfinite: raise`"},
    {"resume_from_checkpoint", "write the top-level key `ckpt_path: last | best | PATH`"},
    {"ckpt_path", "it is a top-level key of the config, next to `trainer`"},
    {"weights_save_path", "write `dirpath` of the ModelCheckpoint callback"},
    {"flush_logs_every_n_steps", "write it as an option of the logger"},
    {"prepare_data_per_node", "override prepare_data_per_node() in the data module"},
    {"reload_dataloaders_every_epoch", "write `reload_dataloaders_every_n_epochs: 1`"},
    {"truncated_bptt_steps", "split the sequence in the module's training_step"},
    {"multiple_trainloader_mode", "combine the loaders in the data module"},
    {"move_metrics_to_cpu", "each metric is kept as a single number"},
    {"replace_sampler_ddp", "write `use_distributed_sampler: true` or `false`"},
    {"stochastic_weight_avg", "add the callback `WeightAveraging` with `kind: swa`"},
    {"track_grad_norm", "write `log_grad_norm: true`"},
    {"auto_lr_find", "add the callback `LearningRateFinder`, or use `trainer tune lr`"},
    {"auto_scale_batch_size", "add the callback `BatchSizeFinder`, or use `trainer tune batch_size`"},
    {"weights_summary", "write `enable_model_summary: true` or `false`"},
    {"plugins", "write `precision` and `strategy`; there are no other plugins"},
    {"model_registry", "there is no registry; a checkpoint is named by its path"},
    {"suggest_integrations", "there is nothing to suggest"},
    {"seed_everything", "it is a top-level key of the config, next to `trainer`"},
};

// Where options have `key`, as in `mesh: {pipeline: …}` or `micro_batches: …`; empty if they do not have it.
std::string place_in(const Fields& fields, std::string_view key) {
  if (fields.find(key)) return cat(key, ": …");
  for (const Field& field : fields.all())
    if (field.type.object && field.type.object()->find(key)) return cat(field.name, ": {", key, ": …}");
  return {};
}

// For an option of a component that the trainer has one of, written one level too high.
std::optional<std::string> hint_for_option_of(const std::string& kind, std::string_view key) {
  std::vector<std::string> owners;
  std::string place;
  for (const std::string& name : component_registry(kind).names()) {
    const OptionFields options(component_registry(kind).get(name).make_options());
    const std::string found = place_in(options.fields, key);
    if (found.empty()) continue;
    owners.push_back(name);
    place = found;
  }
  if (owners.empty()) return std::nullopt;
  return cat("it is an option of ", kind, ": ", join(owners, " or "), ". Write `", kind,
             ": {class_path: ", owners.size() == 1 ? owners.front() : "…", ", init_args: {", place, "}}`");
}

}  // namespace

std::optional<std::string> hint_for_trainer_key(std::string_view key) {
  for (const Renamed& renamed : kRenamed) {
    if (renamed.old_name == key) return std::string(renamed.today);
  }
  if (std::optional<std::string> hint = hint_for_option_of("strategy", key)) return hint;
  return hint_for_option_of("precision", key);
}

std::optional<std::string> hint_for_top_key(std::string_view key) {
  if (key == "resume_from_checkpoint") return hint_for_trainer_key(key);
  if (key == "callbacks" || key == "logger" || key == "max_epochs" || key == "devices" || key == "accelerator") {
    return cat("write it under `trainer`");
  }
  return std::nullopt;
}

}  // namespace fulgur::config
