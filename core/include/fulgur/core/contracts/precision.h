#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/state/batch.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/core/state/tensor_part.h"

namespace torch::nn {
class Module;
}

namespace fulgur {

/// The number formats that a run computes in. The strategy calls it.
class FULGUR_API Precision : public Stateful {
 public:
  static constexpr const char* kRegistryKind = "precision";

  /// Its destructor leaves what `forward_guard` entered.
  struct FULGUR_API Guard {
    virtual ~Guard();
  };

  virtual std::string name() const = 0;
  /// Called once, before all others. Throws a ConfigError if the device does not support the format, and warns if it is
  /// slow there.
  virtual void set_device(at::Device /*device*/) {}
  /// Converts floating-point parameters and buffers, once, before optimizers are created.
  virtual void convert_module(torch::nn::Module& module) = 0;
  /// Converts the floating-point tensors of a batch.
  virtual void convert_input(Batch& batch) = 0;
  /// Returns an object that lives during each forward; nullptr if none is needed.
  virtual std::unique_ptr<Guard> forward_guard() { return nullptr; }
  /// Called once for each optimizer of a fit, before it has any state.
  virtual void prepare_optimizer(Optimizer& /*optimizer*/) {}
  virtual Tensor scale(const Tensor& loss) { return loss; }
  /// Unscales the optimizer's gradients; a second call before the next `update` does nothing.
  virtual void unscale(Optimizer& /*optimizer*/) {}
  /// A float32 scalar on the device that is nonzero if any of the optimizer's gradients was not finite; nullopt if the
  /// loss is not scaled. Call after `unscale`.
  virtual std::optional<Tensor> found_inf(const Optimizer& /*optimizer*/) const { return std::nullopt; }
  /// Steps the optimizer. The device may skip the step if `found_inf` is nonzero.
  virtual void step(Optimizer& optimizer, const std::optional<Tensor>& found_inf) { optimizer.step(found_inf); }
  /// Called at the end of each training step in which an optimizer was stepped.
  virtual void update() {}
  /// Abandons a step between `unscale` and `update`.
  virtual void abandon_step() {}
  /// The current loss scale, on the device; nullopt if the loss is not scaled.
  virtual std::optional<Tensor> loss_scale() const { return std::nullopt; }
  /// Bytes kept in addition to weights, gradients and optimizer state (float32 copies of the weights).
  virtual int64_t extra_bytes() const { return 0; }
  /// False if a step cannot evaluate its loss several times (the loss scale would change in between).
  virtual bool allows_closure() const { return true; }

  /// `state`, if each rank writes what it has of it (`Strategy::saves_parts`): with `TensorPart::whole` in place of
  /// each tensor that is divided. Appends the parts that this rank writes. All ranks must call it.
  virtual StateTree state_in_parts(std::vector<TensorPart>& /*parts*/) const { return state(); }
  StateTree state() const override { return {}; }
  void load_state(const StateTree&) override {}
};

}  // namespace fulgur
