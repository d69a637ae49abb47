#include "checkpointing/checkpoint_table.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <set>

#include "checkpointing/logger_states.h"
#include "checkpointing/restore_optimizers.h"
#include "checkpointing/resume.h"
#include "fulgur/core/options/yaml_writer.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/fsdp.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "run/batch_sizes.h"
#include "run/global_batch.h"
#include "run/rank_role.h"

namespace fulgur::detail {
namespace {

StateTree save_progress(Collecting& c) {
  Progress now = c.run.counters;
  now.fit_time_s = c.services.context.fit_time_s();
  return now.state();
}

StateTree save_callbacks(Collecting& c) {
  StateTree states;
  c.run.each_callback(LogScope::forbidden, "state", [&](Callback& callback) {
    if (StateTree own = callback.state(); !own.as_map().empty()) states[callback.state_key()] = std::move(own);
  });
  return states;
}

void load_callback_states(Restoring& r, const StateTree& states) {
  RunState& run = r.run;
  const std::string checkpoint = r.checkpoint->path.string();
  std::set<std::string> left;
  for (const auto& [key, state] : states.as_map()) left.insert(key);
  run.each_callback(LogScope::forbidden, "load_state", [&](Callback& c) {
    const std::string key = c.state_key();
    if (left.erase(key) == 0) return;
    try {
      c.load_state(states.at(key));
    } catch (const std::exception& error) {
      const std::string text = cat("the state of callback ", key, " in ", checkpoint, " does not fit: ", error.what());
      if (run.fn == TrainerFn::fit)
        throw CheckpointError(cat("[trainer.fit] ", text,
                                  "\nResume with the callback as it was when the checkpoint was "
                                  "made, or begin a new run with its weights: --load.weights_only true."));
      log::warn("trainer.callback_state", text + ". It is ignored");
    }
  });
  if (run.fn == TrainerFn::fit && !left.empty())
    log::warn("trainer.callback_state_unused",
              cat(checkpoint, " has the state of callbacks that this run does not have: ",
                  join({left.begin(), left.end()}), ". The checkpoints of this run will not contain it"));
}

StateTree save_loaders(Collecting& c) {
  if (c.run.loaders_at_end) return *c.run.loaders_at_end;
  if (c.run.rewound) return c.run.rewind_point->loaders;
  StateTree::List loaders;
  for (const auto& loader : c.run.stages[RunningStage::train].loaders) loaders.push_back(loader->state());
  return loaders;
}

// With other batch sizes or another number of ranks, the epoch continues at a different batch, after the same samples.
void load_loaders(Restoring& r, const StateTree& value) {
  RunState& run = r.run;
  const StateTree::List& states = value.as_list();
  const int64_t saved_shares = saved_data_shares(r.content);
  const auto& loaders = run.stages[RunningStage::train].loaders;
  if (states.size() != loaders.size()) return;
  const bool reads_on = run.counters.in_epoch() && !run.counters.at_epoch_end();
  // If each rank has its own data, there are no shares to convert.
  const bool reshards = saved_shares != run.data_shares() && run.options.use_distributed_sampler && reads_on;
  if (!states.empty()) set_batch_size_of_resumed_epoch(run, states.front());
  for (size_t i = 0; i < loaders.size(); ++i) {
    loaders[i]->load_state(reshards ? loaders[i]->reshard_state(states[i], saved_shares) : states[i]);
    if (reads_on) loaders[i]->check_loaded(run.counters.epoch);
    const StateTree now = loaders[i]->state();
    if (i > 0 || !now.contains("batches") || !states[i].contains("batches")) continue;
    const int64_t before = states[i].at("batches").as_int(), after = now.at("batches").as_int();
    if (before == after || run.counters.batches.completed != before) continue;
    run.counters.batches = {.ready = after, .started = after, .processed = after, .completed = after};
    log::info(cat("data: the epoch resumes at batch ", after, ", after as many samples as at batch ", before,
                  " with the checkpoint's ", saved_shares, saved_shares == 1 ? " process" : " processes"));
  }
}

StateTree save_loop(Collecting& c) {
  const RunState& run = c.run;
  const auto& reason = run.stop_reason;
  return StateTree::map({{"accumulation", run.window.target},
                         {"data_shares", run.data_shares()},
                         {"role", state_of_role(role_of(*run.strategy))},
                         {"accumulate_grad_batches", run.accumulation},
                         {"window_length", run.window.length},
                         {"window_done", run.window.done},
                         {"window_losses", run.window.losses},
                         {"validation_pending", run.validation.pending},
                         {"validated_at", run.validation.ended_at},
                         {"stop", reason && !is_of_limit(*reason) ? *reason : ""},
                         {"stop_held_up", !run.may_stop()},
                         {"logged_step", run.logged_step},
                         {"last_batch_samples", run.position.batch_samples},
                         {"micro_batch_samples", run.micro_batch_samples},
                         {"own_batch_size", run.batch_sizes ? run.batch_sizes->own : 0},
                         {"evaluation_batches", run.validation.batches_before.value_or(run.validation.batches)}});
}

void load_loop(Restoring& r, const StateTree& loop) {
  RunState& run = r.run;
  // A callback's change of the option is kept; a change in the config applies from the next window on.
  if (loop.at("accumulate_grad_batches").as_int() == run.accumulation)
    run.window.target = loop.at("accumulation").as_int();
  else
    log::info(cat("accumulate_grad_batches: the checkpoint was saved with ",
                  loop.at("accumulate_grad_batches").as_int(), "; the run continues with ", run.window.target));
  const SavedWindow window = converted_window(run,
                                              {.length = loop.at("window_length").as_int(),
                                               .done = loop.at("window_done").as_int(),
                                               .losses = loop.at("window_losses").as_int()},
                                              saved_batch_of_all(r.content).value_or(0));
  run.window.length = window.length;
  run.window.done = window.done;
  run.window.losses = window.losses;
  for (const auto& planned : run.plan.optimizers)
    if (run.window.done > 0 && planned.scheduler) planned.scheduler->scheduler->resume_in_window();
  run.validation.pending = loop.at("validation_pending").as_bool();
  run.validation.ended_at = loop.at("validated_at").as_int();
  // The process ended before the run stopped. If the run had finished, it was now asked to train further.
  const bool stops = loop.at("stop_held_up").as_bool() || r.checkpoint->unfinished;
  if (const std::string& reason = loop.at("stop").as_string(); !reason.empty() && stops) run.request_stop(reason);
  run.logged_step = loop.at("logged_step").as_int();
  run.position.batch_idx = std::max<int64_t>(run.counters.batches.completed - 1, 0);
  run.position.batch_samples = loop.at("last_batch_samples").as_double();
  run.validation.batches = loop.at("evaluation_batches").as_int();
  // Checkpoints of earlier versions do not have it.
  if (run.options.auto_micro_batch && loop.contains("micro_batch_samples"))
    run.micro_batch_samples = loop.at("micro_batch_samples").as_int();
  // Before the loaders, whose batch size depends on it.
  if (loop.contains("own_batch_size")) run.own_batch_size_saved = loop.at("own_batch_size").as_int();
}

// Inside an accumulation window the gradients are part of the state.
[[noreturn]] void throw_gradients_of_parts(const std::string& name) {
  throw CheckpointError(cat(
      "[trainer.resume] the checkpoint was saved between a backward and its step by ranks of which each had a part of "
      "the gradients, such as that of '",
      escape_controls(name), "'. Resume with the same strategy and the same mesh."));
}

StateTree save_gradients(Collecting& c) {
  StateTree gradients;
  for (const auto& [name, value] : unique_parameters(*c.run.model))
    if (value.grad().defined()) gradients[name] = value.grad();
  return gradients;
}

void load_gradients(Restoring& r, const StateTree& gradients) {
  for (auto& [name, value] : unique_parameters(*r.run.model)) {
    if (!gradients.contains(name)) continue;
    const Tensor& gradient = gradients.at(name).tensor();
    if (!r.run.strategy->divides_parameters() && gradient.sizes() != value.sizes())
      throw CheckpointError(
          cat("[trainer.resume] the checkpoint was saved between a backward and its step by ranks of which each had a "
              "part of the gradients: that of '",
              escape_controls(name), "' has shape ", shape_text(gradient.sizes()), ", and the parameter ",
              shape_text(value.sizes()), ". Resume with the same strategy and the same mesh."));
    // Of a part of the parameter, which the strategy has not divided yet.
    if (r.run.strategy->divides_parameters() && gradient.sizes() != value.sizes())
      value.mutable_grad() = gradient.clone();
    // In the parameter's memory format, as backward creates them: the last bits of sums over them depend on it.
    else
      value.mutable_grad() =
          at::empty_strided(
              value.sizes(), value.strides(),
              value.options().requires_grad(false).device(value.is_meta() ? at::Device(at::kCPU) : value.device()))
              .copy_(gradient);
  }
}

StateTree save_optimizers(Collecting& c) {
  StateTree::List optimizers;
  Strategy& strategy = *c.run.strategy;
  for (const auto& planned : c.run.plan.optimizers)
    optimizers.push_back(strategy.saves_parts() ? strategy.optimizer_state_in_parts(*planned.optimizer, c.parts)
                                                : strategy.optimizer_state(*planned.optimizer));
  return optimizers;
}

StateTree save_precision(Collecting& c) {
  const Precision& precision = c.run.strategy->precision();
  return c.run.strategy->saves_parts() ? precision.state_in_parts(c.parts) : precision.state();
}

StateTree save_schedules(Collecting& c) {
  StateTree::List schedules;
  for (const auto& planned : c.run.plan.optimizers)
    schedules.push_back(planned.scheduler ? planned.scheduler->scheduler->state() : StateTree(nullptr));
  return schedules;
}

StateTree save_optimizer_steps(Collecting& c) {
  StateTree::List steps;
  for (const auto& handle : c.run.handles) steps.emplace_back(handle->steps());
  return steps;
}

void load_optimizer_steps(Restoring& r, const StateTree& value) {
  const auto& steps = value.as_list();
  for (size_t i = 0; i < steps.size() && i < r.run.handles.size(); ++i) r.run.handles[i]->set_steps(steps[i].as_int());
}

// Each logger gets the first state with its key that no other logger got.
void load_loggers(Restoring& r, const StateTree& value) {
  StateTree::List states = value.as_list();
  for (const auto& logger : r.run.log_targets) {
    const auto own = std::ranges::find_if(
        states, [&](const StateTree& item) { return item.at("key").as_string() == logger->state_key(); });
    if (own == states.end()) continue;
    if (!own->at("state").is_null()) logger->load_state(own->at("state"));
    states.erase(own);
  }
}

StateTree published_metrics(Collecting& c) {
  StateTree metrics;
  for (const auto& [name, value] : c.services.logs.published()) metrics[name] = value;
  return metrics;
}

StateTree save_loggers(Collecting& c) { return logger_states(c.run); }

// The sum of the gradients, each divided by the number of ranks, as an exchange would have computed it.
StateTree gradients_of_rank(const RankValues& values, const RankRole&) {
  const at::NoGradGuard no_grad;
  StateTree mean;
  for (const StateTree* gradients : values.all)
    for (const auto& [name, value] : gradients->as_map()) {
      const Tensor part = value.tensor() / static_cast<double>(values.all.size());
      if (mean.contains(name) && mean.at(name).tensor().sizes() != part.sizes()) throw_gradients_of_parts(name);
      mean[name] = mean.contains(name) ? mean.at(name).tensor() + part : part;
    }
  return mean;
}

void load_strategy(Restoring& r, const StateTree& value) {
  if (value.contains("stage_gradients") && value.at("stage_gradients").as_bool() && r.run.strategy->name() != "mesh")
    throw CheckpointError(
        cat("[trainer.resume] the checkpoint was saved between a backward and its step by mesh, whose ranks have the "
            "gradients of their stages only; the run's strategy is ",
            r.run.strategy->name(), ". Resume with the same mesh."));
  if (value.contains("gradient_shards") && !dynamic_cast<const FSDPStrategy*>(r.run.strategy.get()))
    throw CheckpointError(
        cat("[trainer.resume] the checkpoint was saved between a backward and its step by fsdp, whose "
            "ranks have parts of the gradients; the run's strategy is ",
            r.run.strategy->name(), ". Resume with fsdp."));
  r.run.strategy->load_state(value);
}

// Current metrics of all ranks for the one that continues them; none for the others.
StateTree logs_of_rank(const RankValues& values, const RankRole& role) {
  LogStore logs;
  logs.load_state(*values.all.front());
  if (!role.logs) logs.forget_running();
  for (size_t i = 1; role.logs && i < values.counting.size(); ++i) {
    LogStore other;
    other.load_state(*values.counting[i]);
    logs.add_running(other);
  }
  return logs.state();
}

StateTree metrics_of_rank(const RankValues& values, const RankRole& role) {
  return MetricStore::of_rank(values.counting, role.logs);
}

// The generators of the share of the data. With other shares, those of the first rank for the first one, and null for
// the others, which draw new random numbers.
StateTree rng_of_rank(const RankValues& values, const RankRole& role) {
  if (values.of_share) return *values.of_share;
  return role.share > 0 ? nullptr : *values.all.front();
}

StateTree first_of_ranks(const RankValues& values, const RankRole&) { return *values.all.front(); }

using P = LoadPhase;

// clang-format off
const CheckpointEntry kEntries[] = {
    {.key = checkpoint_keys::kWeightsOnly, .phase = P::facts,
     .save = [](Collecting& c) -> StateTree { return c.weights_only; }, .with_weights = true},
    {.key = checkpoint_keys::kImported, .phase = P::facts},
    {.key = checkpoint_keys::kHparams, .phase = P::facts,
     .save = [](Collecting& c) -> StateTree {
       return c.run.model->hparams().is_null() ? "{}\n" : to_yaml(c.run.model->hparams());
     },
     .with_weights = true},
    {.key = checkpoint_keys::kConfig, .phase = P::facts,
     .save = [](Collecting& c) -> StateTree { return to_yaml(c.run.description.config); }, .with_weights = true},
    {.key = checkpoint_keys::kConfigWritten, .phase = P::facts,
     .save = [](Collecting& c) -> StateTree {
       return c.run.components.config ? to_yaml(*c.run.components.config) : std::string("{}\n");
     },
     .with_weights = true},
    {.key = kAdaptersKey, .phase = P::facts,
     .save = [](Collecting& c) -> StateTree { return c.run.adapters ? c.run.adapters->state() : StateTree(nullptr); },
     .with_weights = true},
    {.key = checkpoint_keys::kMetrics, .phase = P::facts,
     .save = published_metrics, .late = published_metrics, .with_weights = true},
    {.key = checkpoint_keys::kData, .phase = P::data,
     .save = [](Collecting& c) -> StateTree { return c.run.data.module ? c.run.data.module->state() : nullptr; },
     .load = [](Restoring& r, const StateTree& value) {
       if (r.run.data.module && !value.is_null()) r.run.data.module->load_state(value);
     },
     .with_weights = true},
    {.key = "loaders_created_at", .phase = P::loaders,
     .save = [](Collecting& c) { return c.run.loaders_created_at; },
     .load = [](Restoring& r, const StateTree& value) { r.run.counters.load_state(value); }},
    {.key = checkpoint_keys::kCallbacks, .phase = P::callbacks, .save = save_callbacks, .load = load_callback_states},
    {.key = "loggers", .phase = P::loggers,
     .save = save_loggers, .load = load_loggers, .late = save_loggers},
    {.key = "lr_factor", .phase = P::optimizers,
     .save = [](Collecting& c) -> StateTree { return c.run.lr_factor; }, .load = load_lr_factor},
    {.key = "optimizers", .phase = P::optimizers, .save = save_optimizers, .load = load_optimizers, .own_file = true},
    {.key = "lr_schedulers", .phase = P::optimizers, .save = save_schedules, .load = load_schedules},
    {.key = "precision", .phase = P::optimizers,
     .save = save_precision,
     .load = [](Restoring& r, const StateTree& value) { r.run.strategy->precision().load_state(value); }},
    {.key = "optimizer_steps", .phase = P::loops, .save = save_optimizer_steps, .load = load_optimizer_steps},
    {.key = checkpoint_keys::kProgress, .phase = P::loops, .save = save_progress,
     .load = [](Restoring& r, const StateTree& value) { r.run.counters.load_state(value); }, .with_weights = true},
    {.key = "logs", .phase = P::loops,
     .save = [](Collecting& c) { return c.services.logs.state(/*late=*/c.run.world_size() == 1); },
     .load = [](Restoring& r, const StateTree& value) { r.services.logs.load_state(value); },
     .late = [](Collecting& c) { return StateTree::map({{"values", c.services.logs.published_state()}}); },
     .per_rank = true, .of_rank = logs_of_rank},
    {.key = "metric_objects", .phase = P::loops,
     .save = [](Collecting& c) { return c.services.metrics.state(); },
     .load = [](Restoring& r, const StateTree& value) { r.services.metrics.load_state(value); },
     .per_rank = true, .of_rank = metrics_of_rank},
    {.key = checkpoint_keys::kNonfinite, .phase = P::loops,
     .save = [](Collecting& c) { return c.services.finite.state(c.run.window.done > 0); },
     .load = [](Restoring& r, const StateTree& value) { r.services.finite.load_state(value, r.run.step.manual); },
     .per_rank = true},
    {.key = "checkpoints", .phase = P::loops, .save = [](Collecting& c) { return c.store; },
     .load = [](Restoring& r, const StateTree& value) {
       r.services.checkpoints.resumed_from(*r.checkpoint, r.content.origin, value);
     },
     .with_weights = true},
    {.key = "loop", .phase = P::loops, .save = save_loop, .load = load_loop, .per_rank = true},
    {.key = checkpoint_keys::kLoaders, .phase = P::loops, .save = save_loaders, .load = load_loaders, .per_rank = true},
    {.key = "gradients", .phase = P::loops, .save = save_gradients, .load = load_gradients, .per_rank = true,
     .of_rank = gradients_of_rank},
    {.key = checkpoint_keys::kRng, .phase = P::random,
     .save = [](Collecting& c) { return rng_state(c.run.strategy->devices()); },
     .load = [](Restoring& r, const StateTree& value) {
       if (!value.is_null()) load_rng_state(r.run.strategy->devices(), value);
     },
     .per_rank = true, .of_rank = rng_of_rank},
    {.key = "strategy", .phase = P::strategy,
     .save = [](Collecting& c) { return c.run.strategy->state(); },
     .load = load_strategy, .per_rank = true, .of_rank = first_of_ranks},
};
// clang-format on

}  // namespace

std::span<const CheckpointEntry> checkpoint_entries() { return kEntries; }

int64_t saved_data_shares(const CheckpointContent& content) {
  // Checkpoints of earlier versions do not have it: each rank had a share.
  if (content.state.contains("loop") && content.state.at("loop").contains("data_shares"))
    return content.state.at("loop").at("data_shares").as_int();
  return content.origin.world_size;
}

std::optional<int64_t> saved_batch_of_all(const CheckpointContent& content) {
  const StateTree::List& loaders = content.state.at(checkpoint_keys::kLoaders).as_list();
  if (loaders.empty() || !loaders.front().contains("batch_size")) return std::nullopt;
  return loaders.front().at("batch_size").as_int() * saved_data_shares(content);
}

void load_entries(LoadPhase phase, Restoring& restoring, const StateTree& state) {
  const bool whole =
      state.contains(checkpoint_keys::kWeightsOnly) && !state.at(checkpoint_keys::kWeightsOnly).as_bool();
  for (const CheckpointEntry& entry : kEntries) {
    if (entry.phase != phase) continue;
    if (entry.own_file)
      entry.load(restoring, restoring.content.optimizers);
    else if (whole || state.contains(entry.key))
      entry.load(restoring, state.at(entry.key));
  }
}

}  // namespace fulgur::detail
