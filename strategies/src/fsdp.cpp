#include "fulgur/strategies/fsdp.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "distributed/shard_groups.h"
#include "distributed/tensor_average.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/half_precision.h"
#include "sharding/gradient_shards.h"
#include "sharding/held_whole.h"
#include "sharding/lost_values.h"
#include "sharding/optimizer_shards.h"
#include "sharding/parameter_shards.h"
#include "sharding/sharded_capture.h"
#include "sharding/unit_reducer.h"
#include "trainer_keys.h"

namespace fulgur {

void FSDPStrategy::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_trainer_key;
  f(sharding, "sharding",
    "What each rank has only a part of. optimizer: the states of the optimizers (ZeRO, stage 1); gradients: they and "
    "the averaged gradients (stage 2); parameters: they and the parameters (stage 3); "
    "hybrid: the same within groups of ranks, and each group has a copy.")
      .required();
  f(units, "units",
    "Patterns of the names of modules whose parameters are exchanged together. auto: the elements of each ModuleList; "
    "the remaining parameters are one unit; []: all are one.");
  f(reduce_dtype, "reduce_dtype",
    "The type in which gradients are exchanged, if they are divided. gradient: that of the gradients.");
  f(shard_size, "shard_size",
    "With sharding: hybrid, the number of ranks that have the parts of a copy; ranks in a row. auto: those of a node.")
      .at_least(1);
  f(offload, "offload",
    "optimizer: the optimizers step in host memory, which has their states; a step sends this rank's part of the "
    "gradients there, and its weights back.");
  f(deferred_init, "deferred_init",
    "With sharding: parameters or hybrid, the model of a config is created without memory for its large parameters, "
    "whose values are computed when they are divided. false: each process creates the whole model.");
  f(state_dict_type, "state_dict_type",
    "Checkpoints have whole tensors, which rank 0 writes (full), or parts of tensors, which all ranks write at the "
    "same "
    "time (sharded). Any number of ranks and any strategy can load either.");
  DDPStrategy::Options::fields(f);
}

namespace {

std::optional<at::ScalarType> sent_dtype(FSDPStrategy::ReduceDtype reduce_dtype) {
  switch (reduce_dtype) {
    case FSDPStrategy::ReduceDtype::float32:
      return at::kFloat;
    case FSDPStrategy::ReduceDtype::bfloat16:
      return at::kBFloat16;
    case FSDPStrategy::ReduceDtype::float16:
      return at::kHalf;
    case FSDPStrategy::ReduceDtype::gradient:
      break;
  }
  return std::nullopt;
}

void check_options(const FSDPStrategy::Options& options) {
  const auto refuse = [&](std::string_view option, std::string_view advice) {
    throw ConfigError(
        cat("[strategies.fsdp] ", option, " has no effect with sharding: ", enum_text(options.sharding), ". ", advice));
  };
  const bool divides_all =
      options.sharding == FSDPStrategy::Sharding::parameters || options.sharding == FSDPStrategy::Sharding::hybrid;
  if (!options.deferred_init && !divides_all)
    refuse("deferred_init: false", "Each process creates the whole model anyway. Remove it.");
  if (options.compression == DDPStrategy::Compression::powersgd || options.local_sgd)
    throw ConfigError(cat("[strategies.fsdp] ", options.local_sgd ? "local_sgd" : "compression: powersgd",
                          " needs whole gradients and weights on each rank. Use strategy: ddp."));
  if (options.sharding == FSDPStrategy::Sharding::optimizer) {
    if (options.reduce_dtype != FSDPStrategy::ReduceDtype::gradient)
      refuse("reduce_dtype", "Use compression: bf16 or fp16, or sharding: gradients.");
    if (options.shard_size.value) refuse("shard_size", "Remove it, or use sharding: hybrid.");
    return;
  }
  if (options.sharding != FSDPStrategy::Sharding::hybrid && options.shard_size.value)
    refuse("shard_size", "Remove it, or use sharding: hybrid.");
  const DDPStrategy::Options defaults;
  if (options.compression != defaults.compression) refuse("compression", "Use reduce_dtype: bfloat16 or float16.");
  if (options.static_graph) refuse("static_graph", "Remove it, or use sharding: optimizer.");
  if (options.gradient_as_bucket_view)
    refuse("gradient_as_bucket_view", "Remove it: gradients are freed when they are exchanged.");
  if (options.bucket_cap_mb.value != defaults.bucket_cap_mb.value)
    refuse("bucket_cap_mb", "Remove it, and set units: the gradients of a unit are exchanged at once.");
}

// Each parameter of the units, and what stands for it after a run in which no process had all of it.
std::vector<std::pair<Tensor, Tensor>> lost_units(const std::vector<std::unique_ptr<detail::FlatUnit>>& units) {
  std::vector<std::pair<Tensor, Tensor>> lost;
  for (const auto& unit : units)
    for (size_t i = 0; i < unit->parameters().size(); ++i) {
      const Tensor& value = unit->parameters()[i].value;
      lost.emplace_back(value, detail::lost_values("fsdp", value, unit->sizes(i), unit->strides(i)));
    }
  return lost;
}

}  // namespace

