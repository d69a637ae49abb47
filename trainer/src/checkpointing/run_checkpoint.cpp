#include "checkpointing/run_checkpoint.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <set>

#include "checkpointing/checkpoint_store.h"
#include "checkpointing/rank_states.h"
#include "checkpointing/restore_optimizers.h"
#include "checkpointing/resume.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/log.h"
#include "fulgur/core/rng.h"
#include "fulgur/core/text.h"
#include "run/services.h"

namespace fulgur::detail {
namespace fs = std::filesystem;

CheckpointOrigin origin_of(const RunState& run) {
  CheckpointOrigin origin;
  origin.config_hash = run.description.config_hash;
  origin.world_size = run.world_size();
  origin.device = run.description.devices;
  origin.threads = run.description.threads;
  origin.deterministic = run.options.deterministic.enabled;
  return origin;
}

StateTree published_metrics(const LogStore& logs) {
  StateTree metrics;
  for (const auto& [name, value] : logs.published()) metrics[name] = value;
  return metrics;
}

StateTree logger_states(const RunState& run) {
  if (run.loggers_before) return *run.loggers_before;
  StateTree::List states;
  for (const auto& logger : run.active_loggers) {
    StateTree state = nullptr;
    // A checkpoint is complete without logger state; a resume then truncates the logger's files by step.
    try {
      state = logger->state();
    } catch (const std::exception& error) {
      log::error(cat("the state of ", logger->state_key(), " is not in the checkpoint: ", error.what()));
    }
    states.push_back(StateTree::map({{"key", logger->state_key()}, {"state", std::move(state)}}));
  }
  return states;
}

CheckpointContent collect_checkpoint(RunState& run, Services& services, bool weights_only) {
  CheckpointContent content;
  content.module = module_state(*run.model);
  content.aliases = parameter_aliases(*run.model);
  content.optimizers = nullptr;
  content.origin = origin_of(run);
  StateTree& state = content.state;
  services.seen.settle();
  Progress now = run.counters;
  now.fit_time_s = services.context.fit_time_s();
  state["progress"] = now.state();
  state["hparams"] = run.model->hparams().is_null() ? "{}\n" : to_yaml(run.model->hparams());
  state["config"] = to_yaml(run.description.config);
  state["config_written"] = run.components.config ? to_yaml(*run.components.config) : std::string("{}\n");
  state["metrics"] = published_metrics(services.logs);
  state["weights_only"] = weights_only;
  if (!weights_only) {
    StateTree::List optimizers, schedulers;
    for (const auto& planned : run.plan.optimizers) {
      optimizers.push_back(planned.optimizer->state());
      schedulers.push_back(planned.scheduler ? planned.scheduler->scheduler->state() : StateTree(nullptr));
    }
    content.optimizers = std::move(optimizers);
    StateTree::List optimizer_steps;
    for (const auto& handle : run.handles) optimizer_steps.emplace_back(handle->steps());
    state["optimizer_steps"] = std::move(optimizer_steps);
    state["lr_schedulers"] = std::move(schedulers);
    state["lr_factor"] = run.lr_factor;
    state["precision"] = run.strategy->precision().state();
    StateTree callback_states;
    run.each_callback(LogScope::forbidden, [&](Callback& callback) {
      if (StateTree own = callback.state(); !own.as_map().empty())
        callback_states[callback.state_key()] = std::move(own);
    });
    state["callbacks"] = std::move(callback_states);
    state["rng"] = rng_state(run.strategy->devices());
    StateTree::List loaders;
    if (run.rewound)
      loaders = run.rewind_point.loaders();
    else
      for (const auto& loader : run.stages[RunningStage::train].loaders) loaders.push_back(loader->state());
    state["loaders"] = std::move(loaders);
    state["loggers"] = logger_states(run);
    state["logs"] = services.logs.state(/*late=*/run.world_size() == 1);
    state["nonfinite"] = services.finite.state(run.window.done > 0);
    state["loop"] =
        StateTree::map({{"accumulation", run.window.target},
                        {"accumulate_grad_batches", run.options.accumulate_grad_batches},
                        {"window_length", run.window.length},
                        {"window_done", run.window.done},
                        {"window_losses", run.window.losses},
                        {"validation_pending", run.validation.pending},
                        {"validated_at", run.validation.ended_at},
                        {"stop", run.stop_reason && !is_of_limit(*run.stop_reason) ? *run.stop_reason : ""},
                        {"stop_held_up", !run.may_stop()},
                        {"logged_step", run.logged_step},
                        {"loaders_created_at", run.loaders_created_at},
                        {"evaluation_batches", run.validation.batches_before.value_or(run.validation.batches)}});
    // Inside an accumulation window the gradients are part of the state.
    StateTree gradients;
    for (const auto& [name, value] : unique_parameters(*run.model))
      if (value.grad().defined()) gradients[name] = value.grad();
    state["gradients"] = std::move(gradients);
    // For what is logged when a window is closed without another batch.
    state["last_batch"] = StateTree::map({{"samples", run.position.batch_samples}});
    state["strategy"] = run.strategy->state();
    gather_rank_states(run.collectives(), state);
  }
  if (run.data.module) state["data"] = run.data.module->state();
  run.each_callback(LogScope::forbidden,
                    [&](Callback& callback) { callback.on_save_checkpoint(services.context, state); });
  run.model->on_save_checkpoint(state);
  return content;
}

void load_weights(RunState& run, const CheckpointContent& content, const fs::path& checkpoint) {
  const CheckpointLoading& load = run.load;
  // A checkpoint of a run in another precision than the module was made in has that precision's dtypes.
  const auto of_other_dtype = [&](const NamedParameter& parameter) {
    return std::any_of(content.module.begin(), content.module.end(), [&](const auto& saved) {
      return saved.first == parameter.name && saved.second.scalar_type() != parameter.value.scalar_type();
    });
  };
  const auto parameters = unique_parameters(*run.model);
  if (std::any_of(parameters.begin(), parameters.end(), of_other_dtype))
    run.strategy->precision().convert_module(*run.model);
  const LoadReport report = load_module_state(
      *run.model, content.module, {.strict = load.strict, .key_prefixes = load.key_prefixes, .convert_formats = true});
  if (!report.converted.empty())
    run.print(cat("weights: ", report.converted.size(), " of another number format were converted, such as ",
                  report.converted.front()));
  if (!report.differences.empty())
    log::warn("trainer.weights_left_out", cat("of ", checkpoint, ", ", report.loaded.size(),
                                              " weights were loaded; the rest does not fit:\n", report.differences));
}

void load_callbacks(RunState& run, RunContext& context, const CheckpointContent& content, const fs::path& checkpoint) {
  run.each_callback(LogScope::forbidden, [&](Callback& c) { c.on_load_checkpoint(context, content.state); });
  if (!content.state.contains("callbacks")) return;  // weights only
  const StateTree& states = content.state.at("callbacks");
  std::set<std::string> left;
  for (const auto& [key, state] : states.as_map()) left.insert(key);
  run.each_callback(LogScope::forbidden, [&](Callback& c) {
    const std::string key = c.state_key();
    if (left.erase(key) == 0) return;
    try {
      c.load_state(states.at(key));
    } catch (const std::exception& error) {
      const std::string text =
          cat("the state of callback ", key, " in ", checkpoint.string(), " does not fit: ", error.what());
      if (run.fn == TrainerFn::fit)
        throw CheckpointError(cat("[trainer.fit] ", text,
                                  "\nResume with the callback as it was when the checkpoint was "
                                  "made, or begin a new run with its weights: --load.weights_only true."));
      log::warn("trainer.callback_state", text + ". It is ignored");
    }
  });
  if (run.fn == TrainerFn::fit && !left.empty())
    log::warn("trainer.callback_state_unused",
              cat(checkpoint.string(), " has the state of callbacks that this run does not have: ",
                  join({left.begin(), left.end()}), ". The checkpoints of this run will not have it"));
}

namespace {

// With other batch sizes or another number of ranks, another batch of the epoch is next: the same samples lie before
// it.
void restore_positions(RunState& run, int64_t saved_world_size, const StateTree::List& states) {
  const auto& loaders = run.stages[RunningStage::train].loaders;
  if (states.size() != loaders.size()) return;
  // With data of their own, ranks share nothing out.
  const bool reshards =
      saved_world_size != run.world_size() && run.options.use_distributed_sampler && run.counters.batches.completed > 0;
  for (size_t i = 0; i < loaders.size(); ++i) {
    loaders[i]->load_state(reshards ? loaders[i]->reshard_state(states[i], saved_world_size) : states[i]);
    const StateTree now = loaders[i]->state();
    if (i > 0 || !now.contains("batches") || !states[i].contains("batches")) continue;
    const int64_t before = states[i].at("batches").as_int(), after = now.at("batches").as_int();
    if (before == after || run.counters.batches.completed != before) continue;
    run.counters.batches = {.ready = after, .started = after, .processed = after, .completed = after};
    log::info(cat("data: the epoch resumes at batch ", after, ": as many samples are done as at batch ", before,
                  " of the checkpoint's ", saved_world_size, saved_world_size == 1 ? " process" : " processes"));
  }
}

void restore_loops(RunState& run, Services& services, const CheckpointContent& content, const StateTree& state,
                   const ResumedCheckpoint& checkpoint) {
  const auto& optimizer_steps = state.at("optimizer_steps").as_list();
  for (size_t i = 0; i < optimizer_steps.size() && i < run.handles.size(); ++i)
    run.handles[i]->set_steps(optimizer_steps[i].as_int());
  run.counters.load_state(state.at("progress"));
  services.logs.load_state(state.at("logs"));
  services.finite.load_state(state.at("nonfinite"), run.step.manual);
  services.checkpoints.resumed_from(checkpoint, content);
  const StateTree& loop = state.at("loop");
  // A callback's change of the option is kept; a change in the config applies from the next window on.
  if (loop.at("accumulate_grad_batches").as_int() == run.options.accumulate_grad_batches)
    run.window.target = loop.at("accumulation").as_int();
  else
    log::info(cat("accumulate_grad_batches: the checkpoint was made with ", loop.at("accumulate_grad_batches").as_int(),
                  ", the run continues with ", run.window.target));
  run.window.length = loop.at("window_length").as_int();
  run.window.done = loop.at("window_done").as_int();
  run.window.losses = loop.at("window_losses").as_int();
  for (const auto& planned : run.plan.optimizers)
    if (run.window.done > 0 && planned.scheduler) planned.scheduler->scheduler->resume_in_window();
  run.validation.pending = loop.at("validation_pending").as_bool();
  if (loop.contains("validated_at")) run.validation.ended_at = loop.at("validated_at").as_int();
  // The process ended before the run stopped. A run that had finished was asked to train on.
  const bool stops = loop.at("stop_held_up").as_bool() || checkpoint.unfinished;
  if (const std::string& reason = loop.at("stop").as_string(); !reason.empty() && stops) run.request_stop(reason);
  run.logged_step = loop.at("logged_step").as_int();
  run.position.batch_idx = std::max<int64_t>(run.counters.batches.completed - 1, 0);
  if (state.contains("last_batch")) run.position.batch_samples = state.at("last_batch").at("samples").as_double();
  if (loop.contains("evaluation_batches")) run.validation.batches = loop.at("evaluation_batches").as_int();
  restore_positions(run, content.origin.world_size, state.at("loaders").as_list());
  for (auto& [name, value] : unique_parameters(*run.model)) {
    if (!state.at("gradients").contains(name)) continue;
    // In the parameter's memory format, as backward makes them: sums over them depend on it to the last bit.
    value.mutable_grad() = at::empty_like(value).copy_(state.at("gradients").at(name).tensor());
  }
}

// What a resume that is exact to the bit depends on, beside the state.
void warn_origin_differs(RunState& run, const CheckpointOrigin& origin) {
  const CheckpointOrigin now = origin_of(run);
  std::vector<std::string> differences;
  const auto compare = [&](const char* what, const auto& then, const auto& here) {
    if (then != here) differences.push_back(cat(what, " ", then, " → ", here));
  };
  compare("Fulgur", origin.fulgur, now.fulgur);
  compare("LibTorch", origin.libtorch, now.libtorch);
  compare("device", origin.device, now.device);
  compare("processes", origin.world_size, now.world_size);
  compare("threads", origin.threads, now.threads);
  compare("deterministic", origin.deterministic ? "true" : "false", now.deterministic ? "true" : "false");
  if (!differences.empty())
    run.print(cat("resume: not the same as when the checkpoint was made: ", join(differences, ", "),
                  ". Results may differ in the last bits"));
}

// With the same batch size of a rank, another number of ranks trains with other batches of all.
void warn_other_batch(RunState& run, const CheckpointOrigin& origin, const StateTree::List& loaders) {
  if (loaders.empty() || !loaders.front().contains("batch_size")) return;
  const int64_t before = loaders.front().at("batch_size").as_int() * origin.world_size;
  const int64_t own = run.stages[RunningStage::train].loaders.front()->batch_size(), now = own * run.world_size();
  if (before == now) return;
  const bool divides = origin.world_size != run.world_size() && before % run.world_size() == 0;
  run.print(cat("resume: a batch of all processes has ", now, " samples, where it had ", before,
                ", so that the run trains otherwise than before",
                divides ? cat("; a batch_size of ", before / run.world_size(),
                              " in the config with --allow-config-change keeps it")
                        : ""));
}

}  // namespace

void restore_run(RunState& run, Services& services, const CheckpointContent& content,
                 const ResumedCheckpoint& checkpoint) {
  const CheckpointLoading& load = run.load;
  const bool of_a_run = content.state.contains("rng");
  const StateTree state =
      of_a_run ? state_of_rank(content.state, content.origin.world_size, run.rank(), run.world_size()) : content.state;
  if (state.contains("imported")) run.print("weights: imported; the run begins at its first step");
  const bool wants_more = load.loads_optimizer() || load.loads_loops() || load.loads_rng();
  if (wants_more && state.at("weights_only").as_bool())
    throw CheckpointError(
        "[trainer.fit] the checkpoint holds weights only (save_weights_only), so the run cannot resume from it. "
        "--load.weights_only true begins a new run with these weights.");
  if (load.loads_optimizer()) restore_optimizers(run, content, load);
  if (load.loads_loops()) restore_loops(run, services, content, state, checkpoint);
  if (load.loads_rng() && state.contains("rng")) load_rng_state(run.strategy->devices(), state.at("rng"));
  if (load.loads_optimizer() && state.contains("strategy")) run.strategy->load_state(state.at("strategy"));
  if (load.loads_loops()) {
    warn_origin_differs(run, content.origin);
    warn_other_batch(run, content.origin, content.state.at("loaders").as_list());
  }
}

}  // namespace fulgur::detail
