#include "fulgur/strategies/ddp.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <set>

#include "distributed/backend_rules.h"
#include "distributed/gradient_reducer.h"
#include "distributed/process_group_impl.h"
#include "distributed/recorded_exchange.h"
#include "distributed/same_ranks.h"
#include "distributed/tensor_average.h"
#include "distributed/unsynced_gradients.h"
#include "distributed/watched_capture.h"
#include "fulgur/capture/step_capture.h"
#include "fulgur/core/device/accelerator.h"
#include "fulgur/core/device/recorded_step.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/sync_norm.h"
#include "fulgur/strategies/cluster_environment.h"
#include "slow_networks/bucket_size.h"
#include "slow_networks/local_sgd.h"
#include "slow_networks/power_sgd.h"
#include "trainer_keys.h"

namespace fulgur {
namespace {

constexpr size_t kBroadcastBytes = size_t{250} << 20;

// Integers and booleans too: a counter in a buffer is also state.
std::vector<Tensor> own_buffers(const LightningModule& module) {
  std::vector<Tensor> buffers;
  for (const Tensor& buffer : module.buffers())
    if (buffer.defined()) buffers.push_back(buffer.detach());
  return buffers;
}

}  // namespace

void DDPStrategy::Options::fields(Fields& f) {
  f.hint_for_unknown = detail::hint_for_trainer_key;
  f(process_group_backend, "process_group_backend",
    "Backend for gradients. auto: nccl for GPUs, gloo for the CPU. If set explicitly, even a single process forms a "
    "group.")
      .one_of({"auto", "gloo", "nccl", "mpi"});
  f(cluster_environment, "cluster_environment",
    "Where the rank of this process comes from. auto: the first that is detected, in the order of docs/distributed.md.")
      .one_of(cluster_environment_names());
  f(find_unused_parameters, "find_unused_parameters",
    "Allows parameters without a gradient in some steps; costs a traversal of the graph.");
  f(static_graph, "static_graph",
    "Assumes that every step uses the same parameters, and searches for unused ones only in the first step.");
  f(gradient_as_bucket_view, "gradient_as_bucket_view",
    "Makes gradients views of the communication buckets, which saves a copy and memory.");
  f(bucket_cap_mb, "bucket_cap_mb",
    "Bucket size: MiB of gradients sent at once. auto: measured at the start, from the latency and the bandwidth.")
      .at_least(1e-6);
  f(broadcast_buffers, "broadcast_buffers",
    "Broadcasts rank 0's buffers (running statistics) before each forward that follows an exchange.");
  f(compression, "compression",
    "Sends gradients in half the bytes, with less precision; powersgd: as factors of low rank.");
  f(powersgd, "powersgd", "With compression: powersgd, what is sent.");
  f(local_sgd, "local_sgd",
    "Ranks train weights that differ, and average them every few steps, instead of gradients in each.");
  f(start_timeout_s, "start_timeout_s",
    "Seconds for all ranks to connect, and for each exchange until the end of the first step, or, outside a fit, until "
    "the start of the evaluation.")
      .range(0.001, kLongestTimeout);
  f(timeout_s, "timeout_s",
    "Seconds for each exchange from then on. Must exceed the longest pause of one rank (a slow batch, a save).")
      .range(0.001, kLongestTimeout);
  f(check_replicas_every, "check_replicas_every",
    "Steps after which all ranks compare weights, bit by bit, and learning rates. They are also compared at the end of "
    "each epoch and of the fit, and in saves, except asynchronous ones from a GPU; 0: only then; -1: never.")
      .at_least(-1);
  f(max_restarts, "max_restarts",
    "Number of times the group of processes is restarted after a failure, from the newest checkpoint.")
      .at_least(0);
}

DDPStrategy::DDPStrategy(Options options) : options_(std::move(options)) { check_slow_networks(); }
DDPStrategy::~DDPStrategy() { DDPStrategy::teardown(); }

void DDPStrategy::configure(StrategySetup setup) {
  precision_ = std::move(setup.precision);
  const std::string precision = precision_->name();
  if (const bool power = options_.compression == Compression::powersgd;
      (power || options_.local_sgd) && precision.find("16") != precision.npos && precision != "bf16-mixed")
    throw ConfigError(cat("[strategies.ddp] ", power ? "compression: powersgd" : "local_sgd", " keeps ",
                          power ? "errors of gradients" : "weights of each rank", " in float32; precision ", precision,
                          power ? " scales or rounds gradients" : " has other weights or scales",
                          ". Use bf16-mixed or 32-true."));
  sync_batchnorm_ = setup.sync_batchnorm;
  syncs_after_backward_ = setup.syncs_after_backward;
  place_ = detect_cluster_environment(process_environment(), options_.cluster_environment).value_or(ProcessPlace{});
  if (place_.environment == "none" && (setup.devices.size() > 1 || setup.num_nodes > 1))
    throw DistributedError(cat("[strategies.", name(), "] ",
                               static_cast<int64_t>(setup.devices.size()) * setup.num_nodes,
                               " processes are requested (devices × num_nodes), but this process was not started by a "
                               "launcher that sets its rank. Run it with `trainer`, which starts them itself, or with "
                               "torchrun --no-python, srun or mpirun (docs/distributed.md)."));
  const auto devices = static_cast<int64_t>(setup.devices.size());
  const bool nodes_are_known = place_.environment != "mpi" && setup.num_nodes != 1;
  require_place(place_, setup.devices_are_auto ? place_.local_world_size : devices,
                nodes_are_known ? setup.num_nodes : place_.num_nodes);
  const at::Device first = setup.devices.front();
  if (!first.is_cpu() && place_.local_rank >= devices)
    throw DistributedError(cat("[strategies.", name(), "] local rank ", place_.local_rank, " has no GPU: ", devices,
                               " are visible, but ", place_.local_world_size, " processes run on this node."));
  device_ = first.is_cpu() ? first : setup.devices[static_cast<size_t>(place_.local_rank)];
  if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).setDevice(device_);
  const std::string backend = detail::choose_backend(options_.process_group_backend, first.is_cpu() ? "cpu" : "cuda");
  // A rank that fails after it has connected may leave others waiting for it. With mpi, the place is known later.
  if (place_.environment != "mpi") check_ranks(place_.world_size);
  // A backend set explicitly should be exercised, even with one process.
  if (place_.world_size > 1 || options_.process_group_backend != "auto")
    group_ = ProcessGroup::connect(place_, {.backend = backend,
                                            .device = device_,
                                            .start_timeout_s = options_.start_timeout_s,
                                            .timeout_s = options_.timeout_s});
  if (place_.world_size == 1 && (options_.local_sgd || options_.compression == Compression::powersgd))
    log::warn("strategies.one_process", cat("ddp: ", options_.local_sgd ? "local_sgd" : "compression: powersgd",
                                            " does nothing in a run of one process. Set trainer.devices or num_nodes"));
  if (group_) place_ = group_->place();
  if (place_.environment == "mpi") check_ranks(place_.world_size);
  if (!group_) return;
  require_place(place_, place_.local_world_size, setup.num_nodes == 1 ? place_.num_nodes : setup.num_nodes);
}