FSDPStrategy::FSDPStrategy(Options options) : FSDPStrategy(std::move(options), /*divides=*/true) {}
FSDPStrategy::FSDPStrategy(Options options, bool divides)
    : DDPStrategy(static_cast<const DDPStrategy::Options&>(options)), options_(std::move(options)), divides_(divides) {
  check_options(options_);
}
// Optimizers may not exist any more.
FSDPStrategy::~FSDPStrategy() = default;

void FSDPStrategy::configure(StrategySetup setup) {
  if (divides_all() && setup.syncs_after_backward)
    throw ConfigError(
        "[strategies.fsdp] auto_micro_batch repeats parts of a batch on one rank alone, and with sharding: parameters "
        "all "
        "ranks read the same units. Use sharding: gradients, or auto_micro_batch: false.");
  starts_before_forward_ = setup.starts_before_forward;
  DDPStrategy::configure(std::move(setup));
  if (divides_ && world_size() == 1)
    log::warn("strategies.one_process",
              options_.offload == Offload::none || options_.process_group_backend == "nccl"
                  ? "fsdp divides nothing in a run of one process. Set trainer.devices or num_nodes"
                  : "fsdp divides nothing in a run of one process, and offload moves nothing to host memory. Set "
                    "trainer.devices or num_nodes; for one GPU, set process_group_backend: nccl");
  if (divides_ && options_.offload != Offload::none && device().is_cpu())
    log::warn("strategies.offload_on_cpu",
              "offload has no effect on a CPU, whose states are in host memory. Remove it, or use a GPU");
}

void FSDPStrategy::start_training(LightningModule& module, const std::vector<Optimizer*>& optimizers) {
  // It is called again when parameters are frozen or unfrozen.
  optimizers_ = optimizers;
  if (divides_ && process_group() && !shards_) divide(module);
  DDPStrategy::start_training(module, optimizers);
}

void FSDPStrategy::before_evaluation(LightningModule& module) {
  // A run that only evaluates.
  if (divides_all() && starts_before_forward_ && process_group() && !shards_) {
    // Its tensors have no versions, which parameters need.
    const c10::InferenceMode normal(false);
    divide(module);
  }
  // In manual optimization a training step may not have ended with an optimizer's step.
  if (parameters_) parameters_->pause();
  DDPStrategy::before_evaluation(module);
}

void FSDPStrategy::after_evaluation(LightningModule& module) {
  DDPStrategy::after_evaluation(module);
  if (parameters_) parameters_->resume();
}

