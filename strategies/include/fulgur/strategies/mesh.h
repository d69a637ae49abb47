#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/options/field_traits.h"
#include "fulgur/strategies/ddp.h"
#include "fulgur/strategies/pipeline_schedule.h"

namespace fulgur {

namespace detail {
class LayerRandom;
class MeshGroups;
class PipelineExecutor;
class StageOptimizers;
class StageParameters;
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
/// compute for the micro-batches of a batch by turns; ranks along `data` have copies of the same stages, and average
/// their gradients. A pipeline needs `LightningModule::stages()`, and computes it in place of `training_step`; each
/// rank keeps the parameters and optimizer states of its stages only. An evaluation and a save gather all. With a
/// pipeline of one rank, this is ddp.
class FULGUR_API MeshStrategy final : public DDPStrategy {
 public:
  struct FULGUR_API Options {
    MeshAxes mesh = {};
    PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
    Auto<int64_t> micro_batches = {};
    Auto<int64_t> stages_per_rank = {};
    Auto<std::vector<std::string>> cuts = {};
    std::string process_group_backend = "auto";
    std::string cluster_environment = "auto";
    double start_timeout_s = 300;
    double timeout_s = 60;
    int64_t check_replicas_every = 0;
    int64_t max_restarts = 0;
    void fields(Fields& f);
  };

  /// Throws a ConfigError for axes that are not there yet, and for options that do not go together.
  explicit MeshStrategy(Options options);
  ~MeshStrategy() override;

  std::string name() const override { return "mesh"; }
  /// Throws a ConfigError that names the axis if the axes do not divide the number of ranks.
  void configure(StrategySetup setup) override;
  int64_t data_shares() const override { return has_pipeline() ? data_ : world_size(); }
  int64_t data_share() const override { return has_pipeline() ? rank() % data_ : rank(); }
  /// Divides module and optimizers. Throws a ConfigError for a module or an optimizer that cannot be divided.
  void start_training(LightningModule& module, const std::vector<Optimizer*>& optimizers) override;
  void before_forward(LightningModule& module, GradSync sync) override;
  std::optional<StepOutput> compute_step(LightningModule& module, const Batch& batch,
                                         const StepServices& services) override;
  void sync_gradients(Optimizer& optimizer) override;
  void optimizer_step(Optimizer& optimizer, const Closure& closure, const std::optional<Tensor>& found_inf) override;
  void before_evaluation(LightningModule& module) override;
  void after_step(LightningModule& module, int64_t global_step) override;
  bool divides_parameters() const override { return has_pipeline(); }
  std::unique_ptr<WholeParameters> whole_parameters() override;
  /// Compares the weights of ranks with the same stages, too.
  void check_same_ranks(LightningModule& module, const std::vector<OptimizerHandle*>& optimizers,
                        int64_t global_step) override;
  StateTree state() const override;
  /// Throws a CheckpointError for gradients of another mesh.
  void load_state(const StateTree& state) override;
  StateTree optimizer_state(const Optimizer& optimizer) override;
  void load_optimizer_state(Optimizer& optimizer, const StateTree& state) override;
  std::unique_ptr<GraphCapture> make_graph_capture() override;
  std::string describe() const override;
  void abandon() noexcept override;
  void teardown() noexcept override;

 private:
  bool has_pipeline() const { return options_.mesh.pipeline > 1 && process_group(); }
  int64_t stages_per_rank() const;
  void note_size(const Batch& batch);
  void exchange_gradients();
  void give_back() noexcept;
  /// For checkpoints.
  std::string shape_text() const;

  Options options_;
  int64_t data_ = 1;
  int64_t largest_batch_ = 0;
  std::string stages_;               ///< their layers, for display
  std::string loaded_stages_;        ///< of a checkpoint with gradients; else empty
  bool loaded_from_others_ = false;  ///< the state of another strategy
  std::vector<Optimizer*> stepped_;
  StateTree loaded_random_ = nullptr;  ///< of the layers, until `start_training`
  std::unique_ptr<detail::MeshGroups> mesh_;
  std::unique_ptr<detail::LayerRandom> layer_random_;
  std::unique_ptr<detail::PipelineExecutor> executor_;
  std::shared_ptr<detail::StageParameters> parameters_;
  std::unique_ptr<detail::StageOptimizers> optimizers_;
};

}  // namespace fulgur