Collectives& DDPStrategy::collectives() {
  if (group_) return group_->collectives();
  return alone_;
}

std::string DDPStrategy::describe() const {
  return group_ ? cat("rank ", place_.rank, " of ", place_.world_size, " (", place_.environment, ") · ",
                      group_->describe())
                : std::string();
}

void DDPStrategy::attach(LightningModule& module) {
  module_ = &module;
  place_module(module);
  if (sync_batchnorm_) {
    const std::vector<std::string> fixed = nn::unsyncable_batch_norms(module);
    if (!fixed.empty())
      throw ConfigError(
          cat("[strategies.", name(),
              "] sync_batchnorm: true needs layers that can be switched; these are torch::nn::BatchNorm: ", join(fixed),
              ". Use fulgur::nn::BatchNorm1d, 2d or 3d, which take the same options and weights."));
  }
  if (!group_) return;
  if (device_.is_cpu()) recorded_ = std::make_unique<detail::RecordedExchange>(*group_);
  if (sync_batchnorm_ && nn::sync_norms_over(module, &group_->collectives()) == 0)
    log::warn("strategies.nothing_to_sync", "sync_batchnorm is true, but the module has no batch norm layer");
  std::vector<Tensor> tensors;
  for (const auto& [name, value] : unique_parameters(module))
    if (!stored_values(value)) tensors.push_back(value.detach());
  for (Tensor& buffer : own_buffers(module)) tensors.push_back(std::move(buffer));
  take_from_rank_0(tensors);
}

