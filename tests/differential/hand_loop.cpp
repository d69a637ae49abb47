#include "hand_loop.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "data.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/state/clip.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/config.h"
#include "fulgur/trainer/yaml.h"
#include "net.h"

namespace fulgur::test {

namespace {

struct ByHand {
  Config config;
  std::shared_ptr<DifferentialNet> net;
  std::shared_ptr<Optimizer> optimizer;
  std::shared_ptr<LrScheduler> schedule;
  Loaders loaders;
  std::map<int64_t, int64_t> accumulation;  // from an epoch on
  int64_t epoch = 0, steps = 0, batches = 0, window = 1, done = 0, losses = 0;
  bool begun = false;     // the window
  bool bad_loss = false;  // in the window
  std::vector<Tensor> buffers_before;

  TrainerOptions& options() { return config.trainer; }
  bool steps_over() { return options().max_steps >= 0 && steps >= options().max_steps; }
  bool epochs_over() { return options().max_epochs && epoch >= *options().max_epochs; }

  void step_schedule(ScheduleInterval interval, int64_t count) {
    const bool by_steps = config.lr_scheduler_interval == ScheduleInterval::step;
    if (schedule && by_steps == (interval == ScheduleInterval::step) && count % config.lr_scheduler_frequency == 0)
      schedule->step();
  }

  bool finite() {
    for (const Tensor& gradient : optimizer->gradients())
      if (!gradient.isfinite().all().item<bool>()) return false;
    return true;
  }

  void step() {
    if (options().gradient_clip_val) {
      if (options().gradient_clip_algorithm == ClipAlgorithm::value)
        clip_grad_value(optimizer->gradients(), *options().gradient_clip_val);
      else
        clip_grad_norm(optimizer->gradients(), *options().gradient_clip_val);
    }
    step_or_skip();
    optimizer->zero_grad();
    ++steps;
    step_schedule(ScheduleInterval::step, steps);
  }

