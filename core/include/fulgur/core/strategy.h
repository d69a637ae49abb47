#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/collectives.h"
#include "fulgur/core/data_module.h"
#include "fulgur/core/graph_capture.h"
#include "fulgur/core/module.h"
#include "fulgur/core/precision.h"
#include "fulgur/core/process_place.h"
#include "fulgur/core/stage.h"
#include "fulgur/core/state_tree.h"

namespace fulgur {

/// Whether a backward exchanges gradients between ranks; inside an accumulation window it need not.
enum class GradSync { now, deferred };

/// How many of the devices that were chosen on a node one process drives.
enum class DeviceUse {
  one,       ///< one device, and there is one process
  one_each,  ///< one device, and a process for each
  all,       ///< all of them
};

/// A share of a batch that is computed for itself.
struct FULGUR_API MicroBatch {
  LightningModule* module = nullptr;  ///< the run's, or a replica of it
  Batch batch;                        ///< where `module` wants it
  double share = 1;                   ///< of the batch's samples; those of all parts add up to 1
};

/// What a strategy is told once, before all else.
struct FULGUR_API StrategySetup {
  std::vector<at::Device> devices;  ///< that were chosen on this node; the CPU as often as processes are wanted on it
  bool devices_are_auto = false;    ///< nobody said how many
  int64_t num_nodes = 1;
  bool sync_batchnorm = false;
  std::shared_ptr<Precision> precision;
};

/// How `trainer` starts the processes of a run where nobody else has.
struct FULGUR_API LaunchPlan {
  std::string cluster_environment = "auto";  ///< who may have started them: ddp's option of this name
  int64_t max_restarts = 0;                  ///< times that the whole group is started again after a failure
  double start_timeout_s = 300;              ///< for the launchers of several nodes to find each other
};

/// Where a run computes: devices, ranks, communication, placement. A service that the one loop calls.
class FULGUR_API Strategy {
 public:
  static constexpr const char* kRegistryKind = "strategy";

  virtual ~Strategy();
  virtual std::string name() const = 0;
  virtual DeviceUse device_use() const { return DeviceUse::one; }
  /// For a strategy of several processes, which then find their places by `detect_cluster_environment`; nothing where a
  /// run is one process. Asked for before `configure`.
  virtual std::optional<LaunchPlan> launch_plan() const { return std::nullopt; }
  /// Before `attach`. Joins the other processes, where there are any.
  virtual void configure(StrategySetup setup) = 0;
  /// The device of batches and losses.
  virtual at::Device device() const = 0;
  /// All devices that this process computes on, `device()` first.
  virtual std::vector<at::Device> devices() const { return {device()}; }
  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  /// Where this process stands among those of the run.
  virtual const ProcessPlace& place() const;
  virtual Collectives& collectives() = 0;
  virtual Precision& precision() = 0;

  /// Converts the module's precision and places it; before optimizers are made. The module outlives teardown(), which a
  /// destructor calls too.
  virtual void attach(LightningModule& module) = 0;
  /// Copies of the module that the strategy wants beside it, each with a run context of its own. The Trainer makes
  /// them, sets them up as it does the module and gives them to `attach_replicas`, behind `attach`.
  virtual size_t replicas_wanted() const { return 0; }
  /// Throws a ConfigError where a replica has other tensors than the module.
  virtual void attach_replicas(LightningModule& /*module*/,
                               const std::vector<std::shared_ptr<LightningModule>>& /*replicas*/) {}
  /// Once, with the optimizers of a fit, before its first step: where a checkpoint is resumed, behind `load_state`.
  virtual void start_training(LightningModule& /*module*/, const std::vector<Optimizer*>& /*optimizers*/) {}
  /// Before each forward of training.
  virtual void before_forward(LightningModule& /*module*/, GradSync /*sync*/) {}
  /// Before each evaluation: what ranks keep of their own is made the same.
  virtual void before_evaluation(LightningModule& /*module*/) {}
  /// What the results depend on beside weights and optimizers, to the last bit; of each rank. A resume over another
  /// number of ranks gives rank 0's to all.
  virtual StateTree state() const { return {}; }
  virtual void load_state(const StateTree& /*state*/) {}
  /// Brings the batch to its device, through the transfer hooks: those of `data` where there is a data module, which by
  /// default call the module's.
  virtual void batch_to_device(LightningModule& module, DataModule* data, Batch& batch, int64_t loader_idx);
  /// True where `split` may cut a batch.
  virtual bool splits_batches() const { return false; }
  /// Cuts a batch on `device()` into parts, in the order of its samples; empty: the module computes it whole.
  virtual std::vector<MicroBatch> split(LightningModule& /*module*/, const Batch& /*batch*/, RunningStage /*stage*/) {
    return {};
  }
  /// Calls `work` with 0 to `parts` - 1: at the same time where each part has a module of its own, else in order.
  virtual void run_parts(size_t parts, const std::function<void(size_t)>& work);
  /// Runs the module's `backward` hook; with GradSync::now, gradients are exchanged where there are several ranks.
  virtual void backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) = 0;
  /// Averages the gradients of the optimizer's parameters over all ranks, after backwards with GradSync::deferred that
  /// no exchanging one followed. All ranks must call it. A parameter without a gradient counts as zero if another rank
  /// has one.
  virtual void sync_gradients(Optimizer& /*optimizer*/) {}
  /// The loop calls this, it calls precision.step, that calls the optimizer. `closure` is empty but for optimizers that
  /// need one.
  virtual void optimizer_step(Optimizer& optimizer, const Closure& closure, const std::optional<Tensor>& found_inf);
  /// After each step of training, eager or captured, and outside of any recording; `global_step` are done now.
  virtual void after_step(LightningModule& /*module*/, int64_t /*global_step*/) {}
  /// Records the work of `device()`; nullptr where it cannot be recorded.
  virtual std::unique_ptr<GraphCapture> make_graph_capture() { return nullptr; }
  /// What the devices did in a fit, for its end; empty where there is nothing to say.
  virtual std::string device_report() const { return ""; }
  /// How the processes are connected, for the person at the console; empty for a world of one.
  virtual std::string text() const { return ""; }
  /// The run has failed on this rank alone: nobody is waited for any more.
  virtual void abandon() noexcept {}
  virtual void teardown() noexcept {}

 protected:
  /// The module in the run's precision, on `device()`.
  void convert_and_move(LightningModule& module);
};

}  // namespace fulgur