void DDPStrategy::take_from_rank_0(const std::vector<Tensor>& tensors) {
  if (tensors.empty()) return;
  run_exchange(*group_, name().c_str(),
               [&] { c10d::broadcast_coalesced(group_->impl().group, tensors, kBroadcastBytes, 0); });
}

void DDPStrategy::start_training(LightningModule& module, const std::vector<Optimizer*>& optimizers) {
  if (!group_) return;
  optimizers_ = optimizers;
  std::vector<std::vector<NamedParameter>>& shares = shares_to_reduce_;
  shares.clear();
  const auto all = unique_parameters(module);
  prepare_slow_networks(all);
  const auto learns = [&](const Tensor& value) { return value.requires_grad(); };
  if (module.automatic_optimization() || optimizers.size() < 2) {
    auto& share = shares.emplace_back();
    for (const NamedParameter& parameter : all)
      if (learns(parameter.value)) share.push_back(parameter);
  } else {
    // Each optimizer has its own backward, and one Reducer supports one backward per step.
    std::set<const void*> taken;
    for (const Optimizer* optimizer : optimizers) {
      auto& share = shares.emplace_back();
      for (const ParamGroup& group : optimizer->groups())
        for (size_t i = 0; i < group.params.size(); ++i) {
          const Tensor& parameter = group.of_module()[i];
          const std::string name = i < group.names.size() ? group.names[i] : std::to_string(i);
          if (!taken.insert(parameter.unsafeGetTensorImpl()).second)
            throw ConfigError(cat("[strategies.", this->name(),
                                  "] with several optimizers each parameter may be in only one; '", name, "' of ",
                                  optimizer->name(), " is in another too."));
          if (learns(parameter)) share.push_back({name, parameter});
        }
    }
  }
  std::erase_if(shares, [](const auto& share) { return share.empty(); });
  learning_.clear();
  for (const NamedParameter& parameter : all) learning_.emplace_back(parameter.value, learns(parameter.value));
  reducers_.clear();
  if (syncs_after_backward_) {
    std::vector<Tensor> to_average;
    for (const auto& share : shares)
      for (const NamedParameter& parameter : share) to_average.push_back(parameter.value);
    average_ = std::make_unique<detail::TensorAverage>(*options_.bucket_cap_mb.value, options_.compression);
    average_->reserve(to_average);
  } else if (!options_.static_graph) {
    make_reducers();
  }
  if (place_.world_size > 1 && !module.automatic_optimization())
    unsynced_ = std::make_unique<detail::UnsyncedGradients>(all);
}

void DDPStrategy::check_slow_networks() const {
  const bool power = options_.compression == Compression::powersgd;
  const auto refuse = [](std::string_view what) { throw ConfigError(cat("[strategies.ddp] ", what)); };
  if (!power && options_.powersgd != PowerSgdOptions())
    refuse("powersgd has no effect without compression: powersgd. Set it, or remove powersgd.");
  if (power && options_.static_graph)
    refuse(
        "static_graph has no effect with compression: powersgd, which exchanges gradients after backward. Remove it.");
  if (power && options_.gradient_as_bucket_view)
    refuse("gradient_as_bucket_view has no effect with compression: powersgd, which has no buckets. Remove it.");
  if (!power && options_.compression != Compression::none && options_.local_sgd &&
      options_.local_sgd->group_size.value == 1 && options_.local_sgd->start_step == 0)
    refuse(
        "compression has no effect with local_sgd if ranks exchange no gradients. Remove it, or set group_size or "
        "start_step.");
  if (power && options_.local_sgd)
    refuse(
        "compression: powersgd and local_sgd do not work together: what one rank has not sent, the average of the "
        "weights would take twice. Use one of them.");
}

