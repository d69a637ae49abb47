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
  /// Converts floating parameters and buffers, once, before optimizers are made.
  virtual void convert_module(torch::nn::Module& module) = 0;
  /// Converts the floating tensors of a batch.
  virtual void convert_input(Batch& batch) = 0;
  /// Alive around each forward; nullptr where nothing is needed.
  virtual std::unique_ptr<Guard> forward_guard() { return nullptr; }
  virtual Tensor scale(const Tensor& loss) { return loss; }
  virtual void unscale(Optimizer&) {}
  /// Steps the optimizer; may skip on the device where `found_inf` is not 0.
  virtual void step(Optimizer& optimizer, const std::optional<Tensor>& found_inf) { optimizer.step(found_inf); }
  /// False where a step cannot evaluate its loss several times (a loss scale that changes in between).
  virtual bool allows_closure() const { return true; }

  StateTree state() const override { return {}; }
  void load_state(const StateTree&) override {}
};

}  // namespace fulgur
