#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/tensor_plan.h"
#include "fulgur/core/options/field_traits.h"
#include "fulgur/strategies/fsdp.h"
#include "fulgur/strategies/pipeline_schedule.h"

namespace fulgur {

namespace detail {
struct DividedParameter;
class LayerRandom;
class EvaluationUnits;
class MeshGroups;
class PipelineExecutor;
struct PipelineShape;
class StageOptimizers;
struct StagePlan;
class StageParameters;
class StageParts;
class StageShards;
class TensorCalls;
class TensorShards;
}  // namespace detail

/// The sizes of a mesh of ranks along its axes, whose product is the number of ranks.
struct FULGUR_API MeshAxes {
  Auto<int64_t> data = {};  ///< auto: what the other axes leave
  int64_t shard = 1;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  void fields(Fields& f);
};

/// The ranks of a run as a mesh. Ranks along `pipeline` have the stages of one copy of the module, each of which they
/// compute for the micro-batches of a batch by turns; ranks along `tensor` compute each layer of a stage together;
/// ranks along `data` have copies of the same stages, and average their gradients. A pipeline needs
/// `LightningModule::stages()`, and computes it in place of `training_step`. Each rank keeps the parameters and
/// optimizer states of its stages, and its parts of divided layers, only. Ranks along `shard`, which train on shares of
/// the data, too, divide what one of them would keep. An evaluation gathers all, or units (`evaluation: units`), and a
/// save gathers all, unless ranks write their parts (`state_dict_type: sharded`). With ranks along `data` alone, this
/// is ddp; with these and `shard`, it is fsdp's hybrid sharding.
class FULGUR_API MeshStrategy final : public FSDPStrategy {
 public:
  /// What an evaluation gathers, since its steps read the whole module on each rank: all parameters, or units of them,
  /// as operations read them.
  enum class Evaluation { whole, units };
  friend constexpr auto enum_names(Evaluation) {
    return std::to_array<EnumName<Evaluation>>({{Evaluation::whole, "whole"}, {Evaluation::units, "units"}});
  }
  struct FULGUR_API Options {
    MeshAxes mesh = {};
    PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
    Auto<int64_t> micro_batches = {};
    Auto<int64_t> stages_per_rank = {};
    Auto<std::vector<std::string>> cuts = {};
    std::map<std::string, TensorSplit> tensor_plan = {};
    Auto<std::vector<std::string>> units = {};
    Evaluation evaluation = Evaluation::whole;
    bool deferred_init = true;
    StateDictType state_dict_type = StateDictType::full;
    std::string process_group_backend = "auto";
    std::string cluster_environment = "auto";
    double start_timeout_s = 300;
    double timeout_s = 60;
    int64_t check_replicas_every = 0;
    int64_t max_restarts = 0;
    void fields(Fields& f);
  };

  /// Throws a ConfigError for options that do not go together.
  explicit MeshStrategy(Options options);
  ~MeshStrategy() override;

  std::string name() const override { return "mesh"; }
  /// Throws a ConfigError for options of the Trainer that do not go with these.
  static void check_trainer(const Options& options, bool auto_micro_batch, bool sync_batchnorm);
  bool defers_init() const override {
    return options_.deferred_init && (options_.mesh.pipeline > 1 || options_.mesh.tensor > 1 || divides_all());
  }
  /// Throws a ConfigError that names the axis if the axes do not divide the number of ranks.
  void configure(StrategySetup setup) override;
  int64_t data_shares() const override { return divides_module() ? data_ * options_.mesh.shard : world_size(); }
  int64_t data_share() const override {
    return divides_module() ? rank() / options_.mesh.tensor % data_shares() : rank();
  }
  /// Whether the ranks compute stages of the module.
  bool has_pipeline() const { return options_.mesh.pipeline > 1 && process_group(); }
  /// The last stage computes the loss.
  int64_t logging_rank() const override {
    return has_pipeline() ? (options_.mesh.pipeline - 1) * data_shares() * options_.mesh.tensor : 0;
  }
  /// Divides module and optimizers. Throws a ConfigError for a module or an optimizer that cannot be divided.
  void start_training(LightningModule& module, const std::vector<Optimizer*>& optimizers) override;
  void before_forward(LightningModule& module, GradSync sync) override;
  /// With divided layers and no pipeline, the whole batch is one part, whose step `run_parts` computes.
  std::vector<MicroBatch> split(LightningModule& module, const Batch& batch, RunningStage stage) override;
  void run_parts(size_t parts, const std::function<void(size_t)>& work) override;
  std::optional<StepOutput> compute_step(LightningModule& module, const Batch& batch,
                                         const StepServices& services) override;
  /// Throws an Error for a loss of which each rank has a part.
  void backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) override;
  void sync_gradients(Optimizer& optimizer) override;
  void optimizer_step(Optimizer& optimizer, const Closure& closure, const std::optional<Tensor>& found_inf) override;
  void before_evaluation(LightningModule& module) override;
  bool gathers_in_evaluations() const override;
  void begin_evaluation_round(bool computes, bool all_compute) override;
  void end_evaluation_round() override;
  void after_step(LightningModule& module, int64_t global_step) override;
  bool divides_parameters() const override { return divides_module() || FSDPStrategy::divides_parameters(); }
  std::vector<int64_t> whole_sizes(const Tensor& parameter) const override;
  std::unique_ptr<WholeParameters> whole_parameters() override;
  Tensor gather(const Tensor& parameter) override;
  /// Compares the weights of ranks with the same parameters, too.
  void check_same_ranks(LightningModule& module, const std::vector<OptimizerHandle*>& optimizers,
                        int64_t global_step) override;
  StateTree state() const override;
  /// Throws a CheckpointError for gradients of another mesh.
  void load_state(const StateTree& state) override;
  StateTree optimizer_state(const Optimizer& optimizer) override;
  void load_optimizer_state(Optimizer& optimizer, const StateTree& state) override;
  bool saves_parts() const override;
  std::optional<TensorPart> part_to_save(const Tensor& tensor) const override;
  StateTree optimizer_state_in_parts(const Optimizer& optimizer, std::vector<TensorPart>& parts) override;
  std::unique_ptr<GraphCapture> make_graph_capture() override;
  std::string describe() const override;
  void abandon() noexcept override;
  void teardown() noexcept override;