// It is called again when parameters are frozen or unfrozen, and when local steps begin.
void DDPStrategy::prepare_slow_networks(const std::vector<NamedParameter>& parameters) {
  if (options_.bucket_cap_mb.is_auto() && place_.world_size == 1) options_.bucket_cap_mb = Options().bucket_cap_mb;
  if (options_.bucket_cap_mb.is_auto()) {
    bucket_cap_was_auto_ = true;
    const detail::ExchangeCost cost = detail::measure_exchange(*group_, device_);
    options_.bucket_cap_mb = detail::bucket_size(cost);
    if (place_.rank == 0)
      log::info(cat("ddp: bucket_cap_mb is ", format_fixed(*options_.bucket_cap_mb.value, 1),
                    ": a sum over the ranks takes ", format_fixed(cost.latency_s * 1e3, 3), " ms, and one second for ",
                    format_fixed(cost.bytes_per_second / 1024 / 1024, 0), " MiB"));
  }
  const double bucket_cap_mb = *options_.bucket_cap_mb.value;
  if (options_.compression == Compression::powersgd && place_.world_size > 1) {
    const bool begins = !power_;
    if (begins) power_ = std::make_unique<detail::PowerSgd>(options_.powersgd, bucket_cap_mb);
    power_->start(parameters, std::exchange(loaded_power_, {}));
    if (begins && power_->has_nothing_to_do())
      log::warn("strategies.nothing_to_compress",
                "compression: powersgd has no matrix that its factors make smaller: all gradients are sent whole. "
                "Lower powersgd.matrix_approximation_rank or min_compression_rate, or use another compression");
    else if (begins && place_.rank == 0)
      log::info(cat("powersgd: from step ", options_.powersgd.start_step, " on, a step sends ", power_->describe()));
  }
  if (options_.local_sgd && place_.world_size > 1) {
    for (const Optimizer* optimizer : optimizers_)
      if (optimizer->needs_closure())
        throw ConfigError(cat("[strategies.ddp] ", optimizer->name(),
                              " evaluates the loss of all ranks several times in a step, as often as their common "
                              "weights need; with local_sgd, each rank has its own. Use another optimizer."));
    if (!local_) {
      local_ = std::make_shared<detail::LocalSgd>(*options_.local_sgd, bucket_cap_mb, *group_);
      int64_t bytes = 0;
      for (const NamedParameter& parameter : parameters) bytes += static_cast<int64_t>(parameter.value.nbytes());
      if (place_.rank == 0)
        log::info(cat("local_sgd: from step ", options_.local_sgd->start_step, " on, ranks average their weights, ",
                      format_fixed(static_cast<double>(bytes) / 1e6, 1), " MB, every ",
                      counted(options_.local_sgd->period, "step")));
    }
    local_->start(parameters, optimizers_, steps_done_, std::exchange(loaded_local_, {}));
  }
  reducers_are_local_ = is_local_step();
}

bool DDPStrategy::is_local_step() const { return local_ && local_->is_local(steps_done_); }

detail::C10dCollectives* DDPStrategy::exchange_ranks() const {
  return is_local_step() ? local_->group() : &*group_->impl().collectives;
}

void DDPStrategy::make_reducers() {
  if (exchange_ranks() == nullptr) return shares_to_reduce_.clear();
  std::vector<std::vector<NamedParameter>> shares = std::exchange(shares_to_reduce_, {});
  const bool fits = loaded_buckets_fit(shares);
  // Parameters unused here belong to other optimizers' backwards, so that is not an error.
  const bool find_unused = options_.find_unused_parameters || shares.size() > 1;
  for (size_t i = 0; i < shares.size(); ++i) {
    detail::Buckets buckets;
    if (fits) buckets = loaded_buckets_[i];
    reducers_.push_back(make_reducer(std::move(shares[i]), find_unused, buckets));
  }
  // Others may fit once a callback has frozen the parameters that were frozen when they were saved.
  if (fits) loaded_buckets_.clear();
}