void FSDPStrategy::divide_for_evaluation(LightningModule& module, const std::optional<std::vector<std::string>>& units,
                                         std::string instead) {
  if (shards_) return;
  // Tensors of this mode have no versions, which parameters need.
  const c10::InferenceMode normal(false);
  groups_ = std::make_unique<detail::ShardGroups>(*process_group());
  parameters_ = std::make_shared<detail::ParameterShards>(
      *groups_, detail::UnitNaming{.strategy = name(), .instead = std::move(instead)});
  shards_ = std::make_shared<detail::OptimizerShards>(
      module, std::vector<Optimizer*>(), units, *groups_,
      detail::OptimizerShards::Divided{.gradients = true, .parameters = true}, device(),
      [&](detail::FlatUnit& unit) { parameters_->add(unit); }, std::map<const Optimizer*, StateTree>());
  move_undivided(module);
  describe_units(name(), "evaluation: units");
}

void FSDPStrategy::divide(LightningModule& module) {
  groups_ = options_.sharding == Sharding::hybrid
                ? std::make_unique<detail::ShardGroups>(
                      *process_group(), options_.shard_size.value.value_or(place().local_world_size), "shard_size")
                : std::make_unique<detail::ShardGroups>(*process_group());
  auto parameters = divides_all() ? std::make_shared<detail::ParameterShards>(*groups_) : nullptr;
  auto* const half = dynamic_cast<HalfPrecision*>(&precision());
  MasterWeights* const masters = half ? half->master_weights() : nullptr;
  detail::OptimizerShards::Divided divided{.gradients = divides_gradients(),
                                           .parameters = divides_all(),
                                           .in_host_memory = options_.offload == Offload::optimizer};
  if (masters && !divides_gradients() && precision().loss_scale())
    throw ConfigError(
        "[strategies.fsdp] loss_scaling needs float32 gradients to divide by the scale, and with sharding: optimizer "
        "those of the module are float16. Use sharding: gradients, or loss_scaling: false.");
  if (masters) divided.masters = detail::take_copies(*masters, optimizers_, loaded_states_);
  shards_ = std::make_shared<detail::OptimizerShards>(
      module, optimizers_, options_.units.value, *groups_, divided, device(),
      [&](detail::FlatUnit& unit) {
        if (parameters) parameters->add(unit);
      },
      std::exchange(loaded_states_, {}));
  if (masters) masters->follow(shards_);
  parameters_ = std::move(parameters);
  move_undivided(module);
  take_loaded_gradients();
  describe_units("fsdp", cat("sharding: ", enum_text(options_.sharding)));
}

bool FSDPStrategy::divides_at_start() const { return starts_before_forward_ && divides_parameters(); }

bool FSDPStrategy::starts_on_host() const { return divides_all() && divides_at_start() && !device().is_cpu(); }

void FSDPStrategy::place_module(LightningModule& module) {
  const auto parameters = unique_parameters(module);
  is_deferred_ = divides_at_start() && std::ranges::any_of(parameters, [](const NamedParameter& each) {
                   return stored_values(each.value) != nullptr;
                 });
  if (!is_deferred_ && !starts_on_host()) return DDPStrategy::place_module(module);
  precision().set_device(device());
  precision().convert_module(module);
  if (starts_on_host()) on_host_ = &module;
  move_values(module, on_host_ ? at::Device(at::kCPU) : device());
  for (Tensor& buffer : module.buffers())
    if (buffer.defined()) buffer.set_data(buffer.to(device()));
}

void FSDPStrategy::move_values(LightningModule& module, at::Device device) {
  const at::NoGradGuard no_grad;
  const auto move = [device](Tensor& value) {
    if (value.defined() && !stored_values(value)) value.set_data(value.to(device));
  };
  for (Tensor& parameter : module.parameters()) move(parameter);
  for (Tensor& buffer : module.buffers()) move(buffer);
}

void FSDPStrategy::move_undivided(LightningModule& module) const {
  const at::NoGradGuard no_grad;
  for (auto& [name, value] : unique_parameters(module))
    if (!shards_->has(value) && value.device() != device()) value.set_data(value.to(device()));
}

