#pragma once

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "run/services.h"

/// Steps of RunSetup, each in the file of its name.
namespace fulgur::detail {

// stage_loaders.cpp

/// Creates the loaders of the run's stages, and sets how to create them again. Throws a ConfigError or a DataError if
/// the data, the limits and the module's steps do not fit together.
void set_up_loaders(RunState& run, bool from_checkpoint);

// plan_optimizers.cpp

/// Creates the run's optimizers, schedules and handles: from the module's plan, or the config; applies `scale_lr` to
/// all learning rates.
void plan_optimizers(RunState& run, Services& services);

/// Writes the decisions into a config so that it reproduces the run: the rates times `factor`, without `scale_lr`. Each
/// schedule length that is `auto` gets a comment with its number of steps.
void resolve_rates(ConfigNode& config, const OptimizerPlan& plan, double factor);

// recurrent_dropout.cpp

/// Warns of layers whose dropout on CUDA is drawn by cuDNN: LibTorch keeps its state outside of the generators, so that
/// no checkpoint can hold it.
void warn_of_recurrent_dropout(const RunState& run);

// data_options.cpp

/// Warns of options of the config's model that have another value than the data module exports under their name, of
/// those names for which that is a mistake that trains silently.
void warn_of_unlinked_options(const RunState& run);
/// Warns if an evaluation has samples of another length than the run that saved `state`, and if a test or validation
/// divides the training data otherwise: then it has samples that the model was trained on.
void warn_of_other_data(const RunState& run, const StateTree& state);

/// What to do if the data module has no data for a stage: the options of the config that give it such data.
std::string advice_for_missing_data(const RunState& run, RunningStage stage, bool trained);

// load_pretrained.cpp

/// Loads the weights that the components name into the module, if they name a file. Throws a CheckpointError, which
/// lists all differences, if they do not fit.
void load_pretrained(RunState& run);

// adapters_of_run.cpp

/// Call before the weights of `content` are loaded: if it has adapters, the module gets those of the options first, or
/// if these have none, the adapters of `content` are merged into its weights. Throws a CheckpointError if they do not
/// fit the options, and if a fit would resume with other parameters to train.
void adapt_checkpoint(RunState& run, CheckpointContent& content);

/// Adds the adapters of the options to the module, if it does not have them yet, reads their values if a file is named,
/// and freezes what is not trained. Call before the strategy gets the module. Throws a ConfigError for patterns that
/// match nothing, and for layers that cannot have an adapter in this run.
void add_adapters(RunState& run);

/// Adds the same to a copy of the module, whose values the strategy sets.
void add_adapters_to_copy(const RunState& run, LightningModule& copy);

// make_callbacks.cpp

/// The callbacks of the options, the program and the module, and the default ones; registers the metrics that they
/// monitor with `logs`.
void make_callbacks(RunState& run, LogStore& logs);

/// The loggers of the options and the program, or the default ones. None in trial runs.
void make_loggers(RunState& run);

/// Throws a ConfigError if two callbacks keep state under one key. Called after their setup: a state may need it.
void check_state_keys(RunState& run);

}  // namespace fulgur::detail
