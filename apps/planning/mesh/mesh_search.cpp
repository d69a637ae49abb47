#include "planning/mesh/mesh_search.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::cli {
namespace {

constexpr int64_t kLargestMicroBatch = 4096;
constexpr int64_t kMicroBatchesPerRank = 4;  // as `micro_batches: auto`

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> all;
  for (int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    all.push_back(i);
    if (i * i != number) all.push_back(number / i);
  }
  std::ranges::sort(all);
  return all;
}

// Messages begin with the part of the program that they are from.
std::string without_place(const std::string& message) {
  const size_t end = message.starts_with('[') ? message.find("] ") : std::string::npos;
  return end == std::string::npos ? message : message.substr(end + 2);
}

std::string cannot_trace(const c10::Error& error) {
  const std::string message = error.what_without_backtrace();
  return cat("its layers do not compute with their parts: ", message.substr(0, message.find('\n')));
}

std::string ranks_with_data(const MeshShape& shape) {
  return cat(shape.shares(), " ranks along data", shape.shard > 1 ? " and shard" : "");
}

MeshPrediction impossible(const MeshShape& shape, const Mesh& machines, std::string why) {
  MeshPrediction one;
  one.shape = shape;
  one.machines = machines;
  one.obstacle = std::move(why);
  return one;
}

}  // namespace

const MeshStrategy::Options* mesh_of(const Config& config) {
  const Spec<Strategy>& strategy = config.trainer.strategy;
  return strategy.class_path() == "mesh"
             ? &static_cast<const OptionsOf<MeshStrategy::Options>&>(strategy.options()).value
             : nullptr;
}

const MeshPrediction* MeshPlan::best() const {
  const auto fits = [](const MeshPrediction& one) { return one.obstacle.empty(); };
  const auto starts = [&](const MeshPrediction& one) { return fits(one) && one.starts(); };
  auto found = std::ranges::find_if(meshes, starts);
  if (found == meshes.end()) found = std::ranges::find_if(meshes, fits);
  if (found == meshes.end()) return nullptr;
  // The fastest come first.
  const auto has_room = [&](const MeshPrediction& one) {
    return fits(one) && one.starts() == found->starts() && one.samples_per_s >= kAsFast * found->samples_per_s &&
           one.memory.total() <= kSafeShareOfMemory * one.limit;
  };
  const auto roomy = std::ranges::find_if(meshes, has_room);
  return roomy == meshes.end() ? &*found : &*roomy;
}

MeshSearch::MeshSearch(TracedModel& model, PlanSearch& alone, const Config& config, const PlannedRun& run,
                       const HardwareProfile& profile)
    : model_(model), alone_(alone), run_(run), profile_(profile) {
  if (const MeshStrategy::Options* const given = mesh_of(config)) {
    given_ = options_ = *given;
    static_cast<void>(MeshStrategy(options_));  // refuses options that do not go together
    MeshStrategy::check_trainer(options_, config.trainer.auto_micro_batch, config.trainer.sync_batchnorm);
  }
  for (const LayerChain::Layer& layer : model.module().stages().layers) layers_.push_back(layer.name);
  has_tensor_plan_ = !options_.tensor_plan.empty() || !model.module().tensor_plan().empty();
}

const TracedLayers& MeshSearch::traced(const MeshShape& shape, int64_t samples) {
  const bool in_layers = shape.pipeline > 1;
  const std::tuple key{shape.tensor, in_layers, samples};
  if (const auto found = traced_.find(key); found != traced_.end()) return found->second;
  const TensorDivision division{.ranks = shape.tensor, .plan = options_.tensor_plan};
  return traced_.emplace(key, trace_layers(model_, division, in_layers, samples)).first->second;
}

const detail::StagePlan& MeshSearch::stages(const MeshShape& shape) {
  const std::pair key{shape.pipeline, shape.stages_per_rank};
  if (const auto found = stages_.find(key); found != stages_.end()) return found->second;
  LightningModule& module = model_.module();
  detail::StagePlan plan;
  if (shape.pipeline == 1) {
    plan = detail::plan_one_stage(module);
    plan.stages = {{0, 1}};
  } else {
    const bool as_given = given_ && given_->mesh.pipeline == shape.pipeline;
    plan = detail::plan_stages(module, module.stages(), as_given ? given_->cuts.value : std::nullopt,
                               shape.pipeline_shape(shape.micro_batches));
  }
  return stages_.emplace(key, std::move(plan)).first->second;
}