std::unique_ptr<detail::GradientExchange> DDPStrategy::make_reducer(std::vector<NamedParameter> parameters,
                                                                    bool find_unused_parameters,
                                                                    const std::vector<std::vector<int64_t>>& buckets) {
  detail::C10dCollectives& ranks = *exchange_ranks();
  if (power_)
    return std::make_unique<detail::PowerSgdExchange>(*power_, std::move(parameters), find_unused_parameters,
                                                      steps_done_, ranks);
  Options options = options_;
  options.find_unused_parameters = find_unused_parameters;
  return std::make_unique<detail::GradientReducer>(ranks, std::move(parameters), options, buckets);
}

bool DDPStrategy::loaded_buckets_fit(const std::vector<std::vector<NamedParameter>>& shares) const {
  return std::equal(loaded_buckets_.begin(), loaded_buckets_.end(), shares.begin(), shares.end(),
                    [](const detail::Buckets& buckets, const std::vector<NamedParameter>& share) {
                      size_t count = 0;
                      for (const auto& bucket : buckets) count += bucket.size();
                      return count == share.size();
                    });
}

void DDPStrategy::follow_frozen_parameters(LightningModule& module) {
  // In manual optimization, parameters are toggled for each optimizer.
  const bool changed = module.automatic_optimization() &&
                       std::any_of(learning_.begin(), learning_.end(),
                                   [](const auto& item) { return item.first.requires_grad() != item.second; });
  if (changed || reducers_are_local_ != is_local_step()) start_training(module, std::vector(optimizers_));
}

void DDPStrategy::before_forward(LightningModule& module, GradSync sync) {
  if (!group_) return;
  group_->collectives().set_activity("training_step");
  if (local_) local_->before_step(steps_done_);
  run_exchange(*group_, name().c_str(), [&] {
    follow_frozen_parameters(module);
    if (sync == GradSync::now && !shares_to_reduce_.empty()) make_reducers();
    for (auto& reducer : reducers_) reducer->before_forward();
  });
  put_back_buffers(module);
  const bool exchanges = sync == GradSync::now && !is_local_step();
  if (options_.broadcast_buffers && std::exchange(syncs_buffers_next_, exchanges)) take_buffers_from_rank_0(module);
}

void DDPStrategy::take_buffers_from_rank_0(const LightningModule& module) {
  const std::vector<Tensor> buffers = own_buffers(module);
  // Of ranks that capture steps, each may capture others.
  if (recorded_) return recorded_->take_from_rank_0(buffers);
  take_from_rank_0(buffers);
}

bool DDPStrategy::has_own_buffers() const {
  return group_ && place_.rank > 0 && !(options_.broadcast_buffers && syncs_buffers_next_);
}

