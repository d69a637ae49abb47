#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/contracts/data_module.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/precision.h"
#include "fulgur/core/contracts/process_place.h"
#include "fulgur/core/contracts/whole_parameters.h"
#include "fulgur/core/device/graph_capture.h"
#include "fulgur/core/state/stage.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/core/state/tensor_part.h"

namespace fulgur {

/// Whether a backward exchanges gradients between ranks; inside an accumulation window it need not.
enum class GradSync { now, deferred };

/// How many of the devices chosen on a node one process drives.
enum class DeviceUse {
  one,       ///< one process drives one device
  one_each,  ///< each device is driven by its own process
  all,       ///< one process drives all devices
};

/// A part of a batch that is computed separately.
struct FULGUR_API MicroBatch {
  LightningModule* module = nullptr;  ///< the run's module, or a replica of it
  Batch batch;                        ///< the part's samples, on the device of `module`
  double share = 1;                   ///< fraction of the batch's samples; those of all parts add up to 1
};

/// What the loop does for a strategy that computes the forward and backward of a step itself.
struct FULGUR_API StepServices {
  /// Calls `work`, which computes a part of the batch with so many samples, under the precision's guard for forwards;
  /// what the module logs in it counts for these samples.
  std::function<void(int64_t samples, const std::function<void()>& work)> part;
  /// What backward begins with: the loss of a part with the fraction `share` of the batch's samples, divided by the
  /// length of the accumulation window and scaled by the precision.
  std::function<Tensor(const Tensor& loss, double share)> scaled;
  GradSync sync = GradSync::now;  ///< with `now`, gradients are also exchanged between ranks
};

/// What a strategy gets once, before all other calls.
struct FULGUR_API StrategySetup {
  std::vector<at::Device> devices;  ///< the devices chosen on this node; contains the CPU once per requested process
  bool devices_are_auto = false;    ///< the number of devices was not given
  int64_t num_nodes = 1;
  bool sync_batchnorm = false;
  /// Each backward defers its exchange of gradients, and `sync_gradients` follows each window.
  bool syncs_after_backward = false;
  /// `start_training` or `before_evaluation` comes before the module's first forward, as in each run of a Trainer.
  bool starts_before_forward = false;
  std::shared_ptr<Precision> precision;
};

/// How `trainer` starts the processes of a run if no other launcher has.
struct FULGUR_API LaunchPlan {
  /// The option of ddp with this name, which says which launcher may have started the processes.
  std::string cluster_environment = "auto";
  int64_t max_restarts = 0;      ///< number of restarts of the whole group after failures
  double start_timeout_s = 300;  ///< time for the launchers of several nodes to find each other
};

/// Where a run computes: devices, ranks, communication, placement. The loops call it.
class FULGUR_API Strategy {
 public:
  static constexpr const char* kRegistryKind = "strategy";

  virtual ~Strategy();
  virtual std::string name() const = 0;
  virtual DeviceUse device_use() const { return DeviceUse::one; }
  /// How to start the processes of a strategy with several of them, which then find their places with
  /// `detect_cluster_environment`; nullopt if a run is one process. Called before `configure`.
  virtual std::optional<LaunchPlan> launch_plan() const { return std::nullopt; }
  /// Called before `attach`. Joins the other processes, if any.
  virtual void configure(StrategySetup setup) = 0;
  /// The device of batches and losses.
  virtual at::Device device() const = 0;
  /// All devices that this process computes on, `device()` first.
  virtual std::vector<at::Device> devices() const { return {device()}; }
  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  /// The place of this process among the processes of the run.
  virtual const ProcessPlace& place() const;
  /// Number of shares of the training data. If it is below `world_size()`, several ranks train on the same batches.
  virtual int64_t data_shares() const { return world_size(); }
  /// The share of this rank.
  virtual int64_t data_share() const { return rank(); }
  /// The first rank whose training steps log values. If a run resumes with other ranks, it continues what they logged.
  virtual int64_t logging_rank() const { return 0; }
  virtual Collectives& collectives() = 0;
  virtual Precision& precision() = 0;

