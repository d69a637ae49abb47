#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/same_ranks.h"
#include "fulgur/core/contracts/strategy.h"
#include "fulgur/core/options/options.h"
#include "fulgur/strategies/process_group.h"
#include "fulgur/strategies/slow_networks.h"

namespace fulgur {

namespace detail {
class C10dCollectives;
class GradientExchange;
class LaunchWatch;
class LocalSgd;
class PowerSgd;
class RecordedExchange;
class TensorAverage;
class UnsyncedGradients;
}  // namespace detail

/// Distributed data parallel: one process per device, each with the whole module and a share of every batch; gradients
/// are averaged while backward still computes (LibTorch's c10d::Reducer).
class FULGUR_API DDPStrategy : public Strategy, public SameRanks {
 public:
  enum class Compression { none, fp16, bf16, powersgd };
  friend constexpr auto enum_names(Compression) {
    return std::to_array<EnumName<Compression>>({{Compression::none, "none"},
                                                 {Compression::fp16, "fp16"},
                                                 {Compression::bf16, "bf16"},
                                                 {Compression::powersgd, "powersgd"}});
  }
  struct FULGUR_API Options {
    std::string process_group_backend = "auto";
    std::string cluster_environment = "auto";
    bool find_unused_parameters = false;
    bool static_graph = false;
    bool gradient_as_bucket_view = false;
    Auto<double> bucket_cap_mb = 25.0;
    bool broadcast_buffers = true;
    Compression compression = Compression::none;
    PowerSgdOptions powersgd = {};
    std::optional<LocalSgdOptions> local_sgd = {};
    double start_timeout_s = 300;
    double timeout_s = 60;
    int64_t check_replicas_every = 0;
    int64_t max_restarts = 0;
    void fields(Fields& f);
  };

  explicit DDPStrategy(Options options);
  ~DDPStrategy() override;

  /// Once a fit has started, `bucket_cap_mb` is the number that `auto` has become.
  const Options& options() const { return options_; }
  std::string name() const override { return "ddp"; }
  DeviceUse device_use() const override { return DeviceUse::one_each; }
  std::optional<LaunchPlan> launch_plan() const override {
    return LaunchPlan{.cluster_environment = options_.cluster_environment,
                      .max_restarts = options_.max_restarts,
                      .start_timeout_s = options_.start_timeout_s};
  }
  /// Connects to the other ranks, which must all call it. Throws a DistributedError if they do not arrive.
  void configure(StrategySetup setup) override;
  at::Device device() const override { return device_; }
  int64_t rank() const override { return place_.rank; }
  int64_t world_size() const override { return place_.world_size; }
  const ProcessPlace& place() const override { return place_; }
  Collectives& collectives() override;
  /// The connection of the ranks; null before `configure`, after `teardown`, and if the run is one process.
  ProcessGroup* process_group() const { return group_.get(); }
  Precision& precision() override { return *precision_; }
  /// Sets parameters and buffers to rank 0's. Throws a ConfigError that names LibTorch's own BatchNorm layers under
  /// sync_batchnorm.
  void attach(LightningModule& module) override;
  /// Throws a ConfigError for a parameter in two optimizers.
  void start_training(LightningModule& module, const std::vector<Optimizer*>& optimizers) override;
  void before_forward(LightningModule& module, GradSync sync) override;
  void before_evaluation(LightningModule& module) override;
  void after_evaluation(LightningModule& module) override;
  /// Throws a DistributedError that names parameters without a gradient.
  void backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) override;
  void sync_gradients(Optimizer& optimizer) override;
  void watch_exchanges(const std::function<void()>& awaited) override { exchange_awaited_ = awaited; }
  /// Throws a DistributedError for gradients of manual backwards that were not exchanged.
  void optimizer_step(Optimizer& optimizer, const Closure& closure, const std::optional<Tensor>& found_inf) override;
  /// Every `check_replicas_every` steps, throws a DistributedError that names the weights that differ between ranks.
  void after_step(LightningModule& module, int64_t global_step) override;
  bool steps_apart() const override { return options_.local_sgd.has_value(); }
  /// With local_sgd, parameters that differ between ranks are their average.
  std::unique_ptr<WholeParameters> whole_parameters() override;
  Tensor gather(const Tensor& parameter) override;
  void check_same_ranks(LightningModule& module, const std::vector<OptimizerHandle*>& optimizers,
                        int64_t global_step) override;
  /// Exchanges are recorded too. On a GPU, the reducers are recreated on the recording stream; on the CPU, recorded
  /// steps exchange what reducers would, after the backward.
  std::unique_ptr<GraphCapture> make_graph_capture() override;
  /// Contains the buckets of the reducers, since with three or more ranks the last bits of a sum depend on them.
  StateTree state() const override;
  void load_state(const StateTree& state) override;
  std::string describe() const override;
  void abandon() noexcept override;
  void teardown() noexcept override;

