#pragma once

#include <unordered_map>
#include <vector>

#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/options/options.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// Dynamic loss scaling (Micikevicius et al. 2018), with the semantics and state of Python's `torch.amp.GradScaler`:
/// the loss is multiplied by a scale, gradients are divided by it, a step whose gradients overflowed is skipped and
/// reduces the scale, which grows after a number of good steps. All of this happens on the device, without
/// synchronization. Used by one thread.
class FULGUR_API GradScaler : public Stateful {
 public:
  struct FULGUR_API Options {
    double init_scale = 65536, growth_factor = 2, backoff_factor = 0.5;
    int64_t growth_interval = 2000;
    void fields(Fields& f);
  };
  explicit GradScaler(Options options);

  /// Sets the device of the scale. It must be called before all others.
  void set_device(at::Device device);
  /// Returns loss × scale, in at least float32.
  Tensor scale(const Tensor& loss) const;
  /// Divides the gradients by the scale, in place, and checks whether any is not finite. Call it once per optimizer
  /// between two updates; a second call does nothing. Throws a ConfigError for float16 gradients, which would lose the
  /// small values that the scale preserves.
  void unscale(const Optimizer& optimizer, const std::vector<Tensor>& gradients);
  /// A float32 scalar on the device that is nonzero if `unscale` found a non-finite gradient. The next unscale
  /// overwrites it.
  std::optional<Tensor> found_inf(const Optimizer& optimizer) const;
  /// Computes scale ← scale × backoff if any gradient since the last update was not finite, else × growth after
  /// `growth_interval` updates in a row without one.
  void update();
  /// Discards what `unscale` has recorded since the last update.
  void abandon_step();
  /// The scale, a float32 scalar on the device.
  const Tensor& scale_tensor() const { return scale_; }

  /// Has Python's names: `scale`, `growth_factor`, `backoff_factor`, `growth_interval`, `_growth_tracker`. Device
  /// values are `late_number`s, so this does not synchronize.
  StateTree state() const override;
  /// Loads the scale and the count of good steps; the factors come from the options.
  void load_state(const StateTree& state) override;

 private:
  struct Found {
    Tensor inf;
    bool current = false;  // found in the current step
  };
  Options options_;
  Tensor scale_, growth_tracker_;
  std::unordered_map<const Optimizer*, Found> found_;
};

}  // namespace fulgur
