#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/batch.h"
#include "fulgur/core/optimizer.h"
#include "fulgur/core/state_tree.h"
#include "loops/window_buffers.h"

namespace fulgur::detail {

class Run;

/// `trainer.on_nonfinite`: what happens when the loss or the gradients are NaN or infinite. A loss on the CPU is read
/// where it lies. One on a device is watched there (`LogStore::watch`), and judged with the row of metrics that covers
/// it, before a validation, before checkpoints and at each epoch's end.
class NonFinitePolicy {
 public:
  explicit NonFinitePolicy(Run& run) : run_(run) {}
  void configure();

  /// Before the first forward of an accumulation window: under `skip` its buffers can be put back.
  void begin_window();
  /// The same for manual optimization, around each batch: its window ends with a batch in which an optimizer stepped.
  void begin_manual_batch();
  void end_manual_batch(bool stepped);
  /// Each step is made or left out by its gradients.
  bool judges_gradients() const;
  /// Each loss, before its backward. Returns false where the rest of the step is left out (stop, rollback).
  bool check_loss(const Tensor& loss);
  /// The loss as backward takes it. Where a step is left out by its gradients, those of a loss that is not finite are
  /// NaN for all leaves that it depends on, of `inputs` if there are some.
  Tensor shown_in_gradients(Tensor loss, const std::vector<Tensor>& inputs = {});
  /// The gradients of a step before it is made; `norm` where clipping has computed it. Returns false where the
  /// optimizer is not to step.
  bool check_gradients(Optimizer& optimizer, const Tensor& norm);
  /// The loss of a step that was launched as recorded: the device has watched it.
  void after_replay();
  /// What the optimizer gets for the step: on a device, whether to leave it out is decided there.
  const std::optional<Tensor>& found_inf() const { return found_inf_; }
  /// Logs how many steps were left out, and the loss scale, if a step was made since the last call: a row is due.
  void log_counters();
  /// The row of these batches says how many steps a device has left out so far: under `skip`, each that is new is
  /// noted.
  void check_skipped_steps(int64_t skipped, int64_t first_batch, int64_t last_batch);
  /// The window of watched losses is closed: the first and the last batch in it.
  std::pair<int64_t, int64_t> close_window();
  /// Acts by the policy if losses of the batches from `first_batch` to `last_batch` were not `finite` on any rank.
  void judge(bool finite, int64_t first_batch, int64_t last_batch);
  /// Judges the losses of the running window. Waits for the device.
  void judge_running_window();
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
  bool check_scaled_gradients();
  void count_skips(const Tensor& found_inf);
  void put_back_if(const Tensor& found_inf);
  enum class Policy { off, raise, skip, stop, rollback };
  /// By the policy. Returns false where the step is left out; throws for `raise`.
  bool act(const std::string& what);
  void roll_back(const std::string& what);
  void note(const std::string& what) const;
  std::string find() const;
  std::string find_in_weights() const;
  std::string batches() const;
  /// Which ranks have seen a loss that is not finite in what is reported; with `raise` this one alone is asked.
  std::vector<int64_t> find_ranks() const;
  int64_t last_batch() const;
  /// What is reported while it lives is of these batches.
  class OfBatches;

  Run& run_;
  Policy policy_ = Policy::off;
  int64_t first_batch_ = -1;  // of those that a finding may come from
  int64_t last_batch_ = -1;   // of a closed window that is judged; else the batch is the current one
  std::optional<Tensor> found_inf_;
  WindowBuffers buffers_;  // under skip
  bool manual_window_open_ = false;
  Tensor skipped_on_device_;
  int64_t skipped_ = 0, rollbacks_ = 0, rollbacks_in_a_row_ = 0, rolled_back_to_ = -1;
  int64_t counters_logged_at_ = 0, noted_skips_ = 0;
  bool stopped_ = false;
  std::optional<std::string> rolls_back_for_;  // once the batch of manual optimization is over
  bool reported_ = false;                      // under skip: what this step is left out for
  bool loss_is_bad_ = false;                   // and its gradients, which may be finite, are to show it
  bool counts_ = false;                        // skipped steps are counted
  // With several ranks: a loss of this one was not finite in the window; which ranks had one in what is reported.
  bool own_loss_is_bad_ = false;
  std::vector<int64_t> bad_ranks_;
};

}  // namespace fulgur::detail