double MeshSearch::alone_s(int64_t samples) {
  if (const auto found = alone_s_.find(samples); found != alone_s_.end()) return found->second;
  double seconds = 0;
  for (const Operation& operation : alone_.step(samples).operations) seconds += seconds_of(operation, run_, profile_);
  return alone_s_[samples] = seconds;
}

const PipelinePass& MeshSearch::pass(const MeshShape& shape, int64_t micro_batch, const Mesh& machines) {
  PassKey key = pass_key(shape, micro_batch, machines);
  if (const auto found = passes_.find(key); found != passes_.end()) return found->second;
  // Stages are planned with whole parameters.
  const detail::StagePlan& plan = stages(shape);
  PipelinePass pass = pass_of(key, model_.size(), traced(shape, micro_batch), plan, run_, profile_);
  return passes_.emplace(std::move(key), std::move(pass)).first->second;
}

MeshPrediction MeshSearch::predict(const MeshShape& shape, int64_t micro_batch, const Mesh& machines) {
  return predict_mesh(model_.size(), pass(shape, micro_batch, machines), alone_s(micro_batch), shape, machines, run_,
                      profile_);
}

std::optional<MeshPrediction> MeshSearch::configured(const Mesh& machines) {
  if (!given_) return std::nullopt;
  const MeshAxes& axes = given_->mesh;
  if (axes.shard * axes.tensor * axes.pipeline == 1 && axes.data.value.value_or(machines.ranks()) == machines.ranks())
    return std::nullopt;
  MeshShape shape{.shard = axes.shard,
                  .tensor = axes.tensor,
                  .pipeline = axes.pipeline,
                  .schedule = given_->schedule,
                  .stages_per_rank =
                      given_->stages_per_rank.value.value_or(given_->schedule == PipelineSchedule::interleaved ? 2 : 1),
                  .accumulate = run_.accumulate};
  const int64_t ranks = machines.ranks(), inner = axes.shard * axes.tensor * axes.pipeline;
  shape.data = axes.data.value.value_or(std::max<int64_t>(ranks / inner, 1));
  if (shape.ranks() != ranks)
    return impossible(shape, machines,
                      cat("the axes of the mesh have ", shape.ranks(), " ranks, and ", counted(machines.nodes, "node"),
                          " with ", counted(machines.devices, "device"), " each have ", ranks));
  const int64_t batch = model_.batch_size();
  if (shape.pipeline > 1) {
    const int64_t wanted = given_->micro_batches.value.value_or(kMicroBatchesPerRank * shape.pipeline);
    if (detail::allowed_micro_batches(shape.schedule, shape.pipeline_shape(wanted)) != wanted)
      return impossible(shape, machines,
                        cat("schedule ", enum_text(shape.schedule), " needs a multiple of ", shape.pipeline,
                            " micro-batches; micro_batches is ", wanted));
    shape.micro_batches = std::min(wanted, batch);
    shape.micro_batches = detail::allowed_micro_batches(shape.schedule, shape.pipeline_shape(shape.micro_batches));
  }
  if (run_.global_batch > 0) {
    if (run_.global_batch % (batch * shape.shares()) != 0)
      return impossible(shape, machines,
                        cat("batches of ", batch, " on ", ranks_with_data(shape), " do not divide global_batch_size, ",
                            run_.global_batch));
    shape.accumulate = run_.global_batch / (batch * shape.shares());
  }
  if (axes.shard > 1 && axes.tensor * axes.pipeline == 1) {
    PlannedRun run = run_;
    run.shard_size = axes.shard;
    run.whole_saves = given_->state_dict_type == MeshStrategy::StateDictType::full;
    const PlannedSharding sharding = shape.data > 1 ? PlannedSharding::hybrid : PlannedSharding::parameters;
    return as_mesh(predict_step(model_.size(), alone_.step(batch), sharding, machines, run, profile_), shape);
  }
  try {
    const int64_t least = batch / shape.micro_batches, more = batch % shape.micro_batches;
    const MeshPrediction smaller = predict(shape, least, machines);
    if (more == 0) return smaller;
    return between(smaller, predict(shape, least + 1, machines),
                   static_cast<double>(more) / static_cast<double>(shape.micro_batches));
  } catch (const Error& error) {
    return impossible(shape, machines, without_place(error.what()));
  } catch (const c10::Error& error) {
    return impossible(shape, machines, cannot_trace(error));
  }
}