  /// Converts the module to the run's precision and places it. Called before optimizers are created. The module
  /// outlives teardown(), which a destructor also calls.
  virtual void attach(LightningModule& module) = 0;
  /// Number of replicas of the module the strategy needs, each with its own run context. The Trainer creates them, sets
  /// them up like the module and passes them to `attach_replicas`, after `attach`.
  virtual size_t replicas_wanted() const { return 0; }
  /// Throws a ConfigError if the tensors of a replica differ from the module's.
  virtual void attach_replicas(LightningModule& /*module*/,
                               const std::vector<std::shared_ptr<LightningModule>>& /*replicas*/) {}
  /// Called once, with the optimizers of a fit, before its first step; on resume, after `load_state`.
  virtual void start_training(LightningModule& /*module*/, const std::vector<Optimizer*>& /*optimizers*/) {}
  /// Called before each forward of training.
  virtual void before_forward(LightningModule& /*module*/, GradSync /*sync*/) {}
  /// Called before each evaluation, while gradients and the thread's modes are still those of training; makes state
  /// that differs between ranks the same.
  virtual void before_evaluation(LightningModule& /*module*/) {}
  /// Whether divided parameters are gathered as the steps of an evaluation read them: then the next two are called
  /// around each round of its batches, on all ranks.
  virtual bool gathers_in_evaluations() const { return false; }
  /// `computes`: this rank has a batch in the round; `all_compute`: every rank has. A rank without a batch takes part
  /// in the exchanges of the others here.
  virtual void begin_evaluation_round(bool /*computes*/, bool /*all_compute*/) {}
  virtual void end_evaluation_round() {}
  /// Called after each evaluation of a fit, when the hooks of its end have returned, in the modes of
  /// `before_evaluation`.
  virtual void after_evaluation(LightningModule& /*module*/) {}
  /// Per-rank state, besides weights and optimizers, on which results depend to the last bit. A resume with another
  /// number of ranks gives rank 0's state to all.
  virtual StateTree state() const { return {}; }
  virtual void load_state(const StateTree& /*state*/) {}
  /// Moves the batch to its device through the transfer hooks: those of `data` if there is a data module, which by
  /// default call the module's.
  virtual void batch_to_device(LightningModule& module, DataModule* data, Batch& batch, int64_t loader_idx);
  /// True if `split` may split a batch.
  virtual bool splits_batches() const { return false; }
  /// Splits a batch on `device()` into parts, in the order of its samples. If there are none, the module computes it
  /// whole.
  virtual std::vector<MicroBatch> split(LightningModule& /*module*/, const Batch& /*batch*/, RunningStage /*stage*/) {
    return {};
  }
  /// Calls `work` with 0 to `parts` - 1, concurrently if each part has its own module, else in order.
  virtual void run_parts(size_t parts, const std::function<void(size_t)>& work);
  /// Computes forward and backward of a batch in place of the module's `training_step` and `backward`, after
  /// `before_forward`. Returns the loss of the whole batch, without a graph, on all ranks. nullopt: the strategy leaves
  /// this to the loop.
  virtual std::optional<StepOutput> compute_step(LightningModule& /*module*/, const Batch& /*batch*/,
                                                 const StepServices& /*services*/) {
    return std::nullopt;
  }
  /// Runs the module's `backward` hook. With GradSync::now it also exchanges gradients if there are several ranks.
  virtual void backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) = 0;
  /// Ends the forward of a training step that has returned no loss, so that no backward follows.
  virtual void skip_backward(LightningModule& /*module*/) {}
  /// Averages the gradients of the optimizer's parameters over all ranks, after backwards with GradSync::deferred that
  /// were not followed by one that exchanges. All ranks must call it. A parameter without a gradient counts as zero if
  /// another rank has one.
  virtual void sync_gradients(Optimizer& /*optimizer*/) {}
  /// Drops the gradients that a failed backward has left in copies of the module or of its parts; those of the module
  /// are the caller's. Waits for no device.
  virtual void drop_gradients_of_copies() noexcept {}
  /// From now on, calls `awaited` in each backward that exchanges gradients, when those of this rank are computed and
  /// backward begins to wait for the others. The call may come from the thread of the device's backward. An empty
  /// function ends this.
  virtual void watch_exchanges(const std::function<void()>& /*awaited*/) {}
  /// The loop calls this, which calls precision.step, which calls the optimizer. `closure` is empty except for
  /// optimizers that need one.
  virtual void optimizer_step(Optimizer& optimizer, const Closure& closure, const std::optional<Tensor>& found_inf);
  /// Whether ranks make steps with gradients that differ, so that what one decides by them the others do not know.
  virtual bool steps_apart() const { return false; }
  /// Whether this process has only a part of the parameters between steps; the others cannot be read then.
  virtual bool divides_parameters() const { return false; }
  /// The sizes of a parameter of all ranks together, while this rank may have a part of it with other sizes.
  virtual std::vector<int64_t> whole_sizes(const Tensor& parameter) const { return parameter.sizes().vec(); }
  /// Gathers divided parameters until the result is destroyed, or makes those that differ between ranks the same; what
  /// is written to them stays. Null if they are whole and the same. All ranks must call it.
  [[nodiscard]] virtual std::unique_ptr<WholeParameters> whole_parameters() { return nullptr; }
  /// A copy of the whole value of a parameter of the module, on its device. All ranks must call it.
  virtual Tensor gather(const Tensor& parameter);
  /// The state of an optimizer for a checkpoint, with whole tensors. All ranks must call it, in the same order; those
  /// that write no checkpoint may get null.
  virtual StateTree optimizer_state(const Optimizer& optimizer);
  /// Loads a state with whole tensors.
  virtual void load_optimizer_state(Optimizer& optimizer, const StateTree& state);
  /// Whether each rank writes its parts of a checkpoint; otherwise rank 0 writes all of it.
  virtual bool saves_parts() const { return false; }
  /// With `saves_parts`, what this rank writes of a parameter: no elements if other ranks write all of it, and nullopt
  /// if rank 0 writes it as a whole. The values are those of now, in memory that training changes.
  virtual std::optional<TensorPart> part_to_save(const Tensor& /*parameter*/) const { return std::nullopt; }
  /// With `saves_parts`, the state of an optimizer in which `TensorPart::whole` stands for each tensor that is divided.
  /// Appends what this rank writes of these.
  virtual StateTree optimizer_state_in_parts(const Optimizer& optimizer, std::vector<TensorPart>& parts);
  /// Called after each training step, eager or captured, outside any recording, when `global_step` steps are done.
  virtual void after_step(LightningModule& /*module*/, int64_t /*global_step*/) {}
  /// Records the work of `device()`; nullptr if it cannot be recorded.
  virtual std::unique_ptr<GraphCapture> make_graph_capture() { return nullptr; }
  /// A report of what the devices did in a fit, shown at its end; empty if there is nothing to report.
  virtual std::string device_report() const { return ""; }
  /// How the processes are connected, for the console; empty for one process.
  virtual std::string describe() const { return ""; }
  /// Called if the run has failed on this rank only. From then on, do not wait for the others.
  virtual void abandon() noexcept {}
  virtual void teardown() noexcept {}

 protected:
  /// Converts the module to the run's precision and moves it to `device()`.
  void convert_and_move(LightningModule& module);
};

}  // namespace fulgur
