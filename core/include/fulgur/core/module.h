#pragma once

// <torch/nn/module.h> costs 8 s a file (2.2 s precompiled) and cannot be avoided here: users derive from Module.
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/core/batch.h"
#include "fulgur/core/callback.h"
#include "fulgur/core/hooks.h"
#include "fulgur/core/loader.h"
#include "fulgur/core/optimizer.h"
#include "fulgur/core/outputs.h"
#include "fulgur/core/registry.h"
#include "fulgur/core/run_context.h"

namespace fulgur {

enum class ClipAlgorithm { norm, value };

/// A network and how it learns. Derive, register layers as in LibTorch, and write `training_step`; the Trainer does the
/// rest. Hooks have Lightning's names and do nothing by default; they run on the thread of the run, after those of the
/// callbacks.
class FULGUR_API LightningModule : public torch::nn::Module {
 public:
  static constexpr const char* kRegistryKind = "model";

  using torch::nn::Module::Module;
  ~LightningModule() override;

  /// The loss of one batch (a scalar with a graph); the Trainer does backward, step and zero_grad.
  virtual StepOutput training_step(const Batch& batch, int64_t batch_idx) = 0;
  /// One batch of a validation loader, without gradients and in eval mode. Log what you measure. Not overridden:
  /// validation is skipped, with one warning.
  virtual Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx);
  virtual Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx);
  /// What `trainer predict` writes; named tensors with samples in dimension 0. Not overridden: an error.
  virtual Outputs predict_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx);

  /// Optimizers over attached parameters (`attach_optimizer` helps). Default: empty, which means the config's.
  virtual OptimizerPlan configure_optimizers();
  /// Callbacks that belong to the module; one of the class of a configured callback replaces it.
  virtual std::vector<std::shared_ptr<Callback>> configure_callbacks();
  /// Called once before setup of the strategy; large layers may be made here.
  virtual void configure_model() {}
  /// Loaders of a stage for a run without a DataModule.
  virtual std::vector<std::shared_ptr<Loader>> dataloaders(Stage stage);

  virtual void prepare_data() {}
  virtual void setup(Verb) {}
  virtual void teardown(Verb) {}

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
  /// Default: every tensor to `device`, without blocking.
  virtual Batch transfer_batch_to_device(Batch batch, const at::Device& device, int64_t loader_idx);
  virtual Batch on_after_batch_transfer(Batch batch, int64_t /*loader_idx*/) { return batch; }

  virtual void on_before_zero_grad(Optimizer&) {}
  virtual void on_before_backward(const Tensor& /*loss*/) {}
  virtual void on_after_backward() {}
  virtual void on_before_optimizer_step(Optimizer&) {}
  /// Clips the gradients of `optimizer`; the default does as `gradient_clip_val` and `_algorithm` say, on the device.
  /// An override may call `clip_gradients`.
  virtual void configure_gradient_clipping(Optimizer& optimizer, std::optional<double> clip_val, ClipAlgorithm algorithm);
  void clip_gradients(Optimizer& optimizer, double clip_val, ClipAlgorithm algorithm = ClipAlgorithm::norm);

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
  virtual void on_predict_start() {}
  virtual void on_predict_end() {}
  virtual void on_predict_epoch_start() {}
  virtual void on_predict_epoch_end() {}
  virtual void on_predict_batch_start(const Batch&, int64_t /*batch_idx*/, int64_t /*loader_idx*/) {}
  virtual void on_predict_batch_end(const Outputs&, const Batch&, int64_t /*batch_idx*/, int64_t /*loader_idx*/) {}

  virtual void on_save_checkpoint(StateTree& /*checkpoint*/) {}
  virtual void on_load_checkpoint(const StateTree& /*checkpoint*/) {}

  /// Logs a scalar of this step; see `LogOptions`. Outside a run: warns once and does nothing.
  void log(std::string_view name, const Tensor& value, const LogOptions& options = {});
  void log(std::string_view name, double value, const LogOptions& options = {});
  void log_dict(const std::vector<std::pair<std::string, Tensor>>& values, const LogOptions& options = {});
  /// The run that this module is in; throws an Error outside of one.
  RunContext& run() const;
  bool in_run() const { return run_ != nullptr; }
  /// The options this module was made from (init_args), or null where it was made by hand.
  const ConfigNode& hparams() const { return hparams_; }
  /// Device of the first parameter; CPU where there is none.
  at::Device device() const;

  /// Called by the Trainer.
  void set_run(RunContext* run) { run_ = run; }
  void set_hparams(ConfigNode hparams) { hparams_ = std::move(hparams); }
  const HookMask& overridden() const { return overridden_; }
  void set_overridden(const HookMask& mask) { overridden_ = mask; }

  /// Called by `make_component`.
  template <class T>
  static void on_component_made(T& made, ConfigNode options) {
    made.set_hparams(std::move(options));
    made.set_overridden(hooks_of<T>());
  }

  template <class T>
  static HookMask hooks_of() {
    HookMask mask;
#define FULGUR_LOOK(hook) mask.set(Hook::hook, FULGUR_OVERRIDES(T, LightningModule, hook))
    FULGUR_LOOK(validation_step);
    FULGUR_LOOK(test_step);
    FULGUR_LOOK(predict_step);
    FULGUR_LOOK(on_before_batch_transfer);
    FULGUR_LOOK(transfer_batch_to_device);
    FULGUR_LOOK(on_after_batch_transfer);
    FULGUR_LOOK(configure_gradient_clipping);
#undef FULGUR_LOOK
    mask.exact = true;
    return mask;
  }

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> modes_before_evaluation_;
  void enter_evaluation();
  void leave_evaluation();
  RunContext* run_ = nullptr;
  ConfigNode hparams_;
  HookMask overridden_;
};

/// Thrown by the default `validation_step`, `test_step` and `predict_step`.
class FULGUR_API StepNotOverridden : public Error {
 public:
  explicit StepNotOverridden(const std::string& step);
  ~StepNotOverridden() override;
};

/// A parameter under the first name it has in the module.
struct NamedParameter {
  std::string name;
  Tensor value;
};

/// Each parameter once, by identity, under its first name in `named_parameters()`. The only source for optimizers,
/// counts, clipping and checkpoints: `parameters()` lists a tied tensor twice, and would step it twice.
FULGUR_API std::vector<NamedParameter> unique_parameters(const torch::nn::Module& module);

/// Registers the tensor of parameter `name` also as `other` (dotted names). A layer's typed member is a handle of its
/// own, so assign it too: `decoder->weight = encoder->weight; tie_parameters(*this, "encoder.weight", "decoder.weight");`
/// Throws an Error for unknown names or other shapes. (Not called `tie`: std::tie would be found first.)
FULGUR_API void tie_parameters(torch::nn::Module& module, const std::string& name, const std::string& other);

/// One group of all parameters that require gradients.
FULGUR_API std::vector<ParamGroup> trainable_groups(const torch::nn::Module& module);

/// Converts floating tensors of the module to `dtype`, in place; `Module::to` would convert integer buffers too.
FULGUR_API void convert_floating(torch::nn::Module& module, at::ScalarType dtype);

}  // namespace fulgur
