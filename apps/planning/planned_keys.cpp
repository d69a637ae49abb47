#include "planning/planned_keys.h"

#include "fulgur/core/text/text.h"

namespace fulgur::cli {
namespace {

std::string keys_of_ranks(const Mesh& machines) {
  return cat("  for a config:\n    trainer:\n      num_nodes: ", machines.nodes, "\n      devices: ", machines.devices,
             "\n");
}

std::string keys_of_batch(int64_t size) { return cat("    data:\n      init_args:\n        batch_size: ", size, "\n"); }

}  // namespace

std::string planned_keys(const Prediction& one, const PlannedRun& run) {
  std::string text = keys_of_ranks(one.mesh);
  if (one.mesh.ranks() == 1) return text + keys_of_batch(one.batch_size);
  if (one.sharding == PlannedSharding::ddp) return text + "      strategy: ddp\n" + keys_of_batch(one.batch_size);
  text += cat("      strategy:\n        class_path: fsdp\n        init_args:\n          sharding: ",
              enum_text(one.sharding), "\n");
  if (one.sharding == PlannedSharding::hybrid)
    text += cat("          shard_size: ", ranks_of_copy(one.sharding, one.mesh, run), "\n");
  if (!one.holds_whole) text += "          state_dict_type: sharded\n";
  return text + keys_of_batch(one.batch_size);
}

std::string planned_keys(const MeshPrediction& one, const PlannedRun& run) {
  const MeshShape& shape = one.shape;
  std::string text = keys_of_ranks(one.machines);
  if (shape.accumulate > 1 && run.global_batch == 0)
    text += cat("      accumulate_grad_batches: ", shape.accumulate, "\n");
  text += cat("      strategy:\n        class_path: mesh\n        init_args:\n          mesh: ", shape.text(), "\n");
  if (shape.pipeline > 1) {
    const MeshShape defaults;
    if (shape.schedule != defaults.schedule) text += cat("          schedule: ", enum_text(shape.schedule), "\n");
    if (shape.stages_per_rank > 1) text += cat("          stages_per_rank: ", shape.stages_per_rank, "\n");
    text += cat("          micro_batches: ", shape.micro_batches, "\n");
  }
  if (!one.holds_whole) text += "          evaluation: units\n          state_dict_type: sharded\n";
  text += keys_of_batch(one.batch_size);
  if (shape.pipeline > 1 && shape.micro_batches > 1)
    text += cat("        # Evaluations have no micro-batches: set eval_batch_size, too, such as to ",
                one.batch_size / shape.micro_batches, ".\n");
  return text;
}

}  // namespace fulgur::cli