void FSDPStrategy::describe_units(std::string_view what, std::string_view cause) const {
  int64_t largest = 0;
  for (const auto& unit : shards_->units()) largest = std::max(largest, static_cast<int64_t>(unit->buffer().nbytes()));
  const auto count = static_cast<int64_t>(shards_->units().size());
  if (rank() == 0)
    log::info(cat(what, ": ", cause, " · ", counted(count, "unit"), ", the largest with ",
                  format_fixed(static_cast<double>(largest) / 1e6, 1), " MB"));
  if (parameters_ && count == 1)
    log::warn("strategies.one_unit", cat(what, " gathers all parameters at once, since they are one unit, so ", cause,
                                         " saves little memory. Name parts of the module in units"));
}

void FSDPStrategy::before_forward(LightningModule& module, GradSync sync) {
  check_memory();
  DDPStrategy::before_forward(module, sync);
  if (parameters_) parameters_->begin_forward();
}

void FSDPStrategy::backward(LightningModule& module, const Tensor& loss, GradSync sync,
                            const BackwardOptions& options) {
  if (parameters_) parameters_->begin_backward();
  DDPStrategy::backward(module, loss, sync, options);
  // In manual optimization a training step may compute several forwards.
  if (parameters_) parameters_->end_backward(/*follows=*/!module.automatic_optimization());
}

void FSDPStrategy::skip_backward(LightningModule&) {
  if (parameters_) parameters_->divide();
}

void FSDPStrategy::after_step(LightningModule& module, int64_t global_step) {
  // A callback that one rank alone calls must not wait for the others.
  if (parameters_) parameters_->divide();
  for (detail::ParameterShards* shards : parameter_shards()) shards->compare_order();
  DDPStrategy::after_step(module, global_step);
  const int64_t every = options_.check_replicas_every;
  if (parameters_ && every > 0 && global_step % every == 0) parameters_->check_copies();
}

void FSDPStrategy::check_same_ranks(LightningModule& module, const std::vector<OptimizerHandle*>& optimizers,
                                    int64_t global_step) {
  check_order();
  DDPStrategy::check_same_ranks(module, optimizers, global_step);
  if (parameters_ && options_.check_replicas_every >= 0) parameters_->check_copies();
}

std::vector<detail::ParameterShards*> FSDPStrategy::parameter_shards() const {
  if (!parameters_) return {};
  return {parameters_.get()};
}

void FSDPStrategy::check_order() {
  for (detail::ParameterShards* shards : parameter_shards()) shards->check_order();
}

void FSDPStrategy::check_memory() const {
  if (!shards_) return;
  for (const auto& unit : shards_->units())
    for (const auto& [name, value] : unit->parameters())
      if (value.storage().unsafeGetStorageImpl() != unit->buffer().storage().unsafeGetStorageImpl() &&
          !(parameters_ && parameters_->holds(value)))
        throw Error(
            cat("[strategies.fsdp] '", escape_controls(name),
                "' has memory other than that of its unit, which the optimizer steps: something has replaced it "
                "with set_data(). Copy the values into it: parameter.copy_(values) under at::NoGradGuard."));
}

void FSDPStrategy::begin_evaluation_round(bool computes, bool all_compute) {
  parameters_->begin_evaluation(computes, all_compute);
}

void FSDPStrategy::end_evaluation_round() { parameters_->end_evaluation(); }

std::unique_ptr<WholeParameters> FSDPStrategy::whole_parameters() {
  if (!parameters_) return nullptr;
  return std::make_unique<detail::HeldWhole<detail::ParameterShards>>(parameters_);
}

Tensor FSDPStrategy::gather(const Tensor& parameter) {
  if (!parameters_) return DDPStrategy::gather(parameter);
  if (!shards_->has(parameter)) return parameter.detach().clone();
  const auto [unit, index] = shards_->place_of(parameter);
  return parameters_->copy_of(unit, index);
}

