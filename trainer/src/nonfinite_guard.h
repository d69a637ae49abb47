#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/batch.h"
#include "fulgur/core/optimizer.h"
#include "fulgur/core/state_tree.h"

namespace fulgur::detail {

class Run;

/// `trainer.on_nonfinite`: what happens when the loss or the gradients are NaN or infinite. A loss on the CPU is read where it
/// lies; one on a device is added up there, and read where metrics are written, before checkpoints and at each epoch's end.
class NonFiniteGuard {
 public:
  explicit NonFiniteGuard(Run& run) : run_(run) {}
  void configure();

  /// Each loss, before its backward. Returns false where the rest of the step is left out (stop, rollback).
  bool saw_loss(const Tensor& loss);
  /// The gradients of a step before it is made; `norm` where clipping has computed it. Returns false where the optimizer is
  /// not to step.
  bool saw_gradients(Optimizer& optimizer, const Tensor& norm);
  /// The loss of a step that was launched as recorded: the device has added it up.
  void saw_replayed_step();
  /// What the optimizer gets for the step: on a device, whether to leave it out is decided there.
  const std::optional<Tensor>& found_inf() const { return found_inf_; }
  /// Reads what was added up since the last call. Waits for the device.
  void check_window();
  /// The first parameter or buffer that is not finite; nothing with `off`. Waits for the device.
  std::optional<std::string> bad_weight() const;
  /// The same in two parts: a number that the device computes, undefined with `off`, and what it says of the weights.
  Tensor weight_norm() const;
  static std::optional<std::string> bad_weight(const Tensor& norm, const NamedTensors& weights);
  /// The policy `stop` has ended the run.
  bool stopped() const { return stopped_; }

  StateTree state() const;
  void load_state(const StateTree& state);

 private:
  bool saw_scaled_gradients();
  void sum(const Tensor& value, double factor);
  void count_skips(const Tensor& found_inf);
  void log_skips();
  enum class Policy { off, raise, skip, stop, rollback };
  /// By the policy. Returns false where the step is left out; throws for `raise`.
  bool act(const std::string& what);
  void roll_back(const std::string& what);
  void note(const std::string& what) const;
  std::string find() const;
  std::string batches() const;

  Run& run_;
  Policy policy_ = Policy::off;
  Tensor sum_;  // of losses on a device; NaN after a norm that is not finite, too
  bool summed_ = false;
  int64_t first_batch_ = -1;         // of those that a finding may come from
  std::optional<Tensor> found_inf_;
  Tensor skipped_on_device_;
  int64_t skipped_ = 0, rollbacks_ = 0, rollbacks_in_a_row_ = 0, rolled_back_to_ = -1;
  bool skip_step_ = false, stopped_ = false;
};

}  // namespace fulgur::detail