void DDPStrategy::put_back_buffers(const LightningModule& module) {
  if (kept_buffers_.empty()) return;
  const std::vector<Tensor> buffers = own_buffers(module);
  // A module that replaced its buffers in an evaluation may have a different number of them now.
  if (buffers.size() == kept_buffers_.size())
    for (size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(kept_buffers_[i]);
  kept_buffers_.clear();
}

void DDPStrategy::before_evaluation(LightningModule& module) {
  if (!group_) return;
  group_->collectives().set_activity("evaluation");
  // In a fit, the first step, which may be slow, is still to come; outside a fit, start-up is over.
  if (reducers_.empty() && shares_to_reduce_.empty()) group_->use_short_timeout();
  if (local_) local_->show_average();
  if (!options_.broadcast_buffers) return;
  // Within a window each rank continues with its own buffers.
  if (has_own_buffers() && kept_buffers_.empty())
    for (const Tensor& buffer : own_buffers(module)) kept_buffers_.push_back(buffer.clone());
  take_from_rank_0(own_buffers(module));
}

void DDPStrategy::after_evaluation(LightningModule&) {
  if (local_) local_->show_own();
}

Tensor DDPStrategy::gather(const Tensor& parameter) {
  return local_ && local_->has_own_weights() ? local_->average_of(parameter) : parameter.detach().clone();
}

std::unique_ptr<WholeParameters> DDPStrategy::whole_parameters() {
  if (!local_ || !local_->has_own_weights()) return nullptr;
  struct Average final : WholeParameters {
    explicit Average(std::shared_ptr<detail::LocalSgd> of) : local(std::move(of)) { local->show_average(); }
    ~Average() override { local->show_own(); }
    Average(const Average&) = delete;
    Average& operator=(const Average&) = delete;
    std::shared_ptr<detail::LocalSgd> local;
  };
  return std::make_unique<Average>(local_);
}

void DDPStrategy::backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) {
  if (!group_) return module.backward(loss, options);
  if (unsynced_) unsynced_->before_backward();
  if (sync == GradSync::deferred) {
    module.backward(loss, options);
    if (unsynced_) unsynced_->after_backward(/*exchanged=*/false);
    return;
  }
  group_->collectives().set_activity("backward");
  if (recorded_ && is_recording_cpu_step()) {
    module.backward(loss, options);
    for (auto& reducer : reducers_) recorded_->average_gradients(*reducer);
    return;
  }
  std::vector<detail::GradientExchange*> used;
  for (auto& reducer : reducers_) {
    const bool wanted = options.inputs.empty() ? reducers_.size() == 1 || reducer->needs_any_gradient()
                                               : reducer->holds_any_of(options.inputs);
    if (wanted) used.push_back(reducer.get());
  }
  run_exchange(*group_, name().c_str(), [&] {
    if (exchange_awaited_ && !used.empty()) detail::GradientReducer::call_before_wait(loss, exchange_awaited_);
    for (auto* reducer : used) reducer->before_backward(loss);
    module.backward(loss, options);
    for (auto* reducer : used) reducer->after_backward();
    if (unsynced_) unsynced_->after_backward(/*exchanged=*/true);
  });
}

void DDPStrategy::sync_gradients(Optimizer& optimizer) {
  if (!group_) return;
  if (local_) local_->show_own();  // an evaluation that has thrown may have come before
  group_->collectives().set_activity("sync_gradients");
  average_gradients(optimizer);
  if (unsynced_) unsynced_->synced(optimizer);
  syncs_buffers_next_ |= !is_local_step();
}

void DDPStrategy::average_gradients(Optimizer& optimizer) {
  detail::C10dCollectives* const ranks = exchange_ranks();
  if (ranks == nullptr) return;
  const std::vector<Tensor> parameters = detail::parameters_of(optimizer);
  if (power_) return power_->average(parameters, /*may_be_missing=*/true, steps_done_, *ranks);
  if (average_) return average_->average_gradients(parameters, *ranks);
  detail::TensorAverage(*options_.bucket_cap_mb.value, options_.compression).average_gradients(parameters, *ranks);
}

void DDPStrategy::optimizer_step(Optimizer& optimizer, const Closure& closure, const std::optional<Tensor>& found_inf) {
  if (unsynced_) unsynced_->check_step(optimizer);
  if (local_) local_->show_own();
  if (group_) group_->collectives().set_activity("the optimizer's step");
  Strategy::optimizer_step(optimizer, closure, found_inf);
}

void DDPStrategy::after_step(LightningModule& module, int64_t global_step) {
  steps_done_ = global_step;
  if (!group_) return;
  group_->use_short_timeout();
  if (local_ && local_->after_step(global_step)) syncs_buffers_next_ = true;
  if (options_.check_replicas_every > 0 && global_step % options_.check_replicas_every == 0)
    detail::check_same_ranks(group_->collectives(), {.module = module,
                                                     .optimizers = {optimizers_.begin(), optimizers_.end()},
                                                     .optimizer_steps = {},
                                                     .global_step = global_step,
                                                     .has_whole_weights = ranks_have_same_weights()});
  group_->collectives().set_activity("between steps");
}