void FSDPStrategy::optimizer_step(Optimizer& optimizer, const Closure& closure,
                                  const std::optional<Tensor>& found_inf) {
  if (!shards_) return DDPStrategy::optimizer_step(optimizer, closure, found_inf);
  if (parameters_ && parameters_->is_held())
    throw Error(cat("[strategies.", name(),
                    "] parameters are whole in an optimizer's step, which changes this rank's parts of them: something "
                    "keeps the result of run.run_weights().whole_parameters() or of Fabric::evaluation(). Release it "
                    "before the step."));
  if (divides_gradients()) {
    if (parameters_) parameters_->before_step();
    shards_->before_step(optimizer);
    DDPStrategy::optimizer_step(optimizer, closure, found_inf);
    return shards_->gather_parameters(optimizer);
  }
  shards_->take_gradients(optimizer);
  struct Drop {
    const detail::OptimizerShards& shards;
    Optimizer& optimizer;
    ~Drop() { shards.drop_gradients(optimizer); }
  } const drop{*shards_, optimizer};
  shards_->before_step(optimizer);
  DDPStrategy::optimizer_step(optimizer, closure, found_inf);
  shards_->gather_parameters(optimizer);
}

std::unique_ptr<detail::GradientExchange> FSDPStrategy::make_reducer(std::vector<NamedParameter> parameters,
                                                                     bool find_unused_parameters,
                                                                     const std::vector<std::vector<int64_t>>& buckets) {
  if (!shards_ || !divides_gradients())
    return DDPStrategy::make_reducer(std::move(parameters), find_unused_parameters, buckets);
  std::erase_if(parameters, [&](const NamedParameter& parameter) { return !shards_->steps(parameter.value); });
  return std::make_unique<detail::UnitReducer>(*groups_, *shards_, std::move(parameters),
                                               sent_dtype(options_.reduce_dtype), find_unused_parameters);
}

void FSDPStrategy::average_gradients(Optimizer& optimizer) {
  if (!shards_ || !divides_gradients()) return DDPStrategy::average_gradients(optimizer);
  detail::GradientShards(*groups_, *shards_, sent_dtype(options_.reduce_dtype))
      .average(detail::parameters_of(optimizer));
}

StateTree FSDPStrategy::state() const {
  StateTree state = DDPStrategy::state();
  if (!shards_ || !divides_gradients()) return state;
  StateTree gradients;
  for (size_t unit = 0; unit < shards_->units().size(); ++unit) {
    const auto& parameters = shards_->units()[unit]->parameters();
    for (size_t i = 0; i < parameters.size(); ++i)
      if (const Tensor& shard = shards_->shard(unit, i); shard.defined() && shard.grad().defined())
        gradients[parameters[i].name] = shard.grad();
  }
  if (gradients.is_map() && !gradients.as_map().empty()) {
    state["gradient_shards"] = std::move(gradients);
    state["sharding"] = std::string(enum_text(options_.sharding));
  }
  return state;
}

void FSDPStrategy::load_state(const StateTree& state) {
  DDPStrategy::load_state(state);
  loaded_gradients_ = {};
  if (!state.contains("gradient_shards")) return;
  if (!divides_ || state.at("world_size").as_int() != world_size() ||
      state.at("sharding").as_string() != enum_text(options_.sharding))
    throw CheckpointError(
        cat("[strategies.fsdp] the checkpoint was saved between a backward and its step by ",
            state.at("world_size").as_int(), " ranks with sharding: ", state.at("sharding").as_string(),
            ", and its gradients are divided among them. Resume with the same number of ranks and the same sharding."));
  loaded_gradients_ = state.at("gradient_shards");
}

