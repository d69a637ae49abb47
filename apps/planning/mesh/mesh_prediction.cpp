#include "planning/mesh/mesh_prediction.h"

#include <algorithm>
#include <cmath>

#include "fulgur/core/text/text.h"
#include "fulgur/strategies/simulate_schedule.h"

namespace fulgur::cli {
namespace {

// Whether ranks at two places along `pipeline` are on different nodes, for any share of the data.
bool are_apart(int64_t a, int64_t b, const MeshShape& shape, const Mesh& run) {
  const int64_t stride = shape.tensor * shape.shares();
  for (int64_t i = 0; i < stride; ++i)
    if ((a * stride + i) / run.devices != (b * stride + i) / run.devices) return true;
  return false;
}

double message_s(double bytes, bool between_nodes, const HardwareProfile& profile) {
  const LinkProfile& link = between_nodes ? profile.inter : profile.intra;
  return link.latency_us * 1e-6 + bytes / (link.gb_s * 1e9);
}

struct LayerTimes {
  double forward = 0, backward = 0, forward_exchange = 0, backward_exchange = 0, flops = 0, sent = 0;
};

class MeshTimes {
 public:
  MeshTimes(const MeshModel& model, const MeshShape& shape, const Mesh& machines, const PlannedRun& run,
            const HardwareProfile& profile)
      : model_(model), shape_(shape), run_(run), profile_(profile), tensor_(machines_of(shape.tensor, 1, machines)) {
    for (const LayerTrace& layer : model.traced.layers) layers_.push_back(times_of(layer));
    for (size_t stage = 1; stage < model.plan.stages.size(); ++stage) {
      const auto place = static_cast<int64_t>(stage) % shape.pipeline;
      const bool apart = are_apart((place + shape.pipeline - 1) % shape.pipeline, place, shape, machines);
      messages_.push_back(message_s(input_bytes(model.traced.layers, model.plan.stages[stage].first), apart, profile));
    }
  }

  /// Sums of the layers of a rank's stages.
  LayerTimes of_rank(int64_t rank) const {
    LayerTimes sum;
    for (auto stage = static_cast<size_t>(rank); stage < model_.plan.stages.size();
         stage += static_cast<size_t>(shape_.pipeline)) {
      const LayerTimes of = of_stage(stage);
      const detail::ActionTimes actions = actions_of(stage);
      sum.forward += of.forward;
      sum.backward += actions.backward_input + actions.backward_weights - of.backward_exchange;
      sum.forward_exchange += of.forward_exchange;
      sum.backward_exchange += of.backward_exchange;
      sum.flops += of.flops;
      sum.sent += of.sent;
    }
    return sum;
  }

  /// All micro-batches of a batch. They repeat after a few, so that many are extended from two simulations.
  double batch_s() const {
    const int64_t count = shape_.micro_batches, few = 2 * shape_.pipeline, more = 4 * shape_.pipeline;
    if (shape_.schedule == PipelineSchedule::gpipe || count <= more) return simulated_s(count);
    const double first = simulated_s(few), second = simulated_s(more);
    return second + (second - first) / static_cast<double>(more - few) * static_cast<double>(count - more);
  }

  double flops() const {
    double all = 0;
    for (const LayerTimes& layer : layers_) all += layer.flops;
    return all;
  }

