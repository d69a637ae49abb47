#include "checkpointing/run_checkpoint.h"

#include <algorithm>

#include "checkpointing/rank_states.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/checkpoint_keys.h"

namespace fulgur::detail {
namespace fs = std::filesystem;

namespace {

CheckpointOrigin origin_of(const RunState& run) {
  CheckpointOrigin origin;
  origin.config_hash = run.description.config_hash;
  origin.world_size = run.world_size();
  origin.device = run.description.devices;
  origin.threads = run.description.threads;
  origin.deterministic = run.options.deterministic.enabled;
  return origin;
}

// Weights of a loop of the user have no config that could be used again.
LoadReport load_or_advise(LightningModule& module, const CheckpointContent& content, const fs::path& checkpoint,
                          const LoadOptions& options) {
  try {
    return load_module_state(module, content.module, options);
  } catch (const CheckpointError& error) {
    const std::string text = error.what();
    if (!content.state.contains(checkpoint_keys::kFabric)) throw CheckpointError(cat(checkpoint, ": ", text));
    throw CheckpointError(cat(
        text.substr(0, text.rfind('\n')),
        "\nFabric wrote the checkpoint, from a loop of the user, and it names no model: its weights are those of that "
        "loop's network. Use a model with the same layers. If only names differ, give their prefixes with "
        "--load.key_prefixes '{OLD: NEW}'; --load.strict false loads what fits."));
  }
}

}  // namespace

CheckpointContent collect_checkpoint(Collecting collecting) {
  RunState& run = collecting.run;
  CheckpointContent content;
  content.module = module_state(*run.model);
  if (run.strategy->saves_parts())
    content.module = in_parts(*run.strategy, std::move(content.module), collecting.parts);
  content.aliases = parameter_aliases(*run.model);
  content.optimizers = nullptr;
  content.origin = origin_of(run);
  collecting.services.seen.settle();
  for (const CheckpointEntry& entry : checkpoint_entries()) {
    if (!entry.save || (collecting.weights_only && !entry.with_weights)) continue;
    (entry.own_file ? content.optimizers : content.state[entry.key]) = entry.save(collecting);
  }
  content.parts = std::move(collecting.parts);
  if (!collecting.weights_only) gather_rank_states(run.collectives(), content.state);
  run.each_callback(LogScope::forbidden, "on_save_checkpoint",
                    [&](Callback& c) { c.on_save_checkpoint(collecting.services.context, content.state); });
  run.model->on_save_checkpoint(content.state);
  return content;
}

std::function<void(CheckpointContent&)> late_values(Collecting collecting) {
  std::vector<std::pair<std::string_view, StateTree>> values;
  for (const CheckpointEntry& entry : checkpoint_entries())
    if (entry.late) values.emplace_back(entry.key, entry.late(collecting));
  return [values = std::move(values)](CheckpointContent& content) {
    for (const auto& [key, value] : values) {
      if (!content.state.contains(key)) continue;
      StateTree& saved = content.state[key];
      if (!value.is_map()) {
        saved = value;
        continue;
      }
      for (const auto& [name, item] : value.as_map()) saved[name] = item;
    }
  };
}

namespace {

// A run in half precision with master_weights has saved weights that are rounded, and what they are rounded from.
int64_t take_float32_copies(const LightningModule& module, CheckpointContent& content) {
  const StateTree* const precision = content.state.contains("precision") ? &content.state.at("precision") : nullptr;
  if (!precision || !precision->is_map() || !precision->contains("master_weights")) return 0;
  const StateTree& copies = precision->at("master_weights");
  int64_t taken = 0;
  for (const NamedParameter& parameter : unique_parameters(module)) {
    if (parameter.value.scalar_type() != at::kFloat || !copies.is_map() || !copies.contains(parameter.name)) continue;
    for (auto& [name, saved] : content.module) {
      if (name != parameter.name || !at::isReducedFloatingType(saved.scalar_type())) continue;
      const Tensor& copy = copies.at(name).tensor();
      if (copy.sizes() != saved.sizes()) continue;
      saved = copy;
      ++taken;
    }
  }
  return taken;
}

}  // namespace

void load_weights(RunState& run, const CheckpointContent& content, const fs::path& checkpoint) {
  const CheckpointLoading& load = run.load;
  // A checkpoint of a run in another precision has the dtypes of that precision.
  const auto of_other_dtype = [&](const NamedParameter& parameter) {
    return std::ranges::any_of(content.module, [&](const auto& saved) {
      return saved.first == parameter.name && saved.second.scalar_type() != parameter.value.scalar_type();
    });
  };
  const auto parameters = unique_parameters(*run.model);
  if (std::ranges::any_of(parameters, of_other_dtype)) run.strategy->precision().convert_module(*run.model);
  CheckpointContent exact = content;
  if (const int64_t copies = take_float32_copies(*run.model, exact); copies > 0)
    run.print(
        cat("weights: ", copies, " are the float32 copies of the checkpoint, since this run has float32 weights"));
  const LoadReport report =
      load_or_advise(*run.model, exact, checkpoint,
                     {.strict = load.strict, .key_prefixes = load.key_prefixes, .convert_formats = true});
  if (!report.converted.empty())
    run.print(cat("weights: ", report.converted.size(), " of another dtype were converted, such as ",
                  report.converted.front()));
  if (!report.differences.empty())
    log::warn("trainer.weights_left_out",
              cat("from ", checkpoint, ", ", report.loaded.size(),
                  " weights were loaded; the rest do not fit: ", join(split_text(report.differences, '\n'), "; ")));
}

namespace {

// Besides the state, a bit-exact resume depends on these facts.
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
    run.print(cat("resume: this has changed since the checkpoint was made: ", join(differences, ", "),
                  ". Results may differ in the last bits"));
}

// If the batch size per rank stays the same, another number of shares gives another global batch.
void warn_other_batch(RunState& run, const CheckpointContent& content) {
  const std::optional<int64_t> before = saved_batch_of_all(content);
  // The epoch that begins may have another size than the one that has ended.
  if (!before || (run.batch_sizes && !run.counters.in_epoch())) return;
  const int64_t own = run.stages[RunningStage::train].loaders.front()->batch_size(), now = own * run.data_shares();
  const int64_t step_before = *before * content.state.at("loop").at("accumulate_grad_batches").as_int();
  // A step may have as many samples in other batches.
  if (step_before == now * run.accumulation || (!run.options.global_batch_size && *before == now)) return;
  std::string advice;
  if (saved_data_shares(content) != run.data_shares() && !run.options.global_batch_size) {
    if (*before % run.data_shares() == 0)
      advice = cat("; a batch_size of ", *before / run.data_shares(),
                   " in the config with --allow-config-change keeps the global batch");
    if (step_before % now == 0) advice += cat("; trainer.global_batch_size: ", step_before, " keeps that of a step");
  }
  run.print(cat("resume: the global batch has ", run.options.global_batch_size.value_or(now), " samples instead of ",
                run.options.global_batch_size ? step_before : *before, ", so the run trains differently than before",
                advice));
}

}  // namespace