void FSDPStrategy::take_loaded_gradients() {
  const StateTree loaded = std::exchange(loaded_gradients_, {});
  if (!loaded.is_map()) return;
  const at::NoGradGuard no_grad;
  for (size_t unit = 0; unit < shards_->units().size(); ++unit) {
    const auto& parameters = shards_->units()[unit]->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!loaded.contains(parameters[i].name)) continue;
      Tensor& shard = shards_->shard(unit, i);
      const Tensor& gradient = loaded.at(parameters[i].name).tensor();
      if (gradient.sizes() != shard.sizes())
        throw CheckpointError(
            cat("[strategies.fsdp] the checkpoint was saved between a backward and its step, with other "
                "units: this rank had ",
                gradient.numel(), " gradients of '", escape_controls(parameters[i].name), "', and has ", shard.numel(),
                " of its elements. Resume with the same units."));
      shard.mutable_grad() = at::empty_like(shard).copy_(gradient);
    }
  }
}

StateTree FSDPStrategy::optimizer_state(const Optimizer& optimizer) {
  return shards_ ? shards_->state(optimizer) : DDPStrategy::optimizer_state(optimizer);
}

void FSDPStrategy::load_optimizer_state(Optimizer& optimizer, const StateTree& state) {
  if (shards_) return shards_->load_state(optimizer, state);
  // Each rank reads its part when the optimizers are divided. Until then schedules need the rates.
  if (!divides_ || !process_group() || !detail::take_rates(optimizer, state))
    return DDPStrategy::load_optimizer_state(optimizer, state);
  loaded_states_.insert_or_assign(&optimizer, state);
}

std::optional<TensorPart> FSDPStrategy::part_to_save(const Tensor& parameter) const {
  if (!shards_->has(parameter)) return std::nullopt;
  const auto [unit, index] = shards_->place_of(parameter);
  // What was written to a parameter that is whole now is not in the part yet.
  const bool is_there = !parameters_ || parameters_->has_whole(unit);
  return shards_->part_of(unit, index, is_there);
}

StateTree FSDPStrategy::optimizer_state_in_parts(const Optimizer& optimizer, std::vector<TensorPart>& parts) {
  return shards_->state_in_parts(optimizer, parts);
}

std::unique_ptr<GraphCapture> FSDPStrategy::make_graph_capture() {
  if (divides_ && device().is_cpu()) return nullptr;
  auto graph = DDPStrategy::make_graph_capture();
  if (!graph || !parameters_) return graph;
  return detail::make_sharded_capture(std::move(graph), parameters_);
}

void FSDPStrategy::give_back() noexcept {
  parameters_.reset();
  if (shards_)
    for (Optimizer* optimizer : optimizers_) optimizer->step_whole_parameters();
  optimizers_.clear();
  loaded_states_.clear();
  shards_.reset();
  groups_.reset();
}

void FSDPStrategy::abandon() noexcept {
  if (parameters_) parameters_->abandon();
  DDPStrategy::abandon();
  give_back();
}

void FSDPStrategy::teardown() noexcept {
  try {
    // A process may not have the memory for all of them.
    if (parameters_ && is_deferred_)
      parameters_->divide();
    else if (parameters_ && process_group())
      parameters_->give_back(starts_on_host() ? at::Device(at::kCPU) : device());
  } catch (const std::exception& error) {
    log::warn("strategies.divided_parameters",
              cat("the parameters are divided among the ranks after the fit, and cannot be read: ", error.what()));
  }
  std::vector<std::pair<Tensor, Tensor>> lost;
  if (parameters_ && is_deferred_) lost = lost_units(shards_->units());
  give_back();
  for (const auto& [value, stands_for_it] : lost) replace_data(value, stands_for_it);
  // What is not divided, too: the module is on one device.
  if (LightningModule* const module = std::exchange(on_host_, nullptr); module && process_group()) {
    try {
      move_values(*module, at::kCPU);
    } catch (const std::exception& error) {
      log::warn("strategies.divided_parameters", cat("the module is not on one device after the fit: ", error.what()));
    }
  }
  DDPStrategy::teardown();
}

[[maybe_unused]] static const bool registered_fsdp = Registry<Strategy>::add<FSDPStrategy>(
    "fsdp", "Sharded data parallel: like ddp, and each rank has only its part of what the others have too.");

}  // namespace fulgur
