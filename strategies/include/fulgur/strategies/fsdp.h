#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/options/field_traits.h"
#include "fulgur/strategies/ddp.h"

namespace fulgur {

namespace detail {
class GradientShards;
class OptimizerShards;
class ParameterShards;
class ShardGroups;
}  // namespace detail

/// Sharded data parallel: like ddp, but each rank keeps only its part of what the other ranks have too.
///
/// With `sharding: optimizer` (ZeRO, stage 1) this is the optimizers' state: each rank steps its part of the
/// parameters, and the parts are exchanged after the step. Parameters and gradients are whole on each rank. With
/// `gradients` (stage 2) each rank keeps the averages of its part of the gradients only: the parameters have no
/// gradient after a backward that exchanges them. With `parameters` (stage 3) it keeps its part of the parameters only,
/// and units are gathered while a forward or a backward reads them; each rank must read them in the same order. A save
/// with `state_dict_type: full` gathers all. `hybrid` is that within groups of ranks, such as those of a node; the
/// groups have copies of each other.
class FULGUR_API FSDPStrategy : public DDPStrategy {
 public:
  enum class Sharding { optimizer, gradients, parameters, hybrid };
  friend constexpr auto enum_names(Sharding) {
    return std::to_array<EnumName<Sharding>>({{Sharding::optimizer, "optimizer"},
                                              {Sharding::gradients, "gradients"},
                                              {Sharding::parameters, "parameters"},
                                              {Sharding::hybrid, "hybrid"}});
  }
  /// The type in which gradients are exchanged; `gradient`: their own.
  enum class ReduceDtype { gradient, float32, bfloat16, float16 };
  friend constexpr auto enum_names(ReduceDtype) {
    return std::to_array<EnumName<ReduceDtype>>({{ReduceDtype::gradient, "gradient"},
                                                 {ReduceDtype::float32, "float32"},
                                                 {ReduceDtype::bfloat16, "bfloat16"},
                                                 {ReduceDtype::float16, "float16"}});
  }
  /// How checkpoints hold what is divided: as whole tensors that rank 0 writes, or as the parts of each rank.
  enum class StateDictType { full, sharded };
  friend constexpr auto enum_names(StateDictType) {
    return std::to_array<EnumName<StateDictType>>({{StateDictType::full, "full"}, {StateDictType::sharded, "sharded"}});
  }
  /// What is in host memory during the training, beside the module that begins there.
  enum class Offload { none, optimizer };
  friend constexpr auto enum_names(Offload) {
    return std::to_array<EnumName<Offload>>({{Offload::none, "none"}, {Offload::optimizer, "optimizer"}});
  }
  struct FULGUR_API Options : DDPStrategy::Options {
    Sharding sharding = Sharding::optimizer;
    Auto<std::vector<std::string>> units = {};
    ReduceDtype reduce_dtype = ReduceDtype::gradient;
    Auto<int64_t> shard_size = {};
    Offload offload = Offload::none;
    bool deferred_init = true;
    StateDictType state_dict_type = StateDictType::full;
    void fields(Fields& f);
  };

  /// Throws a ConfigError for options of ddp that have no effect with this sharding.
  explicit FSDPStrategy(Options options);
  ~FSDPStrategy() override;

