#include "planning/mesh/mesh_prediction.h"

#include <algorithm>
#include <cmath>

#include "fulgur/core/text/text.h"

namespace fulgur::cli {
namespace {

// What is averaged along `shard` and `data` has the format of what is stepped, which may be float32 copies.
double stepped_ratio(const MeshShape& shape, const ModelSize& model) {
  if (shape.shard == 1) return 1;
  return 1 + static_cast<double>(model.master_bytes) / 2 / std::max(1.0, static_cast<double>(model.gradient_bytes));
}

// The rank of the pipeline that needs the most.
void add_memory(MeshPrediction& out, const ModelSize& model, const PipelinePass& pass, const PlannedRun& run,
                const HardwareProfile& profile) {
  const MeshShape& shape = out.shape;
  const double states_of_byte =
      model.gradient_bytes == 0
          ? 0
          : static_cast<double>(model.state_bytes + model.master_bytes) / static_cast<double>(model.gradient_bytes);
  for (int64_t rank = 0; rank < shape.pipeline; ++rank) {
    const PipelinePass::Rank& of_rank = pass.ranks[static_cast<size_t>(rank)];
    const RankBytes& bytes = of_rank.bytes;
    const auto shards = static_cast<double>(shape.shard);
    PlannedMemory memory;
    memory.parameters = bytes.parameters / shards;
    memory.gradients = bytes.gradients;
    memory.states = bytes.stepped * states_of_byte / shards;
    memory.buffers = static_cast<double>(model.buffer_bytes);
    memory.batch = pass.batch_bytes * static_cast<double>(shape.micro_batches);
    memory.libraries = profile.workspace_mib * 1024 * 1024;
    memory.activations = std::max(0.0, of_rank.peak - bytes.gradients);
    // In the step, gradients of float32 copies replace those in half precision.
    if (model.master_bytes > 0 && shape.shard == 1)
      memory.activations = std::max(memory.activations, bytes.stepped * static_cast<double>(model.master_bytes) /
                                                                static_cast<double>(model.gradient_bytes) -
                                                            bytes.gradients);
    if (shape.steps_in_units()) {
      // Parts of gradients are made while activations are freed. Those of a window's earlier batches are whole.
      memory.activations = of_rank.activations;
      if (shape.accumulate == 1) {
        memory.gradients = bytes.stepped * stepped_ratio(shape, model) / shards;
        memory.activations = std::max(0.0, memory.activations - memory.gradients);
      }
      memory.exchange = bytes.two_units + bytes.largest_stepped_unit;
    } else if (shape.shard > 1) {
      // All units are gathered, beside this rank's parts, until the last backward; what averages need then is less.
      memory.exchange = bytes.parameters;
    } else if (shape.data > 1) {
      // A bucket of gradients is averaged when no activations are left.
      memory.exchange = std::max(0.0, std::min(run.bucket_bytes, bytes.stepped) - memory.activations);
    }
    if (rank > 0 && memory.total() <= out.memory.total()) continue;
    out.memory = memory;
    out.fullest = rank;
  }
}

// What ranks with the same stage exchange of its parameters and gradients, and stages of those that several of them
// read.
void add_exchanges(MeshPrediction& out, const ModelSize& model, const PipelinePass& pass, const PlannedRun& run,
                   const HardwareProfile& profile) {
  const MeshShape& shape = out.shape;
  const auto shards = static_cast<double>(shape.shard), batches = static_cast<double>(shape.accumulate);
  const Mesh shard = machines_of(shape.shard, shape.tensor, out.machines),
             data = machines_of(shape.data, shape.tensor * shape.shard, out.machines);
  // Parameters of several stages are those of the first and of the last one, as a rule.
  const bool between_nodes = are_apart(0, shape.pipeline - 1, shape, out.machines);
  const auto of_unit = [&](double bytes, int64_t units) {
    return units == 0 ? 0 : all_gather_s(bytes / static_cast<double>(units), shard, profile);
  };
  for (const PipelinePass::Rank& of_rank : pass.ranks) {
    const RankBytes& bytes = of_rank.bytes;
    const UnitExchange unit{.gather = of_unit(bytes.parameters, bytes.units),
                            .scatter = of_unit(bytes.stepped, bytes.stepped_units),
                            .units = bytes.units};
    // Each batch of a window gathers all units, in units again in its backward, and the last one divides the gradients.
    const double exposed = shape.steps_in_units() ? exposed_of_units_s(unit, of_rank.compute_s - of_rank.backward_s,
                                                                       of_rank.backward_s, batches)
                                                  : unit.gather * static_cast<double>(bytes.units) * batches +
                                                        unit.scatter * static_cast<double>(bytes.stepped_units),
                 gathers = shape.steps_in_units() ? 2 * batches : batches;
    out.shard_s = std::max(out.shard_s, exposed);
    out.shard_sent =
        std::max(out.shard_sent, part_of_others(shape.shard) * (bytes.parameters * gathers + bytes.stepped));
    const double averaged = bytes.stepped * stepped_ratio(shape, model) / shards;
    const int64_t buckets = shape.shard > 1 ? std::max<int64_t>(1, bytes.stepped_units)
                                            : static_cast<int64_t>(bytes.stepped / run.bucket_bytes) + 1;
    const double each = all_reduce_s(averaged / static_cast<double>(buckets), data, profile);
    // The last backward hides it, except with all shards of a stage.
    const double average = shape.shard > 1 && !shape.steps_in_units() ? each * static_cast<double>(buckets)
                                                                      : exposed_s(of_rank.backward_s, each, buckets);
    // Gradients are added, and new values of what is kept sent.
    const double shared = bytes.shared > 0 ? 2 * message_s(bytes.shared, between_nodes, profile) +
                                                 message_s(bytes.shared / shards, between_nodes, profile)
                                           : 0;
    out.data_s = std::max(out.data_s, average + shared);
    out.data_sent = std::max(out.data_sent, 2 * part_of_others(shape.data) * averaged);
  }
}

void add_times(MeshPrediction& out, const ModelSize& model, const PipelinePass& pass, double alone_s,
               const PlannedRun& run, const HardwareProfile& profile) {
  const MeshShape& shape = out.shape;
  const auto micro_batches = static_cast<double>(shape.micro_batches * shape.accumulate);
  const double state_ratio =
      static_cast<double>(model.state_bytes) / std::max(1.0, static_cast<double>(model.gradient_bytes));
  double busiest = -1, owned = 0;
  for (const PipelinePass::Rank& rank : pass.ranks) {
    if (const double busy = rank.compute_s + rank.exchange_s; busy > busiest) {
      busiest = busy;
      out.compute_s = rank.compute_s * micro_batches;
      out.tensor_s = rank.exchange_s * micro_batches;
    }
    out.tensor_sent = std::max(out.tensor_sent, rank.tensor_sent * micro_batches);
    out.stages_sent = std::max(out.stages_sent, rank.stage_sent * micro_batches);
    owned = std::max(owned, rank.bytes.stepped / static_cast<double>(shape.shard));
  }
  add_exchanges(out, model, pass, run, profile);
  if (shape.pipeline > 1)
    out.wait_s = std::max(0.0, pass.batch_s * static_cast<double>(shape.accumulate) - out.compute_s - out.tensor_s);
  out.optimizer_s = optimizer_seconds(owned, owned * state_ratio, profile);
  out.jitter_s = jitter_seconds(out.step_s(), shape.ranks(), profile);
  const double samples = static_cast<double>(out.batch_size * shape.shares() * shape.accumulate);
  const double alone = (alone_s * micro_batches + optimizer_seconds(static_cast<double>(model.gradient_bytes),
                                                                    static_cast<double>(model.state_bytes), profile)) /
                       static_cast<double>(shape.tensor * shape.pipeline);
  out.efficiency = alone / out.step_s();
  out.samples_per_s = samples / out.step_s();
  out.tokens_per_s = out.samples_per_s * static_cast<double>(pass.tokens) / static_cast<double>(pass.samples);
  out.flops_per_s = pass.flops * micro_batches / static_cast<double>(shape.pipeline) / out.step_s();
}

}  // namespace

MeshPrediction predict_mesh(const ModelSize& size, const PipelinePass& pass, double alone_s, const MeshShape& shape,
                            const Mesh& machines, const PlannedRun& run, const HardwareProfile& profile) {
  MeshPrediction out;
  out.shape = shape;
  out.machines = machines;
  out.micro_batch = pass.samples;
  out.batch_size = pass.samples * shape.micro_batches;
  out.limit = (profile.memory_gib - profile.reserved_gib) * kGiB;
  add_memory(out, size, pass, run, profile);
  out.lacks_memory = out.memory.total() > out.limit;
  if (!size.is_elementwise)
    out.obstacle = cat(size.optimizer, " needs whole parameters");
  else if (out.lacks_memory)
    out.obstacle = cat(format_fixed(out.memory.total() / kGiB, 1), " GiB of ", format_fixed(out.limit / kGiB, 1),
                       ", most for ", out.memory.largest().first);
  // What a rank along `shard` keeps is there beside the whole module.
  out.holds_whole = static_cast<double>(size.parameter_bytes + size.master_bytes) +
                        (shape.shard > 1 ? out.memory.parameters : 0) + out.memory.states + out.memory.buffers +
                        out.memory.batch + out.memory.libraries <=
                    out.limit;
  out.stays_divided = run.divided_mesh;
  add_times(out, size, pass, alone_s, run, profile);
  out.saves = saves_of(size, shape.ranks(), profile);
  return out;
}

MeshPrediction as_mesh(const Prediction& step, const MeshShape& shape) {
  MeshPrediction out;
  out.shape = shape;
  out.machines = step.mesh;
  out.micro_batch = out.batch_size = step.batch_size;
  out.memory = step.memory;
  out.limit = step.limit;
  out.obstacle = step.obstacle;
  out.lacks_memory = step.memory.total() > step.limit;
  out.holds_whole = step.holds_whole;
  out.stays_divided = step.stays_divided;
  out.compute_s = step.compute_s;
  out.shard_s = step.exposed_s;
  out.shard_sent = step.sent_bytes;
  out.optimizer_s = step.optimizer_s;
  out.jitter_s = step.jitter_s;
  out.efficiency = step.efficiency;
  out.samples_per_s = step.samples_per_s;
  out.tokens_per_s = step.tokens_per_s;
  out.flops_per_s = step.flops_per_s;
  out.saves = {.stall_s = step.save_stall_s, .every_s = step.save_every_s, .waste = step.waste};
  return out;
}

MeshPrediction between(const MeshPrediction& smaller, MeshPrediction larger, double share) {
  const auto mix = [&](double MeshPrediction::*value) { return smaller.*value * (1 - share) + larger.*value * share; };
  const double alone =
                   smaller.efficiency * smaller.step_s() * (1 - share) + larger.efficiency * larger.step_s() * share,
               tokens = larger.samples_per_s > 0 ? larger.tokens_per_s / larger.samples_per_s : 0,
               flops =
                   smaller.flops_per_s * smaller.step_s() * (1 - share) + larger.flops_per_s * larger.step_s() * share;
  for (double MeshPrediction::*value :
       {&MeshPrediction::stages_sent, &MeshPrediction::tensor_sent, &MeshPrediction::compute_s,
        &MeshPrediction::tensor_s, &MeshPrediction::wait_s, &MeshPrediction::shard_s, &MeshPrediction::data_s,
        &MeshPrediction::optimizer_s, &MeshPrediction::jitter_s})
    larger.*value = mix(value);
  larger.batch_size = std::llround(static_cast<double>(smaller.batch_size) * (1 - share) +
                                   static_cast<double>(larger.batch_size) * share);
  const double samples = static_cast<double>(larger.batch_size * larger.shape.shares() * larger.shape.accumulate);
  larger.efficiency = alone / larger.step_s();
  larger.samples_per_s = samples / larger.step_s();
  larger.tokens_per_s = larger.samples_per_s * tokens;
  larger.flops_per_s = flops / larger.step_s();
  return larger;
}

}  // namespace fulgur::cli