std::unique_ptr<GraphCapture> DDPStrategy::make_graph_capture() {
  const Accelerator* accelerator = find_accelerator(c10::DeviceTypeName(device_.type(), /*lower_case=*/true));
  auto graph = device_.is_cpu() ? make_step_capture()
               : accelerator    ? accelerator->make_graph_capture(device_.index())
                                : nullptr;
  if (!graph || !group_ || !module_) return graph;
  if (device_.is_cpu()) return graph;
  // A Reducer keeps the AccumulateGrad nodes, and those keep the stream they were created on. The legacy stream cannot
  // be captured.
  const auto on_its_stream = graph->enter_stream();
  if (loaded_buckets_.empty())
    for (const auto& reducer : reducers_) loaded_buckets_.push_back(reducer->buckets());
  start_training(*module_, std::vector(optimizers_));
  const std::weak_ptr<ProcessGroup> group = group_;
  launches_ = detail::watch_launches(
      device_,
      [group] {
        const auto there = group.lock();
        return there ? there->timeout() : std::chrono::milliseconds::max();
      },
      [group] {
        if (const auto there = group.lock()) there->abort_late_launch();
      });
  return detail::make_watched_capture(std::move(graph), launches_);
}

void DDPStrategy::check_same_ranks(LightningModule& module, const std::vector<OptimizerHandle*>& optimizers,
                                   int64_t global_step) {
  if (!group_ || options_.check_replicas_every < 0) return;
  detail::RankState state{.module = module,
                          .optimizers = {},
                          .optimizer_steps = {},
                          .global_step = global_step,
                          .has_whole_weights = ranks_have_same_weights()};
  for (OptimizerHandle* handle : optimizers) {
    state.optimizers.push_back(&handle->optimizer());
    state.optimizer_steps.push_back(handle->steps());
  }
  detail::check_same_ranks(group_->collectives(), state);
}

bool DDPStrategy::ranks_have_same_weights() const {
  return !divides_parameters() && !(local_ && local_->has_own_weights());
}

StateTree DDPStrategy::state() const {
  StateTree::List reducers;
  const auto add = [&](size_t parameters, const detail::Buckets& of_reducer) {
    StateTree::List buckets;
    for (const auto& bucket : of_reducer) {
      StateTree::List indices;
      for (const int64_t index : bucket) indices.emplace_back(index);
      buckets.emplace_back(std::move(indices));
    }
    reducers.push_back(
        StateTree::map({{"parameters", static_cast<int64_t>(parameters)}, {"buckets", std::move(buckets)}}));
  };
  for (const auto& reducer : reducers_)
    if (const detail::Buckets buckets = reducer->buckets(); !buckets.empty())
      add(reducer->parameters().size(), buckets);
  if (loaded_buckets_fit(shares_to_reduce_))
    for (size_t i = 0; i < loaded_buckets_.size(); ++i) add(shares_to_reduce_[i].size(), loaded_buckets_[i]);
  StateTree::List buffers;
  if (has_own_buffers() && module_)
    for (const Tensor& buffer : kept_buffers_.empty() ? own_buffers(*module_) : kept_buffers_)
      buffers.emplace_back(buffer);
  StateTree state = StateTree::map({{"reducers", std::move(reducers)},
                                    {"buffers", std::move(buffers)},
                                    {"syncs_buffers_next", syncs_buffers_next_},
                                    {"world_size", place_.world_size},
                                    {"bucket_cap_mb", options_.bucket_cap_mb.value.value_or(0)},
                                    {"bucket_cap_was_auto", bucket_cap_was_auto_},
                                    {"steps", steps_done_}});
  if (power_) state["powersgd"] = power_->state();
  if (local_) state["local_sgd"] = local_->state();
  return state;
}

