#pragma once

#include <filesystem>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/run_context.h"

namespace fulgur::detail {

class LogStore;
struct ResumedCheckpoint;
struct RunState;
struct Services;

/// The whole state of a run as a checkpoint has it. `state.json` is this tree; what rank 0 does not have alone is under
/// `ranks` (rank_states.h), and CheckpointStore adds `checkpoints`, `checkpoint_requests` and `best_owner`:
///
///     progress           counters of epochs, batches, steps, samples and tokens; the fit's time
///     hparams            YAML text: the model's options
///     config             YAML text: resolved
///     config_written     YAML text: as the user wrote it
///     metrics            the newest value of each logged metric
///     weights_only       true: nothing below is there but `data`
///     optimizer_steps    of each optimizer
///     lr_schedulers      state of each, or null
///     lr_factor          of scale_lr, that the learning rates have in them
///     precision          the loss scale, float32 master weights
///     callbacks          state by state_key()
///     rng                generators of the CPU and of the run's devices
///     loaders            position of each training loader
///     loggers            how much each has written
///     logs               means that are under way
///     nonfinite          what `on_nonfinite` has left out or rolled back
///     loop               the accumulation window, pending validation, a stop that was requested
///     gradients          of parameters inside an accumulation window
///     last_batch         its number of samples
///     strategy           of the strategy
///     data               of the data module
///
/// Parameters, buffers and optimizers are tensors in files of their own (`CheckpointContent`). All ranks must call it.
CheckpointContent collect_checkpoint(RunState& run, Services& services, bool weights_only);

/// The module's weights from `content`, of the file `checkpoint`, converted to the run's precision. Throws a
/// CheckpointError if they do not fit and `load.strict` is on.
void load_weights(RunState& run, const CheckpointContent& content, const std::filesystem::path& checkpoint);

/// States of callbacks. Throws a CheckpointError in `fit` if one does not fit; elsewhere it is ignored with a warning.
void load_callbacks(RunState& run, RunContext& context, const CheckpointContent& content,
                    const std::filesystem::path& checkpoint);

/// All else that a fit resumes with, as far as `load` wants it: optimizers, loops, generators, the strategy. Reports
/// what differs from when the checkpoint was made. Throws a CheckpointError if the checkpoint has weights only.
void restore_run(RunState& run, Services& services, const CheckpointContent& content,
                 const ResumedCheckpoint& checkpoint);

/// The origin recorded in a checkpoint of this run, but for the number of its saves.
CheckpointOrigin origin_of(const RunState& run);

/// The `metrics` of a checkpoint.
StateTree published_metrics(const LogStore& logs);

/// The `loggers` of a checkpoint: what they had written before what a resume repeats, such as a validation under way.
StateTree logger_states(const RunState& run);

}  // namespace fulgur::detail
