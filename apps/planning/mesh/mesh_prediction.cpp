#include "planning/mesh/mesh_prediction.h"

#include <algorithm>
#include <cmath>

#include "fulgur/core/text/text.h"
#include "fulgur/strategies/simulate_schedule.h"

namespace fulgur::cli {
namespace {

// Of `count` ranks, every `stride`-th of the run: the group that is on the most nodes.
Mesh machines_of(int64_t count, int64_t stride, const Mesh& run) {
  Mesh most{.nodes = 0, .devices = 0};
  for (int64_t first = 0; first + (count - 1) * stride < run.ranks(); ++first) {
    // Groups begin at the places below `stride` of each block.
    if (first % (count * stride) >= stride) continue;
    int64_t nodes = 0, in_node = 0, most_in_node = 0, last = -1;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t node = (first + i * stride) / run.devices;
      in_node = node == last ? in_node + 1 : 1;
      nodes += node != last;
      most_in_node = std::max(most_in_node, in_node);
      last = node;
    }
    if (nodes > most.nodes) most = {.nodes = nodes, .devices = most_in_node};
  }
  return most;
}

// Whether ranks at two places along `pipeline` are on different nodes, for any share of the data.
bool are_apart(int64_t a, int64_t b, const MeshShape& shape, const Mesh& run) {
  const int64_t stride = shape.tensor * shape.data;
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
void add_memory(MeshPrediction& out, const MeshModel& model, const PlannedRun& run, const HardwareProfile& profile) {
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
    const RankBytes bytes = bytes_of_rank(model.plan, model.traced, rank);
    PlannedMemory memory;
    memory.parameters = bytes.parameters;
    memory.gradients = bytes.gradients;
    memory.states = bytes.stepped * states_of_byte;
    memory.buffers = static_cast<double>(model.size.buffer_bytes);
    memory.batch = model.traced.batch_bytes * static_cast<double>(shape.micro_batches);
    memory.libraries = profile.workspace_mib * 1024 * 1024;
    const double peak = peak_of_actions(actions[static_cast<size_t>(rank)],
                                        detail::received_gradients(actions, shape.pipeline_shape(count), rank),
                                        model.plan, model.traced.layers,
                                        /*has_gradients=*/shape.accumulate > 1);
    memory.activations = std::max(0.0, peak - bytes.gradients);
    // A bucket of gradients is averaged when no activations are left.
    if (shape.data > 1) memory.exchange = std::max(0.0, std::min(run.bucket_bytes, bytes.stepped) - memory.activations);
    if (rank > 0 && memory.total() <= out.memory.total()) continue;
    out.memory = memory;
    out.fullest = rank;
  }
}

void add_times(MeshPrediction& out, const MeshModel& model, const PlannedRun& run, const HardwareProfile& profile) {
  const MeshShape& shape = out.shape;
  const MeshTimes times(model, shape, out.machines, run, profile);
  const auto micro_batches = static_cast<double>(shape.micro_batches * shape.accumulate);
  const Mesh data = machines_of(shape.data, shape.tensor, out.machines);
  // Parameters of several stages are those of the first and of the last one, as a rule.
  const bool between_nodes = are_apart(0, shape.pipeline - 1, shape, out.machines);
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
    const RankBytes bytes = bytes_of_rank(model.plan, model.traced, rank);
    const int64_t buckets = std::max<int64_t>(1, static_cast<int64_t>(bytes.stepped / run.bucket_bytes) + 1);
    const double average =
        all_reduce_s(bytes.stepped / static_cast<double>(buckets), data, profile) * static_cast<double>(buckets);
    // Gradients are added, and new values sent.
    const double shared = bytes.shared > 0 ? 3 * message_s(bytes.shared, between_nodes, profile) : 0;
    out.data_s = std::max(out.data_s, average + shared);
    out.data_sent = std::max(out.data_sent, 2 * part_of_others(shape.data) * bytes.stepped);
    owned = std::max(owned, bytes.stepped);
  }
  if (shape.pipeline > 1)
    out.wait_s = std::max(0.0, times.batch_s() * static_cast<double>(shape.accumulate) - out.compute_s - out.tensor_s);
  out.optimizer_s = optimizer_seconds(owned, owned * state_ratio, profile);
  out.jitter_s = jitter_seconds(out.step_s(), shape.ranks(), profile);
  const double samples = static_cast<double>(out.batch_size * shape.data * shape.accumulate);
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
  return cat("{data: ", data, tensor > 1 ? cat(", tensor: ", tensor) : "",
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
  add_memory(out, model, run, profile);
  out.lacks_memory = out.memory.total() > out.limit;
  if (!model.size.is_elementwise)
    out.obstacle = cat(model.size.optimizer, " needs whole parameters");
  else if (out.lacks_memory)
    out.obstacle = cat(format_fixed(out.memory.total() / kGiB, 1), " GiB of ", format_fixed(out.limit / kGiB, 1),
                       ", most for ", out.memory.largest().first);
  out.holds_whole = static_cast<double>(model.size.parameter_bytes + model.size.master_bytes) + out.memory.states +
                        out.memory.buffers + out.memory.batch + out.memory.libraries <=
                    out.limit;
  add_times(out, model, run, profile);
  out.saves = saves_of(model.size, shape.ranks(), profile);
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
        &MeshPrediction::tensor_s, &MeshPrediction::wait_s, &MeshPrediction::data_s, &MeshPrediction::optimizer_s,
        &MeshPrediction::jitter_s})
    larger.*value = mix(value);
  larger.batch_size = std::llround(static_cast<double>(smaller.batch_size) * (1 - share) +
                                   static_cast<double>(larger.batch_size) * share);
  const double samples = static_cast<double>(larger.batch_size * larger.shape.data * larger.shape.accumulate);
  larger.efficiency = alone / larger.step_s();
  larger.samples_per_s = samples / larger.step_s();
  larger.tokens_per_s = larger.samples_per_s * tokens;
  larger.flops_per_s = flops / larger.step_s();
  return larger;
}

}  // namespace fulgur::cli