  // A step that is skipped leaves the buffers as they were before its first batch.
  void step_or_skip() {
    begun = false;
    if (options().on_nonfinite != OnNonFinite::skip || (finite() && !std::exchange(bad_loss, false))) {
      optimizer->step();
      return;
    }
    bad_loss = false;
    const at::NoGradGuard no_grad;
    const std::vector<Tensor> buffers = net->buffers();
    for (size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(buffers_before[i]);
  }

  void begin_window() {
    if (std::exchange(begun, true)) return;
    buffers_before.clear();
    for (const Tensor& buffer : net->buffers()) buffers_before.push_back(buffer.detach().clone());
  }

  void end_window() {
    const int64_t length = window, with_loss = losses;
    done = losses = 0;
    begun = begun && with_loss > 0;
    if (with_loss == 0) return;
    if (with_loss != length) {
      const at::NoGradGuard no_grad;
      for (Tensor& gradient : all_gradients())
        gradient.mul_(static_cast<double>(length) / static_cast<double>(with_loss));
    }
    step();
  }

  std::vector<Tensor> all_gradients() { return optimizer->gradients(); }

  // With a closure the loss is evaluated in the optimizer's step.
  void closed_batch(const Batch& batch, int64_t batch_idx) {
    optimizer->step_closure([&] {
      optimizer->zero_grad();
      const Tensor loss = net->loss(batch, epoch, batch_idx);
      loss.backward();
      if (options().gradient_clip_val) {
        if (options().gradient_clip_algorithm == ClipAlgorithm::value)
          clip_grad_value(optimizer->gradients(), *options().gradient_clip_val);
        else
          clip_grad_norm(optimizer->gradients(), *options().gradient_clip_val);
      }
      return loss;
    });
    optimizer->zero_grad();
    ++steps;
    step_schedule(ScheduleInterval::step, steps);
  }

  void manual_batch(const Tensor& loss, int64_t batch_idx) {
    if (loss.defined()) loss.backward();
    if ((batch_idx + 1) % net->options().manual_steps != 0) return;
    step_or_skip();
    optimizer->zero_grad();
    ++steps;
  }

  void batch(const Batch& batch, int64_t batch_idx, const std::optional<int64_t>& length) {
    if (optimizer->needs_closure()) return closed_batch(batch, batch_idx);
    begin_window();
    const Tensor loss = net->loss(batch, epoch, batch_idx);
    bad_loss |= loss.defined() && !loss.isfinite().item<bool>();
    if (net->options().manual) return manual_batch(loss, batch_idx);
    if (done == 0) {
      const int64_t wanted =
          accumulation.empty() ? options().accumulate_grad_batches : std::prev(accumulation.upper_bound(epoch))->second;
      window = length ? std::min(wanted, *length - batch_idx) : wanted;
    }
    if (loss.defined()) {
      (window > 1 ? loss / static_cast<double>(window) : loss).backward();
      ++losses;
    }
    if (++done == window) end_window();
  }

  bool train_epoch() {
    Loader& loader = *loaders.front();
    loader.start_epoch(epoch);
    const std::optional<int64_t> size = loader.size();
    const BatchLimit& limit = options().limit_train_batches;
    std::optional<int64_t> length = size;
    if (limit.count)
      length = size ? std::min(*size, *limit.count) : *limit.count;
    else if (size)
      length = static_cast<int64_t>(static_cast<double>(*size) * limit.fraction);
    // With data without a length the limit cuts the epoch, but no window is known to be the last.
    Batch batch_of_data;
    int64_t batch_idx = 0;
    for (; !length || batch_idx < *length; ++batch_idx) {
      if (!loader.next(batch_of_data) || net->skips_epoch(epoch, batch_idx)) break;
      batch(batch_of_data, batch_idx, length);
      ++batches;
      if (steps_over() && (!length || batch_idx + 1 < *length)) return false;
    }
    if (done > 0) end_window();
    ++epoch;
    step_schedule(ScheduleInterval::epoch, epoch);
    return true;
  }
};

}  // namespace

bool can_train_by_hand(const Plan& config) {
  const auto text = [&](const char* path) { return value_at<std::string>(config, path, ""); };
  if (value_at<Plan>(config, "/trainer/precision", "").is_object()) return false;
  const std::string precision = text("/trainer/precision"), policy = text("/trainer/on_nonfinite");
  if (precision != "" && precision != "32-true" && precision != "64-true") return false;
  if (policy == "rollback" || config.at("trainer").contains("max_time")) return false;
  if (text("/lr_scheduler/class_path") == "ReduceLROnPlateau") return false;
  // A length in steps or samples is converted by what the Trainer knows of the run.
  if (value_at<Plan>(config, "/lr_scheduler/init_args/step_size", 1).is_string()) return false;
  for (const Plan& callback : config.at("trainer").at("callbacks")) {
    const std::string name = callback.at("class_path");
    if (name == "EarlyStopping") return false;
    if (name == "DifferentialStepEvents" && callback.at("init_args").contains("stop_at")) return false;
    if (name == "GradientAccumulationScheduler")
      for (const auto& [key, factor] : callback.at("init_args").at("scheduling").items())
        if (key.find_first_not_of("0123456789") != std::string::npos) return false;
  }
  return true;
}

int train_by_hand(const Plan& json, const std::filesystem::path& folder) {
  Problems problems;
  ByHand hand;
  hand.config = config_from_node(parse_yaml(json.dump(), "plan", problems));
  const Config& config = hand.config;
  for (const Plan& callback : json.at("trainer").at("callbacks"))
    if (callback.at("class_path") == "GradientAccumulationScheduler") {
      hand.accumulation[0] = 1;
      for (const auto& [key, factor] : callback.at("init_args").at("scheduling").items())
        hand.accumulation[std::stoll(key)] = factor.get<int64_t>();
    }
  at::manual_seed(*config.seed_everything.seed);
  const auto data = config.data.create();
  hand.net = std::dynamic_pointer_cast<DifferentialNet>(config.model.create());
  if (config.trainer.precision.class_path() == "64-true") convert_floating(*hand.net, at::kDouble);
  data->setup(TrainerFn::fit);
  hand.loaders = data->loaders(RunningStage::train);
  hand.loaders.front()->configure(*config.seed_everything.seed, 0, 1);
  hand.optimizer = config.optimizer->create();
  hand.optimizer->attach(trainable_groups(*hand.net));
  if (config.lr_scheduler) {
    hand.schedule = config.lr_scheduler->create();
    const Loader& loader = *hand.loaders.front();
    RunLength length;
    length.samples_per_step = static_cast<double>(loader.batch_size() * config.trainer.accumulate_grad_batches);
    hand.schedule->set_run_length(length, config.lr_scheduler_interval, config.lr_scheduler_frequency);
    hand.schedule->attach(*hand.optimizer);
  }
  hand.net->train();
  // A fit seeds once more, so that it does not matter what was drawn before.
  at::manual_seed(*config.seed_everything.seed);
  while (!hand.steps_over() && !hand.epochs_over())
    if (!hand.train_epoch()) break;

  CheckpointContent content;
  content.module = module_state(*hand.net);
  content.optimizers = StateTree::List{hand.optimizer->state()};
  StateTree::List rates;
  for (const ParamGroup& group : hand.optimizer->groups()) rates.push_back(group.lr);
  content.state = StateTree::map({{"facts", StateTree::map({{"global_step", hand.steps},
                                                            {"epochs", hand.epoch},
                                                            {"batches", hand.batches},
                                                            {"rates", std::move(rates)}})}});
  write_checkpoint(folder / "result.0.ckpt", content);
  return 0;
}

}  // namespace fulgur::test
