#include "run/run_state.h"

#include "fulgur/core/state/let_go.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

std::optional<int64_t> StageLoaders::total() const {
  int64_t sum = 0;
  for (const auto& count : batches) {
    if (!count) return std::nullopt;
    sum += *count;
  }
  return sum;
}

RunState::RunState(const TrainerOptions& written, const TrainerComponents& trainer_components, TrainerFn trainer_fn)
    : fn(trainer_fn),
      options(written, trainer_fn, trainer_fn == TrainerFn::fit ? trainer_components.profile_steps : 0),
      components(trainer_components),
      load(components.load),
      seed(components.seed),
      checkpoints_allowed(options.saves_checkpoints) {
  accumulation = window.target = options.accumulate_grad_batches;
}

RunState::~RunState() {
  let_go(position.batch);
  if (model) ComponentAccess::set_run(*model, nullptr);
  for (auto& [replica, replica_context] : replicas) ComponentAccess::set_run(*replica, nullptr);
}

void RunState::request_stop(std::string reason) {
  if (!stop_reason) stop_reason = std::move(reason);
}

void RunState::print(std::string_view line) const {
  if (is_global_zero()) log::info(line);
}

std::vector<OptimizerHandle*> RunState::optimizer_handles() const {
  std::vector<OptimizerHandle*> all;
  for (const auto& handle : handles) all.push_back(handle.get());
  return all;
}

std::string RunState::loader_suffix(const LogOptions& log_options) const {
  const bool of_one_loader = position.loader_count > 1 && position.stage != RunningStage::train &&
                             scope == LogScope::evaluation_step && log_options.add_dataloader_idx;
  return of_one_loader ? cat("/dataloader_idx_", position.loader_idx) : std::string();
}

bool RunState::is_logging_step() const {
  return options.log_every_n_steps > 0 && counters.global_step - logged_step >= options.log_every_n_steps;
}

bool RunState::may_stop() const {
  return counters.epochs.completed >= options.min_epochs.value_or(0) &&
         counters.global_step >= options.min_steps.value_or(0);
}

std::string RunState::describe_position() const {
  if (position.setting_up) return "setup";
  std::string text =
      cat(position.sanity_checking ? "sanity check" : name_of(position.stage), ", epoch ", counters.epoch, ", batch ",
          position.reading.value_or(position.batch_idx), ", step ", counters.global_step);
  if (position.reading) return text;
  const Batch* const batch = position.evaluated ? position.evaluated : position.in_batch ? &position.batch : nullptr;
  if (!batch) return text;
  for (const auto& [name, value] : *batch) {
    const auto* tensor = std::get_if<Tensor>(&value);
    if (!tensor || !tensor->defined()) continue;
    text +=
        cat(", ", escape_controls(name), " ", shape_text(tensor->sizes()), " ", c10::toString(tensor->scalar_type()));
  }
  return text;
}

std::string RunState::place_of_failure() const {
  if (position.reading) return cat(describe_position(), ", while the loader reads the batch");
  if (const Callback* const callback = callbacks.running())
    return cat(describe_position(), ", in callback ", callback->state_key());
  return position.doing ? cat(describe_position(), ", in ", position.doing) : describe_position();
}

}  // namespace fulgur::detail
