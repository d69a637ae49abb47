#pragma once

#include <memory>

#include "fulgur/core/batch.h"
#include "fulgur/core/optimizer.h"
#include "fulgur/core/state_tree.h"

namespace torch::nn {
class Module;
}

namespace fulgur {

/// Which number formats a run computes in. The strategy calls it; it owns no loop.
class FULGUR_API Precision : public Stateful {
 public:
  static constexpr const char* kRegistryKind = "precision";

  /// Leaves what `forward_guard` entered.
  struct FULGUR_API Guard {
    virtual ~Guard();
  };

  virtual std::string name() const = 0;
  /// Once, before all else. Throws a ConfigError where the device cannot compute so, and warns where it does so slowly.
  virtual void set_device(at::Device /*device*/) {}
  /// Converts floating parameters and buffers, once, before optimizers are made.
  virtual void convert_module(torch::nn::Module& module) = 0;
  /// Converts the floating tensors of a batch.
  virtual void convert_input(Batch& batch) = 0;
  /// Alive around each forward; nullptr where nothing is needed.
  virtual std::unique_ptr<Guard> forward_guard() { return nullptr; }
  /// Each optimizer of a fit, once, before it has any state.
  virtual void prepare_optimizer(Optimizer& /*optimizer*/) {}
  virtual Tensor scale(const Tensor& loss) { return loss; }
  /// The optimizer's gradients become those of the loss as it is; a second call before the next `update` does nothing.
  virtual void unscale(Optimizer& /*optimizer*/) {}
  /// Whether the optimizer's gradients overflowed: not 0 where one was not finite (float32 scalar on the device);
  /// nothing where the loss is not scaled. Behind `unscale`.
  virtual std::optional<Tensor> found_inf(const Optimizer& /*optimizer*/) const { return std::nullopt; }
  /// Steps the optimizer; may skip on the device where `found_inf` is not 0.
  virtual void step(Optimizer& optimizer, const std::optional<Tensor>& found_inf) { optimizer.step(found_inf); }
  /// At the end of each training step in which an optimizer was stepped.
  virtual void update() {}
  /// A step that is given up between `unscale` and `update`.
  virtual void abandon_step() {}
  /// The factor that the loss is multiplied by now, on the device; nothing where it is not scaled.
  virtual std::optional<Tensor> loss_scale() const { return std::nullopt; }
  /// Bytes that it keeps beside weights, gradients and optimizer state (float32 copies of the weights).
  virtual int64_t extra_bytes() const { return 0; }
  /// False where a step cannot evaluate its loss several times (a loss scale that changes in between).
  virtual bool allows_closure() const { return true; }

  StateTree state() const override { return {}; }
  void load_state(const StateTree&) override {}
};

}  // namespace fulgur
