#pragma once

// <torch/nn/module.h> costs 8 s per file (2.2 s precompiled) and cannot be avoided here: users derive from Module.
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/contracts/component_access.h"
#include "fulgur/core/contracts/hook_signatures.h"
#include "fulgur/core/contracts/hooks.h"
#include "fulgur/core/contracts/layer_chain.h"
#include "fulgur/core/contracts/loader.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/contracts/optimizer_handle.h"
#include "fulgur/core/contracts/placed_module.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/contracts/run_context.h"
#include "fulgur/core/contracts/tensor_plan.h"
#include "fulgur/core/state/batch.h"
#include "fulgur/core/state/clip.h"
#include "fulgur/core/state/outputs.h"

namespace fulgur {

/// A network and its training logic. Derive, register layers as in LibTorch, and write `training_step`; the Trainer
/// does the rest. Hooks have Lightning's names and do nothing by default; they run on the run's thread, after those of
/// the callbacks.
class FULGUR_API LightningModule : public torch::nn::Module {
 public:
  static constexpr const char* kRegistryKind = "model";

  using torch::nn::Module::Module;
  ~LightningModule() override;

  /// Returns the loss of one batch (a scalar with a graph); the Trainer runs backward, step and zero_grad.
  virtual StepOutput training_step(const Batch& batch, int64_t batch_idx) = 0;
  /// Computes one batch of a validation loader, without gradients and in eval mode. Log your metrics here. If not
  /// overridden, validation is skipped with one warning.
  virtual Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx);
  virtual Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx);
  /// Returns what `trainer predict` writes: named tensors with samples in dimension 0. Prediction is an error if this
  /// is not overridden.
  virtual Outputs predict_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx);

  /// Returns optimizers and schedules, in one of the forms of `OptimizerPlan`. An optimizer without attached parameters
  /// gets all that require gradients. The default is an empty plan, which means those of the config.
  virtual OptimizerPlan configure_optimizers();
  /// If false, `training_step` runs backward, step and zero_grad itself (`optimizers(i)`, `manual_backward`), and may
  /// use several optimizers.
  virtual bool automatic_optimization() const { return true; }
  /// Callbacks that belong to the module; one replaces a configured callback of the same class.
  virtual std::vector<std::shared_ptr<Callback>> configure_callbacks();
  /// The same computation as `training_step`, as a chain of layers, for a strategy that divides it among ranks
  /// (strategy: mesh with a pipeline). Called when a fit starts. Default: no layers, so such a strategy refuses the
  /// module.
  virtual LayerChain stages() { return {}; }
  /// How a strategy divides layers among ranks (strategy: mesh with an axis `tensor`); rules in the strategy's options
  /// come before these. Called when a fit starts. Default: no rules.
  virtual TensorPlan tensor_plan() const { return {}; }
  /// Called once before the strategy's setup; large layers may be created here.
  virtual void configure_model() {}
  /// Loaders for a run without a DataModule and without loaders passed by the caller.
  virtual Loaders train_dataloader() { return {}; }
  virtual Loaders val_dataloader() { return {}; }
  virtual Loaders test_dataloader() { return {}; }
  virtual Loaders predict_dataloader() { return {}; }
  /// Number of tokens in a training batch, for intervals in `tok`. Default: unknown.
  virtual std::optional<int64_t> num_tokens(const Batch&) const { return std::nullopt; }
  /// True if the module reads trained weights by itself, for example from a file that an option names. `trainer
  /// validate`, `test` and `predict` without a checkpoint then do not warn of new weights.
  virtual bool has_trained_weights() const { return false; }

  virtual void prepare_data() {}
  /// If true, `prepare_data` runs once per node (node-local disks); if false, once in total (shared file systems).
  virtual bool prepare_data_per_node() const { return true; }
  virtual void setup(TrainerFn) {}
  virtual void teardown(TrainerFn) {}

  virtual void on_fit_start() {}
  virtual void on_fit_end() {}
  virtual void on_train_start() {}
  virtual void on_train_end() {}
  virtual void on_train_epoch_start() {}
  virtual void on_train_epoch_end() {}
  /// Return -1 to skip the rest of the epoch.
  virtual int on_train_batch_start(const Batch&, int64_t /*batch_idx*/) { return 0; }
  virtual void on_train_batch_end(const StepOutput&, const Batch&, int64_t /*batch_idx*/) {}

  virtual Batch on_before_batch_transfer(Batch batch, int64_t /*loader_idx*/) { return batch; }
  /// The default moves every tensor to `device`, without blocking.
  virtual Batch transfer_batch_to_device(Batch batch, const at::Device& device, int64_t loader_idx);
  virtual Batch on_after_batch_transfer(Batch batch, int64_t /*loader_idx*/) { return batch; }

  virtual void on_before_zero_grad(Optimizer&) {}
  /// The default calls `optimizer.zero_grad()`, which sets the gradients of its parameters to undefined.
  virtual void optimizer_zero_grad(int64_t epoch, int64_t batch_idx, Optimizer& optimizer);
  virtual void on_before_backward(const Tensor& /*loss*/) {}
  /// The default calls `loss.backward()`. An override must leave gradients in `.grad`.
  virtual void backward(const Tensor& loss, const BackwardOptions& options);
  virtual void on_after_backward() {}
  virtual void on_before_optimizer_step(Optimizer&) {}
  /// Performs the step of automatic optimization. The default calls `optimizer.step(closure)`. `closure` is empty
  /// except for optimizers that need one. An override that does not step leaves the weights unchanged; the gradients
  /// are zeroed anyway.
  virtual void optimizer_step(int64_t epoch, int64_t batch_idx, OptimizerHandle& optimizer, const Closure& closure);
  /// Steps a schedule. The default calls `scheduler.step(metric)`.
  virtual void lr_scheduler_step(LrScheduler& scheduler, std::optional<double> metric);
  /// Clips the gradients of `optimizer`; the default follows `gradient_clip_val` and `gradient_clip_algorithm`, on the
  /// device. An override may call `clip_gradients`.
  virtual void configure_gradient_clipping(Optimizer& optimizer, std::optional<double> clip_val,
                                           ClipAlgorithm algorithm);
  /// Returns the joint 2-norm before clipping, on the device, if `algorithm` is norm; otherwise an undefined tensor.
  Tensor clip_gradients(Optimizer& optimizer, double clip_val, ClipAlgorithm algorithm = ClipAlgorithm::norm);

  virtual void on_validation_model_zero_grad();
  virtual void on_validation_model_eval();
  virtual void on_validation_model_train();
  virtual void on_validation_start() {}
  virtual void on_validation_end() {}
  virtual void on_validation_epoch_start() {}
  virtual void on_validation_epoch_end() {}
  virtual void on_validation_batch_start(const Batch&, int64_t /*batch_idx*/, int64_t /*loader_idx*/) {}
  virtual void on_validation_batch_end(const Outputs&, const Batch&, int64_t /*batch_idx*/, int64_t /*loader_idx*/) {}

  virtual void on_test_model_eval();
  virtual void on_test_model_train();
  virtual void on_test_start() {}
  virtual void on_test_end() {}
  virtual void on_test_epoch_start() {}
  virtual void on_test_epoch_end() {}
  virtual void on_test_batch_start(const Batch&, int64_t /*batch_idx*/, int64_t /*loader_idx*/) {}
  virtual void on_test_batch_end(const Outputs&, const Batch&, int64_t /*batch_idx*/, int64_t /*loader_idx*/) {}

  virtual void on_predict_model_eval();
  virtual void on_predict_model_train();
  virtual void on_predict_start() {}
  virtual void on_predict_end() {}
  virtual void on_predict_epoch_start() {}
  virtual void on_predict_epoch_end() {}
  virtual void on_predict_batch_start(const Batch&, int64_t /*batch_idx*/, int64_t /*loader_idx*/) {}
  virtual void on_predict_batch_end(const Outputs&, const Batch&, int64_t /*batch_idx*/, int64_t /*loader_idx*/) {}

  virtual void on_save_checkpoint(StateTree& /*checkpoint*/) {}
  /// Called before the checkpoint's weights are loaded, so that the module can create layers or buffers for them.
  virtual void on_load_checkpoint(const StateTree& /*checkpoint*/) {}

  /// Logs a scalar of this step; see `LogOptions`. Outside a run it warns once and does nothing.
  void log(std::string_view name, const Tensor& value, const LogOptions& options = {});
  void log(std::string_view name, double value, const LogOptions& options = {});
  /// Logs the value that the metric has over all batches of the epoch and all ranks. Call it in each step that updates
  /// the metric; when the epoch ends, its value is computed and it is reset. Of the options, only `prog_bar` and
  /// `logger` apply. The metric is a member of the module.
  void log(std::string_view name, Metric& metric, const LogOptions& options = {});
  void log_dict(const std::vector<std::pair<std::string, Tensor>>& values, const LogOptions& options = {});
  void log_dict(const Metrics& values, const LogOptions& options = {});
  /// Sends a picture, histogram, text or table to the loggers; see `RunContext::log_media`. Outside a run it warns once
  /// and does nothing. Copies of the module on other devices of the process send nothing.
  void log_media(const MediaRecord& record);
  /// Lets the loggers keep a file or folder; see `RunContext::log_artifact`. Outside a run it warns once.
  void log_artifact(const std::filesystem::path& path);
  /// Prints a line to the console, on rank 0 only.
  void print(std::string_view line);

  // ---- manual optimization; each throws an Error outside a run ----
  OptimizerHandle& optimizers(size_t index = 0) const;
  /// The optimizer itself as an O; throws an Error if it is not one.
  template <std::derived_from<Optimizer> O>
  O& optimizers(size_t index = 0) const;
  /// Returns all optimizers: `auto [generator, discriminator] = optimizers<2>();`. Throws an Error unless there are
  /// exactly `N`.
  template <size_t N>
  auto optimizers() const;
  /// Schedule `index` of those planned. In manual optimization the module steps it.
  LrScheduler& lr_schedulers(size_t index = 0) const;
  /// Runs backward through precision, hooks and strategy. With an optimizer, only its parameters get gradients.
  void manual_backward(const Tensor& loss, const BackwardOptions& options = {});
  void manual_backward(const Tensor& loss, OptimizerHandle& optimizer, BackwardOptions options = {});
  /// While the result is alive, parameters of the other optimizers do not require gradients.
  [[nodiscard]] ToggledOptimizer toggled(OptimizerHandle& optimizer) const;
  /// While the result is alive, `manual_backward` does not exchange gradients between ranks.
  class FULGUR_API NoSync {
   public:
    explicit NoSync(RunContext& run);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    RunContext& run_;
  };
  [[nodiscard]] NoSync no_sync() const { return NoSync(run()); }
  /// Averages the gradients of `optimizer` over all ranks, after backwards under `no_sync` that were not followed by
  /// one that exchanges. All ranks must call it; with one rank it does nothing.
  void sync_gradients(OptimizerHandle& optimizer) const;

  /// Makes no parameter require a gradient, and puts the module into eval mode.
  void freeze();
  /// Makes all parameters require gradients, and puts the module into train mode.
  void unfreeze();
  /// The tensors of all ranks, in rank order; all ranks must call it. See `Collectives::all_gather`.
  std::vector<Tensor> all_gather(const Tensor& value, bool with_gradients = false) const;
  int64_t current_epoch() const { return run().progress().epoch; }
  int64_t global_step() const { return run().progress().global_step; }
  int64_t global_rank() const { return run().rank(); }

  /// The run that this module is in; throws an Error outside a run.
  RunContext& run() const;
  bool in_run() const { return run_ != nullptr; }
  /// The options this module was created from (init_args), or null if it was constructed directly.
  const ConfigNode& hparams() const { return hparams_; }
  /// Device of the first parameter; CPU if there is none.
  at::Device device() const;

 private:
  friend struct GradientNorm;
  friend struct detail::ComponentAccess;
  template <class T>
  static HookMask hooks_of() {
#define FULGUR_CHECK(...) FULGUR_CHECK_HOOK(T, LightningModule, __VA_ARGS__)
    FULGUR_MODULE_SIGNATURES(FULGUR_CHECK)
#undef FULGUR_CHECK
    HookMask mask;
#define FULGUR_LOOK(hook) mask.set(Hook::hook, FULGUR_OVERRIDES(T, LightningModule, hook));
    FULGUR_TRANSFER_HOOKS(FULGUR_LOOK)
    FULGUR_MODULE_HOOKS(FULGUR_LOOK)
    FULGUR_STEP_HOOKS(FULGUR_LOOK)
    FULGUR_LOOK(on_train_batch_end)
#undef FULGUR_LOOK
    mask.exact = true;
    return mask;
  }
  std::vector<std::pair<torch::nn::Module*, bool>> modes_before_evaluation_;
  Tensor root_gradient_;                                            // 1, with which backward starts
  std::vector<std::pair<const Optimizer*, Tensor>> clipped_norms_;  // of the current gradients, before clipping
  bool notes_norms_ = false;                                        // also when values are clipped
  void check_optimizer_count(size_t wanted) const;
  void enter_evaluation();
  void leave_evaluation();
  RunContext* run_ = nullptr;
  ConfigNode hparams_;
  HookMask overridden_;
  // This object, if the class that its factory or its user knows is its own; nothing in a copy of it.
  struct WholeObject {
    const void* begin = nullptr;
    size_t bytes = 0;
  } whole_object_;
  std::function<std::shared_ptr<LightningModule>()> factory_;
  std::vector<std::shared_ptr<PlacedModule>> placed_modules_;
};