 private:
  LayerTimes times_of(const LayerTrace& layer) const {
    LayerTimes times;
    for (const Operation& operation : layer.operations) {
      (operation.in_backward ? times.backward : times.forward) += seconds_of(operation, run_, profile_);
      times.flops += operation.flops;
    }
    // Gradients of all micro-batches but the first are added.
    const auto batches = static_cast<double>(shape_.micro_batches * shape_.accumulate);
    times.backward +=
        3 * layer.gradient_bytes / (profile_.memory_gb_s * 1e9 * profile_.memory_efficiency) * (batches - 1) / batches;
    for (const auto& exchange : layer.forward_exchanges) add(exchange, times.forward_exchange, times.sent);
    for (const auto& exchange : layer.backward_exchanges) add(exchange, times.backward_exchange, times.sent);
    return times;
  }
  void add(const detail::TracedExchange& exchange, double& seconds, double& sent) const {
    const bool is_sum = exchange.kind == detail::TracedExchange::Kind::all_reduce;
    seconds +=
        is_sum ? all_reduce_s(exchange.bytes, tensor_, profile_) : all_gather_s(exchange.bytes, tensor_, profile_);
    sent += (is_sum ? 2 : 1) * part_of_others(shape_.tensor) * exchange.bytes;
  }
  LayerTimes of_stage(size_t stage) const {
    LayerTimes sum;
    for (auto [i, end] = model_.plan.stages[stage]; i < end; ++i) {
      const LayerTimes& layer = layers_[i];
      sum.forward += layer.forward;
      sum.backward += layer.backward;
      sum.forward_exchange += layer.forward_exchange;
      sum.backward_exchange += layer.backward_exchange;
      sum.flops += layer.flops;
      sum.sent += layer.sent;
    }
    return sum;
  }
  detail::ActionTimes actions_of(size_t stage) const {
    const LayerTimes times = of_stage(stage);
    const double backward = times.backward + times.backward_exchange;
    detail::ActionTimes actions{.forward = times.forward + times.forward_exchange,
                                .backward_input = backward / 2,
                                .backward_weights = backward / 2};
    if (shape_.schedule != PipelineSchedule::zero_bubble) return actions;
    // The first stage has no gradients of inputs to send; all its work is in the second walk.
    if (stage == 0) return {.forward = actions.forward, .backward_input = 0, .backward_weights = backward};
    // What backward computes again of forward, both walks compute, and the second walk the gradients of the inputs of
    // all layers but the first, too.
    const auto [begin, end] = model_.plan.stages[stage];
    const double again = std::clamp(times.backward - 2 * times.forward, 0.0, times.forward);
    const double half = (times.backward - again) / 2, layers = static_cast<double>(end - begin);
    actions.backward_input = again + half + times.backward_exchange;
    actions.backward_weights = again + half + (half + times.backward_exchange) * (layers - 1) / layers;
    return actions;
  }
  double simulated_s(int64_t count) const {
    detail::StageTimes times{.stages = {}, .messages = messages_};
    for (size_t stage = 0; stage < model_.plan.stages.size(); ++stage) times.stages.push_back(actions_of(stage));
    return detail::simulate(detail::make_schedule(shape_.schedule, shape_.pipeline_shape(count)), times).makespan;
  }

