#include "run/batch_norm_update.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "fulgur/core/state/let_go.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/cumulative_stats.h"
#include "fulgur/nn/parallel_apply.h"
#include "run/batch_shaping.h"
#include "run/batch_sizes.h"
#include "run/batch_transfer.h"

namespace fulgur::detail {
namespace {

// Copies of the module on other devices are not needed: only the module's statistics are kept. Its device computes the
// parts of all devices, one after the other, so the statistics are of parts as in training, and so is the memory. The
// same is true of the micro-batches of auto_micro_batch.
int64_t number_of_parts(const RunState& run, const Batch& batch) {
  if (!run.replicas.empty()) return static_cast<int64_t>(run.replicas.size()) + 1;
  const int64_t most = run.micro_batch_samples;
  return most > 0 ? std::max<int64_t>((batch.size() + most - 1) / most, 1) : 1;
}

void compute_part_by_part(const Batch& batch, int64_t parts, const std::function<void(const Batch&)>& compute) {
  int64_t begin = 0;
  for (const int64_t samples : nn::even_parts(batch.size(), parts)) {
    compute(batch.narrow(begin, samples));
    begin += samples;
  }
}

void compute_on(RunState& run, const Batch& batch, int64_t index) {
  const auto compute = [&](const Batch& part) {
    const nn::LoraWeights adapted(run.lora_layers);
    const auto guard = run.strategy->precision().forward_guard();
    run.model->training_step(part, index);
  };
  if (const int64_t parts = number_of_parts(run, batch); parts > 1) return compute_part_by_part(batch, parts, compute);
  // Micro-batches through a module on several devices, whose copies of layers get the current weights here.
  const std::vector<MicroBatch> split = run.strategy->split(*run.model, batch, RunningStage::train);
  if (split.empty()) return compute(batch);
  run.strategy->run_parts(split.size(), [&](size_t part) { compute(split[part].batch); });
}

// Where the last training batch was, for filters of callbacks: also in a run that is resumed only for this pass.
// The batches of one epoch, of which a checkpoint must not know: they are not trained. Returns their number; nullopt if
// a signal has ended the pass.
std::optional<int64_t> read_training_data(RunState& run, Services& services) {
  const StageLoaders& train = run.stages[RunningStage::train];
  StateTree::List positions;
  for (const auto& loader : train.loaders) positions.push_back(loader->state());
  run.loaders_at_end = std::move(positions);
  Loader& loader = *train.loaders.front();
  // The same in a run that is resumed only for this pass.
  set_batch_size_of_epoch(run);
  // A stream may never end.
  const int64_t limit = train.batches.front().value_or(std::max<int64_t>(run.counters.batches_total.completed, 1));
  // A resumed checkpoint may have left a position from which nothing was read.
  loader.restart_epoch(run.counters.epoch);
  const BatchShaping shaping(run);
  HeldBatch held;
  Batch& batch = held.get();
  int64_t index = 0;
  services.consensus.change_pace();
  for (; index < limit && loader.next(batch); ++index) {
    const HeldBatch as_loaded(batch);  // a callback may replace the batch
    shaping.shape(run, services.context, batch);
    batch_to_device(run, batch, 0);
    if (run.strategy->gathers_in_evaluations()) run.strategy->begin_evaluation_round(true, /*all_compute=*/true);
    compute_on(run, batch, index);
    if (run.strategy->gathers_in_evaluations()) run.strategy->end_evaluation_round();
    services.consensus.step();
    if (const auto signal = services.consensus.signal()) {
      run.ended_in_train_end = signal;
      return std::nullopt;
    }
  }
  services.consensus.settle();
  batch.clear();
  return index;
}

}  // namespace

std::optional<std::string> cannot_update_batch_norm(const RunState& run) {
  if (!nn::CumulativeStats::has_any(*run.model)) return std::nullopt;  // there is nothing to do
  if (!run.model->automatic_optimization())
    return "the module uses manual optimization, so its training_step would step the optimizers";
  const StageLoaders& train = run.stages.at(RunningStage::train);
  if (run.world_size() > 1 && !train.sized.front())
    return "the training loader has no length, so ranks might read different numbers of batches";
  return std::nullopt;
}

std::vector<std::string> update_batch_norm(RunState& run, Services& services) {
  nn::CumulativeStats stats(*run.model);
  if (stats.names().empty()) return {};
  const RngGuard rng(run.strategy->devices());
  const at::NoGradGuard no_grad;
  std::optional<int64_t> batches;
  {
    const ScopeGuard muted(run, LogScope::muted);
    const CallbackFilter::Position before = std::exchange(run.position.filtered, Callback::last_position(run.counters));
    run.position.during("training_step, for the statistics of batch norms",
                        [&] { batches = read_training_data(run, services); });
    run.position.filtered = before;
  }
  if (batches.value_or(0) == 0) {
    stats.put_back();
    if (batches)
      log::warn("trainer.no_batch_norm_update",
                "the training loader returned no batch, so the statistics of batch norms stay as they were");
    return {};
  }
  for (const Tensor& statistic : stats.statistics())
    statistic.copy_(run.collectives().all_reduce(statistic, ReduceOp::mean));
  return stats.names();
}

}  // namespace fulgur::detail