  std::string name() const override { return "fsdp"; }
  /// Whether anything is divided.
  bool divides() const { return divides_; }
  /// Whether the parameters are divided, too, in a run of several processes. Then a module may be created without
  /// memory for them (`deferred_init`); after such a run, its parameters can only be loaded from a checkpoint.
  bool divides_all() const {
    return divides_ && (options_.sharding == Sharding::parameters || options_.sharding == Sharding::hybrid);
  }
  /// Whether optimizers step in host memory, if the run is on a GPU.
  bool offloads() const { return divides_ && options_.offload != Offload::none; }
  /// Whether the model of a config is created so.
  virtual bool defers_init() const { return divides_all() && options_.deferred_init; }
  /// Throws a ConfigError for what does not work with this sharding.
  void configure(StrategySetup setup) override;
  /// Divides the optimizers. Throws a ConfigError for one that needs whole parameters, such as Muon or LBFGS, and for
  /// parameters that are not dense in memory.
  void start_training(LightningModule& module, const std::vector<Optimizer*>& optimizers) override;
  void before_forward(LightningModule& module, GradSync sync) override;
  /// Divides the parameters of a run that only evaluates.
  void before_evaluation(LightningModule& module) override;
  void after_evaluation(LightningModule& module) override;
  void backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) override;
  void skip_backward(LightningModule& module) override;
  bool gathers_in_evaluations() const override { return parameters_ != nullptr; }
  void begin_evaluation_round(bool computes, bool all_compute) override;
  void end_evaluation_round() override;
  bool divides_parameters() const override { return divides_all() && process_group(); }
  std::unique_ptr<WholeParameters> whole_parameters() override;
  Tensor gather(const Tensor& parameter) override;
  void after_step(LightningModule& module, int64_t global_step) override;
  /// Compares copies of divided parameters, too.
  void check_same_ranks(LightningModule& module, const std::vector<OptimizerHandle*>& optimizers,
                        int64_t global_step) override;
  void check_order() override;
  void optimizer_step(Optimizer& optimizer, const Closure& closure, const std::optional<Tensor>& found_inf) override;
  /// Also has divided gradients that wait for a step, as in manual optimization: `gradient_shards`.
  StateTree state() const override;
  /// Throws a CheckpointError for divided gradients of another number of ranks.
  void load_state(const StateTree& state) override;
  StateTree optimizer_state(const Optimizer& optimizer) override;
  void load_optimizer_state(Optimizer& optimizer, const StateTree& state) override;
  bool saves_parts() const override { return options_.state_dict_type == StateDictType::sharded && shards_ != nullptr; }
  std::optional<TensorPart> part_to_save(const Tensor& parameter) const override;
  StateTree optimizer_state_in_parts(const Optimizer& optimizer, std::vector<TensorPart>& parts) override;
  /// Steps are recorded with their exchanges, those of divided parameters too.
  std::unique_ptr<GraphCapture> make_graph_capture() override;
  /// The optimizers then step whole parameters again, and have lost the divided states; checkpoints have them.
  void abandon() noexcept override;
  void teardown() noexcept override;

 protected:
  /// For strategies that divide nothing with some options: if `divides` is false, this is ddp.
  FSDPStrategy(Options options, bool divides);

  void place_module(LightningModule& module) override;
  /// Divides the parameters of a run that only evaluates among all ranks, in `units`. Errors suggest `instead`.
  void divide_for_evaluation(LightningModule& module, const std::optional<std::vector<std::string>>& units,
                             std::string instead);
  /// Whether the module was created without memory for its parameters, which stood for their values when it was placed.
  bool is_deferred() const { return is_deferred_; }
  /// What gathers divided parameters when operations read them.
  virtual std::vector<detail::ParameterShards*> parameter_shards() const;
  std::unique_ptr<detail::GradientExchange> make_reducer(std::vector<NamedParameter> parameters,
                                                         bool find_unused_parameters,
                                                         const std::vector<std::vector<int64_t>>& buckets) override;
  void average_gradients(Optimizer& optimizer) override;

 private:
  bool divides_gradients() const { return divides_ && options_.sharding != Sharding::optimizer; }
  /// Whether the run divides the parameters before it uses any.
  bool divides_at_start() const;
  /// Whether the module is in host memory before and after the training, since one device may not hold it.
  bool starts_on_host() const;
  /// Divides the optimizers of the run, and with `parameters` all parameters of the module.
  void divide(LightningModule& module);
  /// What has values, from whatever device the module was made on.
  static void move_values(LightningModule& module, at::Device device);
  void move_undivided(LightningModule& module) const;
  void take_loaded_gradients();
  /// Throws an Error for a parameter whose memory was replaced.
  void check_memory() const;
  /// `what` has divided them, by the option and value `cause`.
  void describe_units(std::string_view what, std::string_view cause) const;
  void give_back() noexcept;

  Options options_;
  bool divides_ = true;
  std::vector<Optimizer*> optimizers_;                   ///< of the run, until `teardown`
  StateTree loaded_gradients_;                           ///< by the names of parameters, for `start_training`
  std::map<const Optimizer*, StateTree> loaded_states_;  ///< whole, of a resume, until `start_training`
  std::unique_ptr<detail::ShardGroups> groups_;
  std::shared_ptr<detail::OptimizerShards> shards_;      ///< null before training, and with one process
  std::shared_ptr<detail::ParameterShards> parameters_;  ///< with `parameters` and `hybrid`
  bool starts_before_forward_ = false;
  LightningModule* on_host_ = nullptr;  ///< began in host memory, and ends there
  bool is_deferred_ = false;
};

}  // namespace fulgur