template <std::derived_from<Optimizer> O>
O& LightningModule::optimizers(size_t index) const {
  if (auto* typed = dynamic_cast<O*>(&optimizers(index).optimizer())) return *typed;
  throw Error("[core.LightningModule.optimizers] optimizer " + std::to_string(index) +
              " is of another class: " + optimizers(index).optimizer().name() + ".");
}

template <size_t N>
auto LightningModule::optimizers() const {
  check_optimizer_count(N);
  return [this]<size_t... I>(std::index_sequence<I...>) { return std::tie(optimizers(I)...); }
  (std::make_index_sequence<N>());
}

/// The norms of gradients before a module's `clip_gradients` changed them. The Trainer reads them instead of computing
/// them a second time, which is impossible after clipping by value.
struct GradientNorm {
  /// The norm of the optimizer's gradients; undefined if they were not clipped since the last call.
  FULGUR_API static Tensor take(LightningModule& module, const Optimizer& optimizer);
  /// Forgets the norm, since the gradients have changed.
  static void forget(LightningModule& module) { module.clipped_norms_.clear(); }
  /// From now on, clipping by value also records the norm.
  static void note_also_of_values(LightningModule& module, bool on) { module.notes_norms_ = on; }
};

/// How a module declares `validation_step`, `test_step` or `predict_step`, for messages: `fulgur::Outputs test_step(…)
/// override`.
FULGUR_API std::string expected_step(std::string_view step);