void DDPStrategy::load_state(const StateTree& state) {
  loaded_buckets_.clear();
  const bool same_ranks = state.contains("world_size") && state.at("world_size").as_int() == place_.world_size;
  steps_done_ = state.contains("steps") ? state.at("steps").as_int() : 0;
  // What a rank has not sent is its own.
  if (same_ranks && state.contains("powersgd")) loaded_power_ = state.at("powersgd");
  if (state.contains("local_sgd"))
    loaded_local_ = same_ranks ? state.at("local_sgd") : detail::LocalSgd::shared_state(state.at("local_sgd"));
  bucket_cap_was_auto_ = same_ranks && options_.bucket_cap_mb.is_auto() && state.contains("bucket_cap_was_auto") &&
                         state.at("bucket_cap_was_auto").as_bool();
  if (bucket_cap_was_auto_) options_.bucket_cap_mb = state.at("bucket_cap_mb").as_double();
  if (!same_ranks && place_.rank == 0) {
    if (state.contains("powersgd") && options_.compression == Compression::powersgd)
      log::info(
          "resume: with another number of ranks, powersgd begins without the errors and factors of the checkpoint");
    if (state.contains("local_sgd") && options_.local_sgd)
      log::info(
          "resume: with another number of ranks, all begin with the average of the weights, and with the state of "
          "rank 0's optimizer");
  }
  if (state.contains("buffers") && state.at("world_size").as_int() == place_.world_size) {
    syncs_buffers_next_ = state.at("syncs_buffers_next").as_bool();
    for (const StateTree& buffer : state.at("buffers").as_list()) kept_buffers_.push_back(buffer.tensor());
    if (module_) put_back_buffers(*module_);
  }
  // With another bucket size or number of ranks, nothing is bit-exact anyway.
  if (!state.contains("reducers") || state.at("world_size").as_int() != place_.world_size ||
      state.at("bucket_cap_mb").as_double() != options_.bucket_cap_mb.value)
    return;
  std::vector<detail::Buckets> all;
  for (const StateTree& reducer : state.at("reducers").as_list()) {
    auto& buckets = all.emplace_back();
    std::set<int64_t> seen;
    const int64_t count = reducer.at("parameters").as_int();
    for (const StateTree& bucket : reducer.at("buckets").as_list()) {
      auto& indices = buckets.emplace_back();
      for (const StateTree& index : bucket.as_list()) {
        indices.push_back(index.as_int());
        if (index.as_int() < 0 || index.as_int() >= count || !seen.insert(index.as_int()).second)
          throw CheckpointError(cat("[strategies.", name(),
                                    "] the buckets of the checkpoint do not contain each parameter exactly once."));
      }
    }
    if (static_cast<int64_t>(seen.size()) != count)
      throw CheckpointError(
          cat("[strategies.", name(), "] the buckets of the checkpoint do not contain each parameter exactly once."));
  }
  loaded_buckets_ = std::move(all);
}

void DDPStrategy::unsync_norms() noexcept {
  if (sync_batchnorm_ && module_) nn::sync_norms_over(*module_, nullptr);
}

void DDPStrategy::abandon() noexcept {
  unsync_norms();
  if (group_) group_->impl().heartbeat->say_failed();
  // First, since destructors may wait for the device, and the device for other ranks.
  if (group_) group_->abort();
  reducers_.clear();
  shares_to_reduce_.clear();
  average_.reset();
  unsynced_.reset();
  power_.reset();
  local_.reset();
  recorded_.reset();
  group_.reset();
  launches_.reset();
}

void DDPStrategy::teardown() noexcept {
  unsync_norms();
  try {
    if (local_) local_->finish();
  } catch (const std::exception& error) {
    log::warn("strategies.own_weights",
              cat("the weights after the fit are those of this rank alone, since the ranks could not average them: ",
                  error.what()));
  }
  power_.reset();
  local_.reset();
  steps_done_ = 0;
  reducers_.clear();
  shares_to_reduce_.clear();
  kept_buffers_.clear();
  syncs_buffers_next_ = true;
  average_.reset();
  unsynced_.reset();
  recorded_.reset();
  if (group_) group_->shut_down();
  group_.reset();
  launches_.reset();
  module_ = nullptr;
}

[[maybe_unused]] static const bool registered_ddp = Registry<Strategy>::add<DDPStrategy>(
    "ddp", "Distributed data parallel: one process per device, gradients averaged over all.");

}  // namespace fulgur
