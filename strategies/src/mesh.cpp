#include "fulgur/strategies/mesh.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "fulgur/core/contracts/component_access.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/half_precision.h"
#include "mesh_options.h"
#include "pipeline/evaluation_units.h"
#include "pipeline/executor.h"
#include "pipeline/layer_random.h"
#include "pipeline/received_parameters.h"
#include "pipeline/stage_optimizers.h"
#include "pipeline/stage_parameters.h"
#include "pipeline/stage_parts.h"
#include "pipeline/stage_shards.h"
#include "sharding/first_rank_values.h"
#include "sharding/held_whole.h"
#include "sharding/lost_values.h"
#include "sharding/optimizer_shards.h"
#include "sharding/parameter_units.h"
#include "tensor/tensor_calls.h"

namespace fulgur {
namespace {

// With four times as many micro-batches as ranks, 1F1B waits for a fifth of a step.
constexpr int64_t kMicroBatchesPerRank = 4;
constexpr const char* kBetweenBackwardAndStep =
    "[strategies.mesh] the checkpoint was saved between a backward and its step ";

// Tensors of several stages count in each of them.
std::string parameters_of_stages(const detail::StagePlan& plan) {
  std::vector<int64_t> sizes(plan.stages.size());
  for (const detail::StageTensor& tensor : plan.tensors)
    for (const int64_t stage : tensor.stages)
      if (tensor.is_parameter) sizes[static_cast<size_t>(stage)] += tensor.value.numel();
  std::string text;
  for (const int64_t size : sizes) text += cat(text.empty() ? "" : " | ", format_count(size));
  return text;
}

void check_module(const LightningModule& module, bool has_pipeline) {
  if (!module.automatic_optimization())
    throw ConfigError(
        cat("[strategies.mesh] ",
            has_pipeline ? "a pipeline computes forward and backward of a step itself, and manual optimization does so "
                           "in training_step. Set mesh.pipeline to 1"
                         : "divided layers are computed in training_step, and their gradients after it; with manual "
                           "optimization training_step does both. Set mesh.tensor to 1",
            ", or use automatic optimization."));
  if (!has_pipeline) return;
  const HookMask& overridden = detail::ComponentAccess::overridden(module);
  if (overridden.exact && overridden.has(Hook::backward))
    throw ConfigError(
        "[strategies.mesh] the module overrides backward, which a pipeline does not call. Set mesh.pipeline to 1.");
}

}  // namespace

MeshStrategy::MeshStrategy(Options options)
    : FSDPStrategy(detail::fsdp_options(options),
                   options.mesh.shard > 1 && options.mesh.pipeline == 1 && options.mesh.tensor == 1),
      options_(std::move(options)) {
  detail::check_mesh_options(options_);
}
// Optimizers may not exist any more.
MeshStrategy::~MeshStrategy() = default;

void MeshStrategy::configure(StrategySetup setup) {
  check_trainer(options_, setup.syncs_after_backward, setup.sync_batchnorm);
  FSDPStrategy::configure(std::move(setup));
}

void MeshStrategy::check_ranks(int64_t ranks) { data_ = detail::data_size(options_.mesh, ranks); }

int64_t MeshStrategy::stages_per_rank() const {
  return options_.stages_per_rank.value.value_or(options_.schedule == PipelineSchedule::interleaved ? 2 : 1);
}

std::string MeshStrategy::shape_text() const {
  const int64_t tensor = options_.mesh.tensor, shard = options_.mesh.shard;
  return cat("data ", data_, shard > 1 ? cat(", shard ", shard) : "", tensor > 1 ? cat(", tensor ", tensor) : "",
             ", pipeline ", options_.mesh.pipeline);
}

void MeshStrategy::start_training(LightningModule& module, const std::vector<Optimizer*>& optimizers) {
  if (!divides_module()) return FSDPStrategy::start_training(module, optimizers);
  // Called again when parameters are frozen or unfrozen.
  if (plan_) return optimizers_->forget_averages();
  check_module(module, has_pipeline());
  // Wrong patterns are errors now, not in the first evaluation.
  if (options_.units.value)
    static_cast<void>(detail::parameter_units(module, unique_parameters(module), options_.units.value));
  if (std::exchange(loaded_from_others_, false))
    for (const auto& [name, value] : unique_parameters(module))
      if (value.grad().defined())
        throw CheckpointError(cat(kBetweenBackwardAndStep,
                                  "by another strategy, whose ranks have the gradients of all parameters. Resume with "
                                  "that strategy."));
  // Before the ranks connect: each of them finds the same errors.
  detail::DividedLayers divided;
  if (options_.mesh.tensor > 1) {
    divided = detail::plan_divided_layers(module, options_.tensor_plan, options_.mesh.tensor);
    divided_.clear();
    for (const auto& parameter : divided.parameters)
      divided_ += cat(divided_.empty() ? "" : ", ", parameter.name, " by ", enum_text(parameter.split));
    if (const std::string saved = std::exchange(loaded_divided_, ""); !saved.empty() && saved != divided_)
      throw CheckpointError(cat(kBetweenBackwardAndStep,
                                "with another tensor_plan, and its gradients are divided by that. Resume with the same "
                                "tensor_plan."));
  }
  if (has_pipeline()) {
    make_executor(module);
  } else {
    plan_ = std::make_unique<detail::StagePlan>(detail::plan_one_stage(module));
    connect();
  }
  auto* const half = dynamic_cast<HalfPrecision*>(&precision());
  MasterWeights* const masters = half ? half->master_weights() : nullptr;
  detail::SteppedParts::Copies copies;
  if (masters) copies = detail::take_copies(*masters, optimizers, whole_states_);
  if (options_.mesh.tensor > 1) divide_layers(module, std::move(divided.parameters));
  if (options_.mesh.shard > 1)
    divide_stages(module, optimizers);
  else
    receive_parameters();
  if (parts_) {
    std::vector<Tensor> norms;
    for (const Tensor& norm : divided.of_norms) {
      norms.push_back(norm.detach());
      if (shards_ && shards_->units().has(norm)) norms.push_back(shards_->while_gathered(norm));
    }
    calls_ = std::make_unique<detail::TensorCalls>(*parts_, norms);
    if (executor_) executor_->divide_layers(*calls_);
  }
  saved_ = std::make_unique<detail::StageParts>(*mesh_, plan_->tensors, parts_, shards_);
  optimizers_ = std::make_shared<detail::StageOptimizers>(*mesh_, plan_->tensors, parts_, shards_, *saved_, optimizers,
                                                          std::exchange(whole_states_, {}), copies, device());
  if (masters) masters->follow(optimizers_);
  stepped_ = optimizers;
  parameters_ = std::make_shared<detail::StageParameters>(*mesh_, plan_->tensors, parts_, shards_);
  parameters_->divide();
  if (options_.evaluation == Evaluation::units)
    evaluation_ = std::make_shared<detail::EvaluationUnits>(module, *mesh_, plan_->tensors, *parameters_,
                                                            options_.units.value, device());
}

void MeshStrategy::leave_evaluation() const {
  if (evaluation_) evaluation_->end();
}

void MeshStrategy::return_to_training() const {
  leave_evaluation();
  if (parameters_->is_whole()) parameters_->divide();
}

void MeshStrategy::connect() {
  mesh_ = std::make_unique<detail::MeshGroups>(*process_group(), detail::MeshSizes{.tensor = options_.mesh.tensor,
                                                                                   .shard = options_.mesh.shard,
                                                                                   .data = data_,
                                                                                   .pipeline = options_.mesh.pipeline});
}

detail::PipelineShape MeshStrategy::pipeline_shape() const {
  return {.ranks = options_.mesh.pipeline,
          .stages_per_rank = stages_per_rank(),
          .micro_batches = options_.micro_batches.value.value_or(kMicroBatchesPerRank * options_.mesh.pipeline)};
}

void MeshStrategy::make_executor(LightningModule& module) {
  const int64_t ranks = options_.mesh.pipeline;
  const detail::PipelineShape shape = pipeline_shape();
  if (detail::allowed_micro_batches(options_.schedule, shape) != shape.micro_batches)
    throw ConfigError(cat("[strategies.mesh] with schedule: ", enum_text(options_.schedule),
                          ", micro_batches must be a ", "multiple of mesh.pipeline; got ", shape.micro_batches, " and ",
                          ranks, "."));
  LayerChain chain = module.stages();
  plan_ = std::make_unique<detail::StagePlan>(detail::plan_stages(module, chain, options_.cuts.value, shape));
  stages_.clear();
  for (const auto& [begin, end] : plan_->stages)
    stages_ += cat(stages_.empty() ? "" : " | ", chain.layers[begin].name,
                   end - begin > 1 ? cat(" … ", chain.layers[end - 1].name) : "");
  if (const std::string saved = std::exchange(loaded_stages_, ""); !saved.empty() && saved != stages_)
    throw CheckpointError(cat(kBetweenBackwardAndStep, "with the stages ", escape_controls(saved),
                              ", whose ranks have the gradients of their stages only; the run has the stages ", stages_,
                              ". Resume with the same cuts, schedule and stages_per_rank."));
  connect();
  if (rank() == 0)
    log::info(cat("mesh: ", shape_text(), " · ", enum_text(options_.schedule), " with up to ",
                  counted(shape.micro_batches, "micro-batch", "micro-batches"), ", then a bubble of ",
                  format_fixed(100 * detail::closed_form_bubble(options_.schedule, shape), 1),
                  " % if all stages take the same time · stages ", stages_, " · parameters ",
                  parameters_of_stages(*plan_)));
  executor_ =
      std::make_unique<detail::PipelineExecutor>(std::move(chain), *plan_, options_.schedule, shape, *mesh_, device());
  layer_random_ = std::make_unique<detail::LayerRandom>(devices(), mesh_->place(detail::MeshAxis::pipeline));
  if (StateTree saved = std::exchange(loaded_random_, nullptr); !saved.is_null())
    layer_random_->load_state(std::move(saved));
}

void MeshStrategy::divide_layers(const LightningModule& module, std::vector<detail::DividedParameter> divided) {
  std::unordered_set<const void*> here;
  for (const detail::StageTensor& tensor : plan_->tensors)
    if (std::ranges::find(tensor.ranks, mesh_->place(detail::MeshAxis::pipeline)) != tensor.ranks.end())
      here.insert(tensor.value.unsafeGetTensorImpl());
  if (rank() == 0) {
    int64_t in_parts = 0, all = 0;
    for (const auto& parameter : divided) in_parts += parameter.value.numel();
    for (const auto& [name, value] : unique_parameters(module)) all += value.numel();
    log::info(cat("mesh: ", shape_text(), " · ", in_parts, " of ", all, " parameters are divided among ",
                  options_.mesh.tensor, " ranks"));
  }
  parts_ = std::make_shared<detail::TensorShards>(*mesh_->along(detail::MeshAxis::tensor), std::move(divided), here);
  parts_->divide();
}

void MeshStrategy::receive_parameters() {
  for (const detail::StageTensor& tensor : plan_->tensors)
    if (tensor.is_parameter) detail::receive_parameter(*mesh_, tensor, parts_.get(), device());
}

void MeshStrategy::divide_stages(const LightningModule& module, const std::vector<Optimizer*>& optimizers) {
  shards_ = std::make_shared<detail::StageShards>(module, *mesh_, plan_->tensors, parts_.get(), optimizers,
                                                  options_.units.value, device());
  int64_t bytes = 0;
  for (const auto& unit : shards_->units().units()) bytes += static_cast<int64_t>(unit->kept_part().nbytes());
  log::info(cat("mesh: ", shape_text(), " · between steps, rank ", rank(), " keeps ",
                format_fixed(static_cast<double>(bytes) / 1e6, 3), " MB of parameters"));
}

void MeshStrategy::agree_on_random() {
  if (!calls_ || std::exchange(agrees_on_random_, true)) return;
  StateTree states = rng_state({device()});
  for (auto& [name, value] : states.as_map())
    if (value.is_tensor()) value = mesh_->along(detail::MeshAxis::tensor)->broadcast(value.tensor(), 0);
  load_rng_state({device()}, states);
}

void MeshStrategy::before_forward(LightningModule& module, GradSync sync) {
  if (!plan_) return FSDPStrategy::before_forward(module, sync);
  collectives().set_activity("training_step");
  return_to_training();
  parameters_->take_buffers();
  agree_on_random();
  parameters_->begin_step();
  check_divided();
}

void MeshStrategy::check_divided() const {
  if (parts_ && !parts_->are_divided())
    throw Error(
        "[strategies.mesh] parameters of divided layers are whole in a training step, in which each rank computes a "
        "part of the layers: something keeps the result of run.run_weights().whole_parameters(). Release it before the "
        "step.");
}

std::vector<MicroBatch> MeshStrategy::split(LightningModule& module, const Batch& batch, RunningStage stage) {
  if (!calls_ || executor_ || stage != RunningStage::train) return {};
  return {{.module = &module, .batch = batch}};
}

void MeshStrategy::run_parts(size_t parts, const std::function<void(size_t)>& work) {
  calls_->start();
  try {
    for (size_t i = 0; i < parts; ++i) work(i);
  } catch (...) {
    detail::TensorCalls::stop();
    throw;
  }
  // Until backward, which must know whether the loss is whole.
  calls_->compute_layers(false);
}

void MeshStrategy::backward(LightningModule& module, const Tensor& loss, GradSync sync,
                            const BackwardOptions& options) {
  if (!plan_) return FSDPStrategy::backward(module, loss, sync, options);
  detail::TensorCalls::stop();
  check_divided();
  const Tensor whole = calls_->whole(loss, "the loss");
  calls_->compute_layers(true);  // again, of activations that were not kept
  collectives().set_activity("backward");
  parameters_->begin_backward();
  {
    // One of the module's own may compute gradients several times.
    const HookMask& overridden = detail::ComponentAccess::overridden(module);
    const bool is_own = overridden.exact && overridden.has(Hook::backward);
    const bool averages = sync == GradSync::now && !is_own;
    detail::GradientExchange* const units = averages ? optimizers_->unit_averages() : nullptr;
    if (units) units->before_backward(whole);
    const detail::GradientAverages::Counting counting(averages && !units ? optimizers_->begin_averages() : nullptr);
    run_exchange(*process_group(), "mesh", [&] {
      module.backward(whole, options);
      if (units) optimizers_->end_unit_averages();
    });
  }
  parameters_->end_step();
  if (sync == GradSync::now) exchange_gradients();
}

void MeshStrategy::note_size(const Batch& batch) {
  const int64_t samples = batch.size();
  detail::PipelineShape shape = pipeline_shape();
  // The last batch of an epoch may be shorter.
  if (samples <= largest_batch_) return;
  largest_batch_ = samples;
  if (samples >= shape.micro_batches || rank() != 0) return;
  shape.micro_batches = samples;
  const std::string there =
      cat("a batch of ", counted(samples, "sample"), " has as many micro-batches, and a bubble of ",
          format_fixed(100 * detail::closed_form_bubble(options_.schedule, shape), 1), " %");
  if (!options_.micro_batches.value) return log::info(cat("mesh: ", there));
  log::warn("strategies.fewer_micro_batches", cat(there, ", not micro_batches: ", *options_.micro_batches.value,
                                                  ". Use larger batches, or fewer micro-batches"));
}

std::optional<StepOutput> MeshStrategy::compute_step(LightningModule&, const Batch& batch,
                                                     const StepServices& services) {
  if (!executor_) return std::nullopt;
  note_size(batch);
  StepOutput output = [&] {
    const detail::LayerRandom::Scope numbers(*layer_random_);
    in_pipeline_ = true;
    const auto ends = c10::make_scope_exit([this] { in_pipeline_ = false; });
    return StepOutput(
        executor_->run(batch, services, services.sync == GradSync::now ? optimizers_->begin_averages() : nullptr));
  }();
  parameters_->end_step();
  if (services.sync == GradSync::now) exchange_gradients();
  return output;
}

void MeshStrategy::exchange_gradients() {
  return_to_training();
  parameters_->sum_shared_gradients();
  parameters_->require_gradients([&](const Tensor& parameter) { return optimizers_->is_averaged(parameter); });
  optimizers_->end_averages();
  for (Optimizer* optimizer : stepped_) optimizers_->take_gradients(*optimizer);
}

void MeshStrategy::sync_gradients(Optimizer& optimizer) {
  if (!plan_) return FSDPStrategy::sync_gradients(optimizer);
  exchange_gradients();
}

void MeshStrategy::optimizer_step(Optimizer& optimizer, const Closure& closure,
                                  const std::optional<Tensor>& found_inf) {
  detail::TensorCalls::stop();
  if (!plan_) return FSDPStrategy::optimizer_step(optimizer, closure, found_inf);
  // The data of an epoch may end right after a validation, and the window of the last batches with it.
  return_to_training();
  if (parameters_->are_there() || (parts_ && !parts_->are_divided()))
    throw Error(
        "[strategies.mesh] parameters are whole in an optimizer's step, which changes this rank's parts of them: "
        "something keeps the result of run.run_weights().whole_parameters(). Release it before the step.");
  FSDPStrategy::optimizer_step(optimizer, closure, found_inf);
  optimizers_->note_step(optimizer);
  parameters_->spread_shared_values();
}

void MeshStrategy::make_whole(LightningModule& module) {
  // Tensors of this mode have no versions, which parameters need.
  const c10::InferenceMode normal(false);
  for (auto& [name, value] : unique_parameters(module))
    if (stored_values(value))
      replace_data(value, detail::values_of_first_rank(*process_group(), "mesh", value, device()));
}

void MeshStrategy::before_evaluation(LightningModule& module) {
  detail::TensorCalls::stop();
  if (!plan_) {
    // A run that only evaluates.
    if (divides_module() && options_.evaluation == Evaluation::units)
      divide_for_evaluation(module, options_.units.value, detail::kInsteadOfUnits);
    else if (divides_module() && is_deferred())
      make_whole(module);
    return FSDPStrategy::before_evaluation(module);
  }
  collectives().set_activity("evaluation");
  if (evaluation_)
    parameters_->gather_buffers();
  else
    parameters_->gather();
}

bool MeshStrategy::gathers_in_evaluations() const {
  return plan_ ? evaluation_ != nullptr : FSDPStrategy::gathers_in_evaluations();
}

void MeshStrategy::begin_evaluation_round(bool computes, bool all_compute) {
  if (!plan_) return FSDPStrategy::begin_evaluation_round(computes, all_compute);
  evaluation_->begin_round(computes, all_compute);
}

void MeshStrategy::end_evaluation_round() {
  if (!plan_) return FSDPStrategy::end_evaluation_round();
  evaluation_->end_round();
}

void MeshStrategy::after_step(LightningModule& module, int64_t global_step) {
  // A step without a loss has no backward.
  detail::TensorCalls::stop();
  if (plan_) parameters_->end_step();
  FSDPStrategy::after_step(module, global_step);
  if (!plan_) return;
  const int64_t every = options_.check_replicas_every;
  if (every > 0 && global_step % every == 0) parameters_->check_copies();
}

std::vector<int64_t> MeshStrategy::whole_sizes(const Tensor& parameter) const {
  return parts_ && parts_->has(parameter) ? parts_->whole_sizes(parameter).vec() : FSDPStrategy::whole_sizes(parameter);
}

std::unique_ptr<WholeParameters> MeshStrategy::whole_parameters() {
  if (!plan_) return FSDPStrategy::whole_parameters();
  if (in_pipeline_ || (calls_ && calls_->is_in_forward()))
    throw Error(
        cat("[strategies.mesh] parameters cannot be made whole in a training step, in which each rank computes "
            "a part of the layers. ",
            in_pipeline_ ? "Read them in a hook before or after the step."
                         : "Call run.gather(parameter) for a copy of one, or write in a hook after the step."));
  if (evaluation_ && evaluation_->in_round())
    throw Error(
        "[strategies.mesh] parameters cannot be made whole in a step of an evaluation that gathers units. Call "
        "run.gather(parameter) for a copy of one, or write in a hook before or after the step.");
  detail::TensorCalls::stop();
  if (parameters_->is_whole()) return nullptr;
  leave_evaluation();
  return std::make_unique<detail::HeldWhole<detail::StageParameters>>(parameters_);
}

Tensor MeshStrategy::gather(const Tensor& parameter) {
  if (!plan_) return FSDPStrategy::gather(parameter);
  if (in_pipeline_)
    throw Error(
        "[strategies.mesh] run.gather was called while the pipeline computes a step, in which ranks compute other "
        "layers at the same time. Call it in a hook before or after the step, on all ranks.");
  const detail::UnseenCalls unseen;
  if (evaluation_ && evaluation_->in_round()) return evaluation_->copy_of(parameter);
  leave_evaluation();
  return parameters_->copy_of(parameter);
}

std::vector<detail::ParameterShards*> MeshStrategy::parameter_shards() const {
  if (!plan_) return FSDPStrategy::parameter_shards();
  std::vector<detail::ParameterShards*> all{shards_ ? shards_->parameter_shards() : nullptr,
                                            evaluation_ ? evaluation_->parameter_shards() : nullptr};
  std::erase(all, nullptr);
  return all;
}

void MeshStrategy::check_same_ranks(LightningModule& module, const std::vector<OptimizerHandle*>& optimizers,
                                    int64_t global_step) {
  FSDPStrategy::check_same_ranks(module, optimizers, global_step);
  if (!plan_ || options_.check_replicas_every < 0) return;
  leave_evaluation();
  parameters_->check_copies();
}

StateTree MeshStrategy::state() const {
  if (!plan_) return FSDPStrategy::state();
  bool waits = false;
  for (const auto& tensor : plan_->tensors) waits |= tensor.value.grad().defined();
  // A rank may train nothing, and other strategies read the state of the first one.
  waits = mesh_->whole().collectives().any(waits);
  return StateTree::map({{"mesh", shape_text()},
                         {"stages", stages_},
                         {"divided", divided_},
                         {"stage_gradients", waits},
                         {"layer_random", layer_random_ ? layer_random_->state() : StateTree(nullptr)}});
}

void MeshStrategy::load_state(const StateTree& state) {
  const bool waits = state.contains("stage_gradients") && state.at("stage_gradients").as_bool();
  if (waits && (!divides_module() || state.at("mesh").as_string() != shape_text()))
    throw CheckpointError(cat(kBetweenBackwardAndStep, "with the mesh ", state.at("mesh").as_string(),
                              ", whose ranks have the gradients of their stages only; the run has the mesh ",
                              shape_text(), ". Resume with the same mesh."));
  if (!divides_module()) return FSDPStrategy::load_state(state);
  loaded_from_others_ = !state.contains("mesh");
  // Another number of ranks gets the state of the first one.
  loaded_random_ = state.contains("layer_random") && state.at("mesh").as_string() == shape_text()
                       ? state.at("layer_random")
                       : StateTree(nullptr);
  // The stages are known when training starts.
  loaded_stages_ = waits && state.contains("stages") ? state.at("stages").as_string() : std::string();
  loaded_divided_ = waits && state.contains("divided") ? state.at("divided").as_string() : std::string();
}

StateTree MeshStrategy::optimizer_state(const Optimizer& optimizer) {
  return optimizers_ ? optimizers_->state(optimizer) : FSDPStrategy::optimizer_state(optimizer);
}

void MeshStrategy::load_optimizer_state(Optimizer& optimizer, const StateTree& state) {
  if (optimizers_) return optimizers_->load_state(optimizer, state);
  // Each rank reads its part when the optimizers are divided. Until then schedules need the rates.
  if (!divides_module() || !detail::take_rates(optimizer, state))
    return FSDPStrategy::load_optimizer_state(optimizer, state);
  whole_states_.insert_or_assign(&optimizer, state);
}

bool MeshStrategy::saves_parts() const {
  return saved_ ? options_.state_dict_type == StateDictType::sharded : FSDPStrategy::saves_parts();
}

std::optional<TensorPart> MeshStrategy::part_to_save(const Tensor& tensor) const {
  leave_evaluation();
  return saved_ ? saved_->of_tensor(tensor) : FSDPStrategy::part_to_save(tensor);
}

StateTree MeshStrategy::optimizer_state_in_parts(const Optimizer& optimizer, std::vector<TensorPart>& parts) {
  return saved_ ? saved_->of_optimizer(optimizer, parts) : FSDPStrategy::optimizer_state_in_parts(optimizer, parts);
}

std::unique_ptr<GraphCapture> MeshStrategy::make_graph_capture() {
  return divides_module() ? nullptr : FSDPStrategy::make_graph_capture();
}

std::string MeshStrategy::describe() const {
  const std::string connection = FSDPStrategy::describe();
  return connection.empty() ? connection : cat(connection, " · mesh: ", shape_text());
}

std::vector<std::pair<Tensor, Tensor>> MeshStrategy::lost_parameters() const {
  std::vector<std::pair<Tensor, Tensor>> lost;
  for (const detail::StageTensor& tensor : plan_->tensors) {
    if (!tensor.is_parameter) continue;
    const Tensor whole = parts_ && parts_->has(tensor.value)
                             ? at::empty(parts_->whole_sizes(tensor.value), at::TensorOptions(at::kMeta))
                             : tensor.value;
    lost.emplace_back(tensor.value, detail::lost_values("mesh", tensor.value, whole.sizes(), whole.strides()));
  }
  return lost;
}

void MeshStrategy::give_back() noexcept {
  if (optimizers_) optimizers_->give_back();
  optimizers_.reset();
  whole_states_.clear();
  saved_.reset();
  evaluation_.reset();
  parameters_.reset();
  executor_.reset();
  layer_random_.reset();
  detail::TensorCalls::stop();
  calls_.reset();
  shards_.reset();
  parts_.reset();
  plan_.reset();
  mesh_.reset();
  agrees_on_random_ = false;
  stepped_.clear();
}

void MeshStrategy::abandon() noexcept {
  FSDPStrategy::abandon();
  give_back();
}

void MeshStrategy::teardown() noexcept {
  std::vector<std::pair<Tensor, Tensor>> lost;
  try {
    // A process may not have the memory for all of them.
    if (parameters_ && is_deferred()) {
      if (evaluation_) evaluation_->abandon();
      lost = lost_parameters();
    } else if (parameters_ && process_group()) {
      leave_evaluation();
      parameters_->gather();
    }
  } catch (const std::exception& error) {
    log::warn("strategies.divided_parameters",
              cat("the parameters are divided among the ranks after the fit, and cannot be read: ", error.what()));
  }
  give_back();
  for (const auto& [value, stands_for_it] : lost) replace_data(value, stands_for_it);
  largest_batch_ = 0;
  FSDPStrategy::teardown();
}

[[maybe_unused]] static const bool registered_mesh = Registry<Strategy>::add<MeshStrategy>(
    "mesh", "Ranks along several axes: shares of the data, parts of layers, and the stages of a pipeline.");

}  // namespace fulgur