 protected:
  void check_ranks(int64_t ranks) override;
  std::vector<detail::ParameterShards*> parameter_shards() const override;

 private:
  bool divides_module() const { return (options_.mesh.pipeline > 1 || options_.mesh.tensor > 1) && process_group(); }
  /// Gives parameters that stand for values memory for all of these, in a run that only evaluates.
  void make_whole(LightningModule& module);
  /// Divides layers among the ranks of the axis `tensor`.
  void divide_layers(const LightningModule& module, std::vector<detail::DividedParameter> divided);
  /// Gives parameters that stand for values what this rank keeps of them.
  void receive_parameters();
  /// Divides what this rank has among the ranks of the axis `shard`.
  void divide_stages(const LightningModule& module, const std::vector<Optimizer*>& optimizers);
  void make_executor(LightningModule& module);
  void connect();
  /// Makes the random numbers of ranks that compute the same values the same.
  void agree_on_random();
  /// Throws an Error if divided layers are whole, in a training step.
  void check_divided() const;
  int64_t stages_per_rank() const;
  /// With the micro-batches of a batch that is large enough.
  detail::PipelineShape pipeline_shape() const;
  void note_size(const Batch& batch);
  void exchange_gradients();
  /// Parameters are in what ranks compute with in training afterwards. All ranks must call it.
  void leave_evaluation() const;
  /// The same, and parameters that an evaluation has gathered are divided. All ranks must call it.
  void return_to_training() const;
  /// Each parameter, and what stands for it after a run in which no process had all of it.
  std::vector<std::pair<Tensor, Tensor>> lost_parameters() const;
  void give_back() noexcept;
  /// For checkpoints.
  std::string shape_text() const;

  Options options_;
  int64_t data_ = 1;
  int64_t largest_batch_ = 0;
  std::string stages_;               ///< their layers, for display
  std::string loaded_stages_;        ///< of a checkpoint with gradients; else empty
  std::string divided_;              ///< parameters of which this rank has a part, and how they are divided
  std::string loaded_divided_;       ///< of a checkpoint with gradients; else empty
  bool loaded_from_others_ = false;  ///< the state of another strategy
  bool agrees_on_random_ = false;
  bool in_pipeline_ = false;  ///< a step of it is under way
  std::vector<Optimizer*> stepped_;
  StateTree loaded_random_ = nullptr;  ///< of the layers, until `start_training`
  /// Whole, of a resume, until `start_training`.
  std::map<const Optimizer*, StateTree> whole_states_;
  std::unique_ptr<detail::MeshGroups> mesh_;
  std::unique_ptr<detail::LayerRandom> layer_random_;
  std::unique_ptr<detail::StagePlan> plan_;
  std::shared_ptr<detail::TensorShards> parts_;  ///< with an axis `tensor`
  std::shared_ptr<detail::StageShards> shards_;  ///< with an axis `shard`
  std::unique_ptr<detail::TensorCalls> calls_;   ///< likewise
  std::unique_ptr<detail::PipelineExecutor> executor_;
  std::shared_ptr<detail::StageParameters> parameters_;
  std::shared_ptr<detail::StageOptimizers> optimizers_;
  std::shared_ptr<detail::EvaluationUnits> evaluation_;  ///< with `evaluation: units`
  std::unique_ptr<detail::StageParts> saved_;            ///< what this rank writes with `state_dict_type: sharded`
};

}  // namespace fulgur