 protected:
  /// Throws a ConfigError if so many ranks cannot run; before they connect.
  virtual void check_ranks(int64_t /*ranks*/) {}
  /// Converts the module to the run's precision, and moves it to its device.
  virtual void place_module(LightningModule& module) { convert_and_move(module); }
  /// What averages the gradients of `parameters` in each backward that exchanges them. `buckets` are those of an
  /// earlier one, or empty.
  virtual std::unique_ptr<detail::GradientExchange> make_reducer(std::vector<NamedParameter> parameters,
                                                                 bool find_unused_parameters,
                                                                 const std::vector<std::vector<int64_t>>& buckets);
  /// Averages the gradients of the optimizer's parameters after backwards that exchanged nothing.
  virtual void average_gradients(Optimizer& optimizer);

 private:
  void take_from_rank_0(const std::vector<Tensor>& tensors);
  /// The buffers of a step.
  void take_buffers_from_rank_0(const LightningModule& module);
  /// Whether this rank's buffers may differ from rank 0's and the next forward uses them as they are.
  bool has_own_buffers() const;
  void put_back_buffers(const LightningModule& module);
  void unsync_norms() noexcept;
  void check_slow_networks() const;
  void prepare_slow_networks(const std::vector<NamedParameter>& parameters);
  /// The ranks whose gradients the next step averages; nullptr: this one alone.
  detail::C10dCollectives* exchange_ranks() const;
  bool is_local_step() const;
  bool ranks_have_same_weights() const;
  void make_reducers();
  /// Whether the buckets of a checkpoint are of so many reducers and parameters.
  bool loaded_buckets_fit(const std::vector<std::vector<NamedParameter>>& shares) const;
  /// Makes the reducers again if parameters were frozen or unfrozen since: a reducer waits for all its gradients.
  void follow_frozen_parameters(LightningModule& module);

  Options options_;
  ProcessPlace place_;
  at::Device device_{at::kCPU};
  bool sync_batchnorm_ = false;
  bool syncs_after_backward_ = false;
  std::shared_ptr<Precision> precision_;
  std::shared_ptr<ProcessGroup> group_;
  /// Of captured steps. Until the end: what handles an exception of the fit may wait for the device.
  std::shared_ptr<detail::LaunchWatch> launches_;
  std::unique_ptr<detail::RecordedExchange> recorded_;  ///< on the CPU
  SingleProcessCollectives alone_;
  LightningModule* module_ = nullptr;
  std::vector<Optimizer*> optimizers_;
  /// All parameters, and whether they required gradients when the reducers were made.
  std::vector<std::pair<Tensor, bool>> learning_;
  std::vector<std::unique_ptr<detail::GradientExchange>> reducers_;
  /// Parameters of the reducers that are created when a window ends, since with static_graph LibTorch records the graph
  /// in the first backward after their creation, and exchanges gradients in it.
  std::vector<std::vector<NamedParameter>> shares_to_reduce_;
  /// Holds its memory if each window ends with `sync_gradients`; then there are no reducers.
  std::unique_ptr<detail::TensorAverage> average_;
  std::unique_ptr<detail::UnsyncedGradients> unsynced_;  ///< used with manual optimization
  std::vector<std::vector<std::vector<int64_t>>> loaded_buckets_;
  std::unique_ptr<detail::PowerSgd> power_;  ///< with compression: powersgd
  std::shared_ptr<detail::LocalSgd> local_;  ///< with local_sgd
  StateTree loaded_power_, loaded_local_;
  int64_t steps_done_ = 0;
  bool bucket_cap_was_auto_ = false;
  bool reducers_are_local_ = false;         ///< they were made for steps that average gradients in a group only
  std::function<void()> exchange_awaited_;  ///< empty: nothing watches
  bool syncs_buffers_next_ = true;
  std::vector<Tensor> kept_buffers_;  // this rank's buffers of the current window, while an evaluation uses rank 0's
};

}  // namespace fulgur
