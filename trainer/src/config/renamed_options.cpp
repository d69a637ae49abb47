#include "config/renamed_options.h"
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

}  // namespace

std::optional<std::string> hint_for_trainer_key(std::string_view key) {
  for (const Renamed& renamed : kRenamed) {
    if (renamed.old_name == key) return std::string(renamed.today);
  }
  return std::nullopt;
}

std::optional<std::string> hint_for_top_key(std::string_view key) {
  if (key == "resume_from_checkpoint") return hint_for_trainer_key(key);
  if (key == "callbacks" || key == "logger" || key == "max_epochs" || key == "devices" || key == "accelerator") {
    return cat("write it under `trainer`");
  }
  return std::nullopt;
}

}  // namespace fulgur::config