/// Thrown by the default `validation_step`, `test_step` and `predict_step`.
class FULGUR_API StepNotOverridden : public Error {
 public:
  explicit StepNotOverridden(const std::string& step);
  ~StepNotOverridden() override;
};

/// A parameter under its first name in the module.
struct NamedParameter {
  std::string name;
  Tensor value;
};

/// Each parameter once, by identity, under its first name in `named_parameters()`. The only source for optimizers,
/// counts, clipping and checkpoints: `parameters()` lists a tied tensor twice, so it would be stepped twice.
FULGUR_API std::vector<NamedParameter> unique_parameters(const torch::nn::Module& module);

/// Registers the tensor of parameter `name` also as `other` (dotted names). A layer's typed member is a separate
/// handle, so assign it too: `decoder->weight = encoder->weight; tie_parameters(*this, "encoder.weight",
/// "decoder.weight");` Throws an Error for unknown names or different shapes. (Not called `tie`: argument-dependent
/// lookup would find std::tie.)
FULGUR_API void tie_parameters(torch::nn::Module& module, const std::string& name, const std::string& other);

/// One group of all parameters that require gradients.
FULGUR_API std::vector<ParamGroup> trainable_groups(const torch::nn::Module& module);

/// One group with the parameters of `module` that require a gradient and whose dotted names begin with `prefix`
/// (`"generator."`), for an optimizer of a part. Names stay those in `module`. Throws a ConfigError that lists the
/// first parts of names if there is no such parameter.
FULGUR_API std::vector<ParamGroup> parameter_groups(const torch::nn::Module& module, std::string_view prefix);

/// Converts floating tensors of the module to `dtype`, in place; `Module::to` would convert integer buffers too.
/// Tensors in `keep`, by their `unsafeGetTensorImpl()`, are left as they are.
FULGUR_API void convert_floating(torch::nn::Module& module, at::ScalarType dtype,
                                 const std::unordered_set<const void*>& keep = {});

}  // namespace fulgur