void restore_run(Restoring restoring) {
  RunState& run = restoring.run;
  const CheckpointContent& content = restoring.content;
  const CheckpointLoading& load = restoring.load;
  const bool of_a_run = content.state.contains(checkpoint_keys::kRng);
  const StateTree state =
      of_a_run ? state_of_rank(content.state, content.origin.world_size, run.rank(), roles_of_ranks(*run.strategy))
               : content.state;
  if (state.contains(checkpoint_keys::kImported))
    run.print("weights: the checkpoint was imported, so the run begins at its first step");
  const bool wants_more = load.loads_optimizer() || load.loads_loops() || load.loads_rng();
  if (wants_more && state.at(checkpoint_keys::kWeightsOnly).as_bool())
    throw CheckpointError(
        "[trainer.fit] the checkpoint holds weights only (save_weights_only), so the run cannot resume from it. "
        "--load.weights_only true begins a new run with these weights.");
  if (load.loads_optimizer()) load_entries(LoadPhase::optimizers, restoring, state);
  if (load.loads_loops()) load_entries(LoadPhase::loops, restoring, state);
  if (load.loads_rng()) load_entries(LoadPhase::random, restoring, state);
  if (load.loads_optimizer()) load_entries(LoadPhase::strategy, restoring, state);
  if (load.loads_loops()) {
    warn_origin_differs(run, content.origin);
    warn_other_batch(run, content);
  }
}

}  // namespace fulgur::detail
