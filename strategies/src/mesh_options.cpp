#include "mesh_options.h"

#include <string>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/cluster_environment.h"
#include "fulgur/strategies/process_group.h"
#include "trainer_keys.h"

namespace fulgur {

namespace detail {

FSDPStrategy::Options fsdp_options(const MeshStrategy::Options& options) {
  FSDPStrategy::Options of_fsdp;
  of_fsdp.sharding = options.mesh.shard > 1 ? FSDPStrategy::Sharding::hybrid : FSDPStrategy::Sharding::optimizer;
  if (options.mesh.shard > 1) {
    of_fsdp.shard_size.value = options.mesh.shard;
    of_fsdp.units = options.units;
    of_fsdp.deferred_init = options.deferred_init;
  }
  of_fsdp.state_dict_type = options.state_dict_type;
  of_fsdp.process_group_backend = options.process_group_backend;
  of_fsdp.cluster_environment = options.cluster_environment;
  of_fsdp.start_timeout_s = options.start_timeout_s;
  of_fsdp.timeout_s = options.timeout_s;
  of_fsdp.check_replicas_every = options.check_replicas_every;
  of_fsdp.max_restarts = options.max_restarts;
  return of_fsdp;
}

void check_mesh_options(const MeshStrategy::Options& options) {
  const bool evaluates_units = options.evaluation == MeshStrategy::Evaluation::units;
  if (options.mesh.shard == 1 && !evaluates_units && options.units.value)
    throw ConfigError(
        "[strategies.mesh] units has no effect with mesh.shard: 1 and evaluation: whole. Remove it, or set "
        "evaluation: units.");
  if (options.mesh.tensor == 1 && options.mesh.pipeline == 1 && evaluates_units)
    throw ConfigError(cat("[strategies.mesh] evaluation: units has no effect without an axis tensor or pipeline: ",
                          options.mesh.shard > 1 ? "with shard, units are always gathered as they are read"
                                                 : "each rank has all parameters",
                          ". Remove it, or set it to whole."));
  const bool divides = options.mesh.shard > 1 || options.mesh.tensor > 1 || options.mesh.pipeline > 1;
  if (!divides && !options.deferred_init)
    throw ConfigError(
        "[strategies.mesh] deferred_init: false has no effect with an axis data alone: each process creates the whole "
        "model anyway. Remove it.");
  if (!divides && options.state_dict_type == FSDPStrategy::StateDictType::sharded)
    throw ConfigError(
        "[strategies.mesh] state_dict_type: sharded has no effect with an axis data alone: ranks divide nothing that "
        "they could write parts of. Remove it, set it to full, or set mesh.shard, mesh.tensor or mesh.pipeline.");
  if (options.mesh.tensor == 1 && !options.tensor_plan.empty())
    throw ConfigError("[strategies.mesh] tensor_plan has no effect with mesh.tensor: 1. Remove it.");
  const bool takes_turns = options.schedule == PipelineSchedule::interleaved;
  if (options.mesh.pipeline == 1) {
    const MeshStrategy::Options defaults;
    const char* const unused = options.schedule != defaults.schedule ? "schedule"
                               : options.micro_batches.value         ? "micro_batches"
                               : options.stages_per_rank.value       ? "stages_per_rank"
                               : options.cuts.value                  ? "cuts"
                                                                     : nullptr;
    // An option cannot remove what a file has.
    if (unused)
      throw ConfigError(cat("[strategies.mesh] ", unused, " has no effect with mesh.pipeline: 1. Remove it, or set it ",
                            "to ", options.schedule != defaults.schedule ? enum_text(defaults.schedule) : "auto", "."));
    return;
  }
  if (const int64_t turns = options.stages_per_rank.value.value_or(takes_turns ? 2 : 1); (turns > 1) != takes_turns)
    throw ConfigError(cat("[strategies.mesh] schedule: ", enum_text(options.schedule), " has ",
                          takes_turns ? "at least two stages" : "one stage", " per rank; stages_per_rank is ", turns,
                          takes_turns ? ". Raise it, or use schedule: 1f1b." : ". Use schedule: interleaved_1f1b."));
}

int64_t data_size(const MeshAxes& axes, int64_t ranks) {
  int64_t inner = 1;
  std::string product;
  for (const auto& [axis, size] :
       {std::pair{"tensor", axes.tensor}, {"shard", axes.shard}, {"pipeline", axes.pipeline}}) {
    inner *= size;
    if (size > 1) product += cat(product.empty() ? "mesh." : " × mesh.", axis, ": ", size);
    if (ranks % inner != 0)
      throw ConfigError(cat("[strategies.mesh] mesh.", axis, ": ", size, " does not fit the ", ranks,
                            " ranks of the run (devices × num_nodes), which must be a multiple of ", product,
                            product.find(" × ") == std::string::npos ? "" : cat(" = ", inner),
                            ". Set trainer.devices to ", "a multiple of ", inner, " for one node, or lower mesh.", axis,
                            "."));
  }
  const int64_t rest = ranks / inner;
  const int64_t data = axes.data.value.value_or(rest);
  if (data != rest)
    throw ConfigError(cat(
        "[strategies.mesh] the axes of the mesh have ", data, " (data) × ",
        axes.shard > 1 ? cat(axes.shard, " (shard) × ") : "", axes.tensor > 1 ? cat(axes.tensor, " (tensor) × ") : "",
        axes.pipeline, " (pipeline) = ", data * axes.shard * axes.tensor * axes.pipeline, " ranks, and the run has ",
        ranks, " (devices × num_nodes). Set mesh.data to ", rest, " or auto, or change the number of ranks."));
  return data;
}

}  // namespace detail

void MeshStrategy::check_trainer(const Options& options, bool auto_micro_batch, bool sync_batchnorm) {
  const bool divides = options.mesh.pipeline > 1 || options.mesh.tensor > 1;
  if ((divides || options.mesh.shard > 1) && auto_micro_batch)
    throw ConfigError(
        "[strategies.mesh] auto_micro_batch repeats parts of a batch on one rank alone, and the ranks of a pipeline, "
        "or of the axes tensor and shard, compute each part together. Set trainer.auto_micro_batch to false.");
  if (divides && sync_batchnorm)
    throw ConfigError(
        "[strategies.mesh] sync_batchnorm exchanges statistics between all ranks, and those of a pipeline have "
        "different layers, those of the axis tensor the same batches. Set trainer.sync_batchnorm to false.");
}

void MeshAxes::fields(Fields& f) {
  f(data, "data", "Ranks that train on shares of the data and average gradients. auto: what the other axes leave.")
      .at_least(1);
  f(shard, "shard",
    "Ranks that divide parameters, gradients and states of optimizers, as those of fsdp do, and train on shares of the "
    "data.")
      .at_least(1);
  f(tensor, "tensor", "Ranks that divide the computation of each layer that a plan names.").at_least(1);
  f(pipeline, "pipeline", "Ranks that divide the layers of the module into stages.").at_least(1);
}

void MeshStrategy::Options::fields(Fields& f) {
  f.hint_for_unknown = [](std::string_view key) -> std::optional<std::string> {
    for (const std::string_view axis : {"data", "shard", "tensor", "pipeline"})
      if (key == axis) return cat("write `mesh: {", axis, ": N}`");
    return detail::hint_for_trainer_key(key);
  };
  f(mesh, "mesh",
    "Sizes of the axes; their product is the number of ranks. Ranks of tensor are next to each other, then those of "
    "shard, then those of data.");
  f(schedule, "schedule",
    "The order in which the ranks of a pipeline compute micro-batches: gpipe, 1f1b, interleaved_1f1b (several stages "
    "per rank) or zero_bubble (gradients of weights fill the waits).");
  f(micro_batches, "micro_batches",
    "Number of micro-batches of a batch of a pipeline, or its samples if they are fewer. auto: four per rank of the "
    "pipeline.")
      .at_least(1);
  f(stages_per_rank, "stages_per_rank", "Number of stages of each rank. auto: 2 with interleaved_1f1b, else 1.")
      .at_least(1);
  f(cuts, "cuts",
    "Names of the layers with which the stages after the first begin. auto: stages of as equal numbers of parameters "
    "as "
    "possible.");
  f(tensor_plan, "tensor_plan",
    "How ranks of the axis tensor divide layers, by patterns of their names: column, gathered_column, row, vocabulary, "
    "sequence (norms) or whole. Comes before the plan of the module.");
  f(units, "units",
    "With mesh.shard or evaluation: units, patterns of the names of modules whose parameters are exchanged together. "
    "auto: the elements of "
    "each ModuleList; the remaining parameters are one unit; []: all are one.");
  f(evaluation, "evaluation",
    "What evaluations gather, whose steps read the whole module on each rank: all parameters (whole), or units, as "
    "operations read them, in each batch, if a device cannot hold all parameters.");
  f(deferred_init, "deferred_init",
    "If parameters are divided, the model of a config is created without memory for its large parameters, whose values "
    "are computed when they are divided. false: each process creates the whole model.");
  f(state_dict_type, "state_dict_type",
    "Checkpoints have whole tensors, which rank 0 writes (full), or parts of tensors, which all ranks write at the "
    "same time (sharded). Any mesh, any number of ranks and any strategy can load either.");
  f(process_group_backend, "process_group_backend",
    "Backend for values and gradients. auto: nccl for GPUs, gloo for the CPU.")
      .one_of({"auto", "gloo", "nccl", "mpi"});
  f(cluster_environment, "cluster_environment", "Where the rank of this process comes from, as with ddp.")
      .one_of(cluster_environment_names());
  f(start_timeout_s, "start_timeout_s",
    "Seconds for all ranks to connect, and for each exchange until the end of the first step.")
      .range(0.001, kLongestTimeout);
  f(timeout_s, "timeout_s",
    "Seconds for each exchange from then on. Must exceed the longest pause of one rank (a slow batch, a save).")
      .range(0.001, kLongestTimeout);
  f(check_replicas_every, "check_replicas_every",
    "Steps after which ranks with the same stages compare weights, bit by bit; 0: only at the end of epochs and in "
    "saves; -1: never.")
      .at_least(-1);
  f(max_restarts, "max_restarts",
    "Number of times the group of processes is restarted after a failure, from the newest checkpoint.")
      .at_least(0);
}

}  // namespace fulgur