std::string MeshSearch::divide_global_batch(MeshShape& shape, int64_t micro_batch) const {
  const int64_t samples = shape.shares() * micro_batch;
  if (run_.global_batch % samples != 0)
    return cat("micro-batches of ", micro_batch, " on ", ranks_with_data(shape), " do not divide global_batch_size, ",
               run_.global_batch);
  const int64_t rest = run_.global_batch / samples;
  (shape.pipeline > 1 ? shape.micro_batches : shape.accumulate) = rest;
  (shape.pipeline > 1 ? shape.accumulate : shape.micro_batches) = 1;
  if (const int64_t allowed = detail::allowed_micro_batches(shape.schedule, shape.pipeline_shape(shape.micro_batches));
      allowed != shape.micro_batches)
    return cat(enum_text(shape.schedule), " needs a multiple of ", shape.pipeline, " micro-batches; global_batch_size ",
               "leaves ", shape.micro_batches);
  return {};
}

// Memory grows with the micro-batch, so the search ends at the first size that does not fit.
MeshPrediction MeshSearch::best_batch(MeshShape shape, const Mesh& machines) {
  MeshPrediction best;
  const int64_t least = alone_.least_batch();
  for (int64_t size = least; size <= kLargestMicroBatch; size *= 2) {
    std::string why = run_.global_batch > 0 ? divide_global_batch(shape, size) : std::string();
    MeshPrediction one = why.empty() ? predict(shape, size, machines) : impossible(shape, machines, std::move(why));
    if (!one.obstacle.empty()) return size == least ? one : best;
    if (size == least || one.samples_per_s > best.samples_per_s * 1.01) best = std::move(one);
  }
  return best;
}

// Other sizes of `shard` have more memory and other exchanges, and the same layers, stages and shares of the data: only
// the lack of memory may be another one.
void MeshSearch::search_shards(MeshShape shape, const Mesh& machines, MeshPlan& plan) {
  const int64_t shares = shape.shares();
  for (int64_t shard = 1; shard <= shares && shares % shard == 0; shard *= 2) {
    shape.shard = shard;
    shape.data = shares / shard;
    plan.meshes.push_back(best_batch(shape, machines));
    if (const MeshPrediction& one = plan.meshes.back(); !one.obstacle.empty() && !one.lacks_memory) return;
  }
}

MeshPlan MeshSearch::search(const Mesh& machines) {
  MeshPlan plan;
  const auto layers = static_cast<int64_t>(layers_.size());
  for (const int64_t tensor : divisors(machines.devices)) {
    if (tensor > 1 && !has_tensor_plan_) break;
    std::string cannot;  // the reason is the same for all stages
    for (const int64_t pipeline : divisors(machines.ranks() / tensor)) {
      if (tensor * pipeline == 1) continue;
      if (pipeline > 1 && layers == 0) break;
      MeshShape shape{.data = machines.ranks() / tensor / pipeline,
                      .tensor = tensor,
                      .pipeline = pipeline,
                      .accumulate = run_.accumulate};
      if (pipeline > 1) {
        shape.schedule = options_.schedule;
        shape.stages_per_rank =
            options_.stages_per_rank.value.value_or(shape.schedule == PipelineSchedule::interleaved ? 2 : 1);
        shape.micro_batches = kMicroBatchesPerRank * pipeline;
        if (pipeline * shape.stages_per_rank > layers) {
          plan.meshes.push_back(impossible(shape, machines,
                                           cat(pipeline * shape.stages_per_rank, " stages, and the module's stages() ",
                                               "returns ", counted(layers, "layer"))));
          break;
        }
      }
      try {
        if (cannot.empty())
          search_shards(shape, machines, plan);
        else
          plan.meshes.push_back(impossible(shape, machines, cannot));
      } catch (const Error& error) {
        cannot = without_place(error.what());
        plan.meshes.push_back(impossible(shape, machines, cannot));
      } catch (const c10::Error& error) {
        cannot = cannot_trace(error);
        plan.meshes.push_back(impossible(shape, machines, cannot));
      }
    }
  }
  std::ranges::stable_sort(plan.meshes, [](const MeshPrediction& a, const MeshPrediction& b) {
    if (a.obstacle.empty() != b.obstacle.empty()) return a.obstacle.empty();
    return a.obstacle.empty() && a.samples_per_s > b.samples_per_s;
  });
  return plan;
}

}  // namespace fulgur::cli
