#include "planning/mesh/pipeline_pass.h"

#include <algorithm>

#include "fulgur/core/text/text.h"
#include "fulgur/strategies/simulate_schedule.h"

namespace fulgur::cli {
namespace {

detail::PipelineShape of_pipeline(const PassKey& key, int64_t micro_batches) {
  return {.ranks = key.pipeline, .stages_per_rank = key.stages_per_rank, .micro_batches = micro_batches};
}

struct LayerTimes {
  double forward = 0, backward = 0, forward_exchange = 0, backward_exchange = 0, flops = 0, sent = 0;
};

class PassTimes {
 public:
  PassTimes(const PassKey& key, const TracedLayers& traced, const detail::StagePlan& plan, const PlannedRun& run,
            const HardwareProfile& profile)
      : key_(key), plan_(plan), run_(run), profile_(profile) {
    for (const LayerTrace& layer : traced.layers) layers_.push_back(times_of(layer));
    for (size_t stage = 1; stage < plan.stages.size(); ++stage)
      messages_.push_back(
          message_s(input_bytes(traced.layers, plan.stages[stage].first), key.apart[stage - 1], profile));
  }

  /// Sums of the layers of a rank's stages.
  LayerTimes of_rank(int64_t rank) const {
    LayerTimes sum;
    for (auto stage = static_cast<size_t>(rank); stage < plan_.stages.size();
         stage += static_cast<size_t>(key_.pipeline)) {
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
    const int64_t count = key_.micro_batches, few = 2 * key_.pipeline, more = 4 * key_.pipeline;
    if (key_.schedule == PipelineSchedule::gpipe || count <= more) return simulated_s(count);
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
    const auto batches = static_cast<double>(key_.micro_batches * key_.accumulate);
    times.backward +=
        3 * layer.gradient_bytes / (profile_.memory_gb_s * 1e9 * profile_.memory_efficiency) * (batches - 1) / batches;
    for (const auto& exchange : layer.forward_exchanges) add(exchange, times.forward_exchange, times.sent);
    for (const auto& exchange : layer.backward_exchanges) add(exchange, times.backward_exchange, times.sent);
    return times;
  }
  void add(const detail::TracedExchange& exchange, double& seconds, double& sent) const {
    const bool is_sum = exchange.kind == detail::TracedExchange::Kind::all_reduce;
    seconds += is_sum ? all_reduce_s(exchange.bytes, key_.tensor_ranks, profile_)
                      : all_gather_s(exchange.bytes, key_.tensor_ranks, profile_);
    sent += (is_sum ? 2 : 1) * part_of_others(key_.tensor) * exchange.bytes;
  }
  LayerTimes of_stage(size_t stage) const {
    LayerTimes sum;
    for (auto [i, end] = plan_.stages[stage]; i < end; ++i) {
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
    if (key_.schedule != PipelineSchedule::zero_bubble) return actions;
    // The first stage has no gradients of inputs to send; all its work is in the second walk.
    if (stage == 0) return {.forward = actions.forward, .backward_input = 0, .backward_weights = backward};
    // What backward computes again of forward, both walks compute, and the second walk the gradients of the inputs of
    // all layers but the first, too.
    const auto [begin, end] = plan_.stages[stage];
    const double again = std::clamp(times.backward - 2 * times.forward, 0.0, times.forward);
    const double half = (times.backward - again) / 2, layers = static_cast<double>(end - begin);
    actions.backward_input = again + half + times.backward_exchange;
    actions.backward_weights = again + half + (half + times.backward_exchange) * (layers - 1) / layers;
    return actions;
  }
  double simulated_s(int64_t count) const {
    detail::StageTimes times{.stages = {}, .messages = messages_};
    for (size_t stage = 0; stage < plan_.stages.size(); ++stage) times.stages.push_back(actions_of(stage));
    return detail::simulate(detail::make_schedule(key_.schedule, of_pipeline(key_, count)), times).makespan;
  }

  const PassKey& key_;
  const detail::StagePlan& plan_;
  const PlannedRun& run_;
  const HardwareProfile& profile_;
  std::vector<LayerTimes> layers_;
  std::vector<double> messages_;  // between stages
};

// Of each rank along `pipeline`.
std::vector<double> peaks_of(const PassKey& key, const TracedLayers& traced, const detail::StagePlan& plan,
                             bool has_gradients) {
  // More micro-batches need no more memory, unless all forwards come first.
  const int64_t count =
      key.schedule == PipelineSchedule::gpipe ? key.micro_batches : std::min(key.micro_batches, 4 * key.pipeline);
  const auto actions = detail::make_schedule(key.schedule, of_pipeline(key, count));
  std::vector<double> peaks;
  for (int64_t rank = 0; rank < key.pipeline; ++rank)
    peaks.push_back(peak_of_actions(actions[static_cast<size_t>(rank)],
                                    detail::received_gradients(actions, of_pipeline(key, count), rank), plan,
                                    traced.layers, has_gradients));
  return peaks;
}

// What a rank sends to other stages of the pipeline, of a micro-batch.
double stage_bytes(int64_t rank, const PassKey& key, const TracedLayers& traced, const detail::StagePlan& plan) {
  double sent = 0;
  for (auto stage = static_cast<size_t>(rank); stage < plan.stages.size(); stage += static_cast<size_t>(key.pipeline)) {
    const auto [begin, end] = plan.stages[stage];
    sent += input_bytes(traced.layers, begin);  // its gradient
    if (end < traced.layers.size()) sent += traced.layers[end - 1].output_bytes;
  }
  return sent;
}

}  // namespace

std::string MeshShape::text() const {
  return cat("{data: ", data, shard > 1 ? cat(", shard: ", shard) : "", tensor > 1 ? cat(", tensor: ", tensor) : "",
             pipeline > 1 ? cat(", pipeline: ", pipeline) : "", "}");
}

bool are_apart(int64_t a, int64_t b, const MeshShape& shape, const Mesh& run) {
  const int64_t stride = shape.tensor * shape.shares();
  for (int64_t i = 0; i < stride; ++i)
    if ((a * stride + i) / run.devices != (b * stride + i) / run.devices) return true;
  return false;
}

PassKey pass_key(const MeshShape& shape, int64_t samples, const Mesh& machines) {
  PassKey key{.tensor = shape.tensor,
              .pipeline = shape.pipeline,
              .stages_per_rank = shape.stages_per_rank,
              .micro_batches = shape.micro_batches,
              .accumulate = shape.accumulate,
              .samples = samples,
              .schedule = shape.schedule,
              .tensor_ranks = machines_of(shape.tensor, 1, machines)};
  for (int64_t stage = 1; stage < shape.pipeline * shape.stages_per_rank; ++stage)
    key.apart.push_back(are_apart((stage - 1) % shape.pipeline, stage % shape.pipeline, shape, machines));
  return key;
}

PipelinePass pass_of(const PassKey& key, const ModelSize& size, const TracedLayers& traced,
                     const detail::StagePlan& plan, const PlannedRun& run, const HardwareProfile& profile) {
  const PassTimes times(key, traced, plan, run, profile);
  PipelinePass pass{.samples = traced.samples,
                    .tokens = traced.tokens,
                    .batch_bytes = traced.batch_bytes,
                    .ranks = {},
                    .flops = times.flops(),
                    .batch_s = key.pipeline > 1 ? times.batch_s() : 0};
  const std::vector<RankBytes> bytes = bytes_of_ranks(plan, traced, size.units, key.pipeline);
  const std::vector<double> with_gradients = peaks_of(key, traced, plan, /*has_gradients=*/true),
                            peaks = key.accumulate > 1 ? with_gradients
                                                       : peaks_of(key, traced, plan, /*has_gradients=*/false);
  for (int64_t rank = 0; rank < key.pipeline; ++rank) {
    const LayerTimes of = times.of_rank(rank);
    pass.ranks.push_back(
        {.bytes = bytes[static_cast<size_t>(rank)],
         .peak = peaks[static_cast<size_t>(rank)],
         .activations = with_gradients[static_cast<size_t>(rank)] - bytes[static_cast<size_t>(rank)].gradients,
         .compute_s = of.forward + of.backward,
         .exchange_s = of.forward_exchange + of.backward_exchange,
         .backward_s = of.backward,
         .tensor_sent = of.sent,
         .stage_sent = stage_bytes(rank, key, traced, plan)});
  }
  return pass;
}

}  // namespace fulgur::cli
