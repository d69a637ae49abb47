#include "run/global_batch.h"

#include <algorithm>

#include "fulgur/callbacks/gradient_accumulation_scheduler.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

const Loader& training_loader(const RunState& run) { return *run.stages.at(RunningStage::train).loaders.front(); }

// Samples of one batch of all ranks.
int64_t samples_of_batch(const RunState& run) { return training_loader(run).batch_size() * run.data_shares(); }

std::string shares_text(const RunState& run) {
  return run.data_shares() == run.world_size() ? counted(run.data_shares(), "rank")
                                               : cat(counted(run.data_shares(), "share"), " of the data");
}

// What can be written instead: the nearest multiples, and the largest batch size that divides the samples of a rank.
std::string possible_sizes(const RunState& run, int64_t wanted, int64_t batch) {
  const int64_t below = wanted / batch * batch, shares = run.data_shares();
  std::string text = below > 0 ? cat("Set it to ", below, " or ", below + batch) : cat("Set it to ", batch);
  if (wanted % shares != 0) return cat(text, ", or use a number of ranks that divides it.");
  int64_t size = std::min(training_loader(run).batch_size(), wanted / shares);
  while (wanted / shares % size != 0) --size;
  return cat(text, ", or batch_size to ", size, ".");
}

}  // namespace

void plan_global_batch(RunState& run) {
  if (!run.options.global_batch_size) return;
  const int64_t wanted = *run.options.global_batch_size, batch = samples_of_batch(run);
  constexpr std::string_view kOption = "[trainer.global_batch_size] ";
  if (run.batch_sizes || std::ranges::any_of(run.callbacks, [](const auto& callback) {
        return dynamic_cast<const GradientAccumulationScheduler*>(callback.get()) != nullptr;
      }))
    throw ConfigError(cat(kOption,
                          "it decides how many batches make a step, and so does a callback that changes the "
                          "accumulation or the batch size. Remove one of the two."));
  if (batch <= 0)
    throw ConfigError(cat(kOption,
                          "the training loader does not report its batch size, from which the accumulation "
                          "follows. Set accumulate_grad_batches instead."));
  if (wanted % batch != 0)
    throw ConfigError(cat(kOption, "it must be a multiple of batch_size × ranks, which is ",
                          training_loader(run).batch_size(), " × ", run.data_shares(), " = ", batch, "; got ", wanted,
                          ". ", possible_sizes(run, wanted, batch)));
  run.accumulation = run.window.target = wanted / batch;
  run.print(cat("global batch: ", wanted, " samples, in ", counted(run.accumulation, "batch", "batches"), " of ",
                training_loader(run).batch_size(), " on ", shares_text(run)));
}

SavedWindow converted_window(const RunState& run, const SavedWindow& saved, int64_t saved_batch) {
  const int64_t batch = samples_of_batch(run);
  if (!run.options.global_batch_size || saved.done == 0 || batch == saved_batch) return saved;
  const auto batches = [&](int64_t count) {
    if (count * saved_batch % batch != 0)
      throw CheckpointError(cat("[trainer.resume] the checkpoint was saved inside a step, after ",
                                saved.done * saved_batch, " of ", saved.length * saved_batch,
                                " samples, where batches of ", batch, " samples (", training_loader(run).batch_size(),
                                " on ", shares_text(run),
                                ") cannot continue. Resume with as many ranks as it was saved with, or from another "
                                "checkpoint (ckpt_path)."));
    return count * saved_batch / batch;
  };
  return {.length = batches(saved.length), .done = batches(saved.done), .losses = batches(saved.losses)};
}

}  // namespace fulgur::detail