  const MeshModel& model_;
  const MeshShape& shape_;
  const PlannedRun& run_;
  const HardwareProfile& profile_;
  Mesh tensor_;
  std::vector<LayerTimes> layers_;
  std::vector<double> messages_;  // between stages
};

// The rank of the pipeline that needs the most.
void add_memory(MeshPrediction& out, const MeshModel& model, const std::vector<RankBytes>& ranks, const PlannedRun& run,
                const HardwareProfile& profile) {
  const MeshShape& shape = out.shape;
  // More micro-batches need no more memory, unless all forwards come first.
  const int64_t count = shape.schedule == PipelineSchedule::gpipe ? shape.micro_batches
                                                                  : std::min(shape.micro_batches, 4 * shape.pipeline);
  const auto actions = detail::make_schedule(shape.schedule, shape.pipeline_shape(count));
  const double states_of_byte = model.size.gradient_bytes == 0
                                    ? 0
                                    : static_cast<double>(model.size.state_bytes + model.size.master_bytes) /
                                          static_cast<double>(model.size.gradient_bytes);
  for (int64_t rank = 0; rank < shape.pipeline; ++rank) {
    const RankBytes& bytes = ranks[static_cast<size_t>(rank)];
    const auto shards = static_cast<double>(shape.shard);
    PlannedMemory memory;
    memory.parameters = bytes.parameters / shards;
    memory.gradients = bytes.gradients;
    memory.states = bytes.stepped * states_of_byte / shards;
    memory.buffers = static_cast<double>(model.size.buffer_bytes);
    memory.batch = model.traced.batch_bytes * static_cast<double>(shape.micro_batches);
    memory.libraries = profile.workspace_mib * 1024 * 1024;
    const double peak = peak_of_actions(actions[static_cast<size_t>(rank)],
                                        detail::received_gradients(actions, shape.pipeline_shape(count), rank),
                                        model.plan, model.traced.layers,
                                        /*has_gradients=*/shape.accumulate > 1);
    memory.activations = std::max(0.0, peak - bytes.gradients);
    // All units are gathered, beside this rank's parts, until the last backward; what averages need then is less.
    // Without shards, a bucket of gradients is averaged when no activations are left.
    if (shape.shard > 1)
      memory.exchange = bytes.parameters;
    else if (shape.data > 1)
      memory.exchange = std::max(0.0, std::min(run.bucket_bytes, bytes.stepped) - memory.activations);
    if (rank > 0 && memory.total() <= out.memory.total()) continue;
    out.memory = memory;
    out.fullest = rank;
  }
}

// What ranks with the same stage exchange of its parameters and gradients, and stages of those that several of them
// read.
void add_exchanges(MeshPrediction& out, const ModelSize& model, const std::vector<RankBytes>& ranks,
                   const PlannedRun& run, const HardwareProfile& profile) {
  const MeshShape& shape = out.shape;
  const auto shards = static_cast<double>(shape.shard), batches = static_cast<double>(shape.accumulate);
  const Mesh shard = machines_of(shape.shard, shape.tensor, out.machines),
             data = machines_of(shape.data, shape.tensor * shape.shard, out.machines);
  // Parameters of several stages are those of the first and of the last one, as a rule.
  const bool between_nodes = are_apart(0, shape.pipeline - 1, shape, out.machines);
  // Parts are averaged in the format of what is stepped, which may be float32 copies.
  const double stepped_ratio = shape.shard == 1 ? 1
                                                : 1 + static_cast<double>(model.master_bytes) / 2 /
                                                          std::max(1.0, static_cast<double>(model.gradient_bytes));
  const auto in_units = [&](double bytes, int64_t units) {
    return units == 0 ? 0
                      : all_gather_s(bytes / static_cast<double>(units), shard, profile) * static_cast<double>(units);
  };
  for (const RankBytes& bytes : ranks) {
    // Each batch of a window gathers all units, and the last one divides the gradients.
    out.shard_s = std::max(
        out.shard_s, in_units(bytes.parameters, bytes.units) * batches + in_units(bytes.stepped, bytes.stepped_units));
    out.shard_sent =
        std::max(out.shard_sent, part_of_others(shape.shard) * (bytes.parameters * batches + bytes.stepped));
    const double averaged = bytes.stepped * stepped_ratio / shards;
    const int64_t buckets = shape.shard > 1 ? std::max<int64_t>(1, bytes.stepped_units)
                                            : static_cast<int64_t>(bytes.stepped / run.bucket_bytes) + 1;
    const double average =
        all_reduce_s(averaged / static_cast<double>(buckets), data, profile) * static_cast<double>(buckets);
    // Gradients are added, and new values of what is kept sent.
    const double shared = bytes.shared > 0 ? 2 * message_s(bytes.shared, between_nodes, profile) +
                                                 message_s(bytes.shared / shards, between_nodes, profile)
                                           : 0;
    out.data_s = std::max(out.data_s, average + shared);
    out.data_sent = std::max(out.data_sent, 2 * part_of_others(shape.data) * averaged);
  }
}

void add_times(MeshPrediction& out, const MeshModel& model, const std::vector<RankBytes>& ranks, const PlannedRun& run,
               const HardwareProfile& profile) {
  const MeshShape& shape = out.shape;
  const MeshTimes times(model, shape, out.machines, run, profile);
  const auto micro_batches = static_cast<double>(shape.micro_batches * shape.accumulate);
  const double state_ratio =
      static_cast<double>(model.size.state_bytes) / std::max(1.0, static_cast<double>(model.size.gradient_bytes));
  double busiest = -1, owned = 0;
  for (int64_t rank = 0; rank < shape.pipeline; ++rank) {
    const LayerTimes of = times.of_rank(rank);
    const double exchange = of.forward_exchange + of.backward_exchange;
    if (const double busy = of.forward + of.backward + exchange; busy > busiest) {
      busiest = busy;
      out.compute_s = (of.forward + of.backward) * micro_batches;
      out.tensor_s = exchange * micro_batches;
    }
    out.tensor_sent = std::max(out.tensor_sent, of.sent * micro_batches);
    double sent = 0;
    for (auto stage = static_cast<size_t>(rank); stage < model.plan.stages.size();
         stage += static_cast<size_t>(shape.pipeline)) {
      const auto [begin, end] = model.plan.stages[stage];
      sent += input_bytes(model.traced.layers, begin);  // its gradient
      if (end < model.traced.layers.size()) sent += model.traced.layers[end - 1].output_bytes;
    }
    out.stages_sent = std::max(out.stages_sent, sent * micro_batches);
    owned = std::max(owned, ranks[static_cast<size_t>(rank)].stepped / static_cast<double>(shape.shard));
  }
  add_exchanges(out, model.size, ranks, run, profile);
  if (shape.pipeline > 1)
    out.wait_s = std::max(0.0, times.batch_s() * static_cast<double>(shape.accumulate) - out.compute_s - out.tensor_s);
  out.optimizer_s = optimizer_seconds(owned, owned * state_ratio, profile);
  out.jitter_s = jitter_seconds(out.step_s(), shape.ranks(), profile);
  const double samples = static_cast<double>(out.batch_size * shape.shares() * shape.accumulate);
  const double alone =
      (model.alone_s * micro_batches + optimizer_seconds(static_cast<double>(model.size.gradient_bytes),
                                                         static_cast<double>(model.size.state_bytes), profile)) /
      static_cast<double>(shape.tensor * shape.pipeline);
  out.efficiency = alone / out.step_s();
  out.samples_per_s = samples / out.step_s();
  out.tokens_per_s =
      out.samples_per_s * static_cast<double>(model.traced.tokens) / static_cast<double>(model.traced.samples);
  out.flops_per_s = times.flops() * micro_batches / static_cast<double>(shape.pipeline) / out.step_s();
}

}  // namespace

std::string MeshShape::text() const {
  return cat("{data: ", data, shard > 1 ? cat(", shard: ", shard) : "", tensor > 1 ? cat(", tensor: ", tensor) : "",
             pipeline > 1 ? cat(", pipeline: ", pipeline) : "", "}");
}

MeshPrediction predict_mesh(const MeshModel& model, const MeshShape& shape, const Mesh& machines, const PlannedRun& run,
                            const HardwareProfile& profile) {
  MeshPrediction out;
  out.shape = shape;
  out.machines = machines;
  out.micro_batch = model.traced.samples;
  out.batch_size = model.traced.samples * shape.micro_batches;
  out.limit = (profile.memory_gib - profile.reserved_gib) * kGiB;
  const std::vector<RankBytes> ranks = bytes_of_ranks(model.plan, model.traced, model.size.units, shape.pipeline);
  add_memory(out, model, ranks, run, profile);
  out.lacks_memory = out.memory.total() > out.limit;
  if (!model.size.is_elementwise)
    out.obstacle = cat(model.size.optimizer, " needs whole parameters");
  else if (out.lacks_memory)
    out.obstacle = cat(format_fixed(out.memory.total() / kGiB, 1), " GiB of ", format_fixed(out.limit / kGiB, 1),
                       ", most for ", out.memory.largest().first);
  // What a rank along `shard` keeps is there beside the whole module.
  out.holds_whole = static_cast<double>(model.size.parameter_bytes + model.size.master_bytes) +
                        (shape.shard > 1 ? out.memory.parameters : 0) + out.memory.states + out.memory.buffers +
                        out.memory.batch + out.memory.libraries <=
                    out.limit;
  add_times(out, model, ranks, run, profile);
  out.saves = saves_of(model.size, shape.ranks(), profile);
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
  out.holds_whole = step.starts();
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
