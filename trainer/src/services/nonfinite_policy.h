#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/contracts/precision.h"
#include "fulgur/core/contracts/run_context.h"
#include "fulgur/core/state/batch.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/trainer/trainer_options.h"
#include "logging/log_store.h"
#include "services/window_buffers.h"

namespace fulgur::detail {

/// The action of the loop for a step, as decided by NonFinitePolicy.
enum class NonFiniteDecision {
  proceed,
  skip,       ///< leave out the rest of the step
  stop,       ///< end the run, without another checkpoint
  roll_back,  ///< to the newest checkpoint
};

/// Batches of an epoch, and the step after them.
struct BatchRange {
  int64_t first = -1;  ///< -1: unknown, as if it were the last
  int64_t last = -1;
  int64_t epoch = 0, global_step = 0;
  bool is_one() const { return first < 0 || first == last; }
};

/// `trainer.on_nonfinite`: what happens when the loss or the gradients are NaN or infinite. The policy decides, and the
/// loops act. A loss on the CPU is read directly, unless the step is captured. A loss on a device is watched there
/// (`LogStore::watch`), and judged with the row of metrics that covers it, before a validation, before checkpoints and
/// at each epoch's end.
class NonFinitePolicy {
 public:
  struct Settings {
    OnNonFinite policy = OnNonFinite::off;
    int64_t check_every = 0;  ///< steps between checks of weights and gradients by name; 0: never
    bool logs_counters = true;
    Precision* precision = nullptr;
    Strategy* strategy = nullptr;  ///< nullptr: parameters are whole
  };
  /// `batch` is the current training batch; `position` returns the position of the run, for messages.
  NonFinitePolicy(RunContext& run, LogStore& logs, const Batch& batch, std::function<std::string()> position)
      : run_(run), logs_(logs), batch_(batch), position_(std::move(position)) {}
  void configure(const Settings& settings) { settings_ = settings; }

  /// Call before the first forward of an accumulation window: under `skip`, buffers can be restored to this point.
  void begin_window();
  /// The same for manual optimization, around each batch: its window ends with a batch in which an optimizer stepped.
  void begin_manual_batch();
  NonFiniteDecision end_manual_batch(bool stepped);
  /// From now on the buffers can be restored to the start of the window under every policy.
  void keep_window_buffers() { keeps_buffers_ = true; }
  /// The same after a step that a callback skips: undoes what its forwards did to the buffers.
  void restore_buffers();
  /// Counts the step that a callback skips, unless an overflow has counted it already. Does not wait.
  void count_judged_skip();
  /// A callback has judged the loss of a step as good.
  void note_progress() { finite_since_rollback_ = true; }
  /// A callback requests a rollback because of `what`, such as `the loss is 12`, at the current position.
  NonFiniteDecision roll_back_for(const std::string& what);
  /// On the CPU, with several ranks of which each may capture other steps: from now on, they exchange nothing in a
  /// step, and judge losses together with each row of metrics, as on a GPU.
  void begin_capture_by_ranks() { watches_on_cpu_ = ranks_capture_ = true; }
  bool ranks_capture() const { return ranks_capture_; }
  /// Whether a step's gradients decide if it is made or skipped.
  bool judges_gradients() const;
  /// Checks each loss, before its backward.
  NonFiniteDecision check_loss(const Tensor& loss);
  /// The loss as passed to backward. If steps are skipped by their gradients, a non-finite loss gives NaN gradients for
  /// all leaves it depends on, or for `inputs` if not empty.
  Tensor shown_in_gradients(const Tensor& loss, const std::vector<Tensor>& inputs = {});
  /// The same for a loss whose backward runs before `check_loss`: a loss that is not finite gives NaN gradients for all
  /// leaves that it depends on.
  Tensor shown_unchecked(const Tensor& loss) const;
  /// Checks the gradients of a step before it is made; `norm` if clipping has computed it. The optimizer
  /// steps if the result is `proceed`.
  NonFiniteDecision check_gradients(Optimizer& optimizer, const Tensor& norm);
  /// Call before a step is recorded on the CPU: creates what the recorded step adds to.
  void before_recording();
  /// The loss of a replayed step: the device has watched it.
  void after_replay();
  /// Passed to the optimizer for the step: on a device, the device decides whether to skip it.
  const std::optional<Tensor>& found_inf() const { return found_inf_; }
  /// Steps that were skipped so far: a scalar on the CPU, or on the device if it decides. With manual optimization,
  /// batches in which all steps of optimizers were skipped, from the first call on. Does not wait.
  Tensor skipped_steps() const;
  /// Logs the number of skipped steps, and the loss scale, if a step was made since the last call: a row is due.
  void log_counters();
  /// The row of these batches reports how many steps the device has skipped so far; under `skip`, new skips are
  /// reported.
  void check_skipped_steps(int64_t skipped, const BatchRange& batches);
  /// Call when the window of watched losses is closed. Returns its batches.
  BatchRange close_window();
  /// The decision of the policy if losses of these batches were not `finite` on any rank.
  NonFiniteDecision judge(bool finite, const BatchRange& batches);
  /// Judges the losses of the current window. Synchronizes with the device.
  NonFiniteDecision judge_running_window();
  /// The first of `weights` that is not finite; nullopt with `off`. Synchronizes with the device.
  std::optional<std::string> bad_weight(const NamedTensors& weights) const;
  /// The same for the module's weights, in two parts: a number computed on the device, undefined with `off`, and its
  /// interpretation.
  Tensor weight_norm() const;
  static std::optional<std::string> bad_weight(const Tensor& norm, const NamedTensors& weights);
  /// Whether the policy `stop` has ended the run.
  bool stopped() const { return stopped_; }

  /// The finding behind the last decision that was not `proceed`.
  struct Finding {
    std::string what;        ///< `the loss`
    std::string where;       ///< position and batches, in parentheses
    std::string text;        ///< the begin of a message: `[trainer.on_nonfinite] the loss is not finite (…)`
    bool is_finite = false;  ///< a callback has judged a finite loss
  };
  const Finding& finding() const { return finding_; }
  /// The rollbacks of the run so far.
  int64_t rollbacks() const { return rollbacks_; }
  /// Counts a rollback to the checkpoint `path`, whose state of this policy is `saved`, for the last finding. Throws a
  /// NonFiniteError (an Error for a finite loss) if there were too many rollbacks without a checkpoint of finite
  /// training in between.
  void count_rollback(const StateTree& saved, const std::filesystem::path& path);
  /// Whether the rollback that was counted last is the first of this process.
  bool is_first_rollback() const { return rollbacks_here_ == 1; }

  /// `window_open`: inside an accumulation window.
  StateTree state(bool window_open) const;
  void load_state(const StateTree& state, bool manual);

 private:
  Tensor weight_norm(const NamedTensors& weights) const;
  NonFiniteDecision decide_by_gradients(Optimizer& optimizer, const Tensor& norm);
  NonFiniteDecision check_scaled_gradients(const Optimizer& optimizer);
  void note_manual_step(NonFiniteDecision decision);
  void count_skipped_batch();
  void count_skips(const Tensor& found_inf);
  void count_skip();
  void put_back_if(const Tensor& found_inf);
  bool saves_buffers() const { return settings_.policy == OnNonFinite::skip || keeps_buffers_; }
  /// Applies the policy; throws for `raise`.
  NonFiniteDecision decide(const std::string& what);
  /// Keeps `what`, found at the current position, as the finding.
  void keep_finding(const std::string& what);
  void note(const std::string& what) const;
  std::string find() const;
  std::string find_in_weights(bool reads_weights) const;
  std::string find_on_all_ranks(const Optimizer& optimizer) const;
  std::string describe_batches() const;
  /// The ranks that saw a non-finite loss in the reported batches; with `raise` only this rank is asked.
  std::vector<int64_t> find_ranks() const;
  /// The batches that a finding may come from.
  BatchRange suspects() const;

  RunContext& run_;
  LogStore& logs_;
  const Batch& batch_;
  std::function<std::string()> position_;
  Settings settings_;
  Finding finding_;
  int64_t first_batch_ = -1;            // of the current window
  std::optional<BatchRange> judged_{};  // a closed window, while reports are about its batches
  std::optional<Tensor> found_inf_;
  WindowBuffers buffers_;  // used under skip, and if a callback may skip steps
  bool keeps_buffers_ = false;
  bool manual_window_open_ = false, in_manual_batch_ = false;
  Tensor skipped_on_device_;
  int64_t skipped_ = 0, rollbacks_ = 0, rollbacks_in_a_row_ = 0, rollbacks_here_ = 0;
  bool finite_since_rollback_ = true;
  // Manual optimization: a batch may have steps of several optimizers.
  mutable bool counts_batches_ = false;
  int64_t steps_of_batch_ = 0, skips_of_batch_ = 0, skipped_batches_ = 0;
  Tensor skips_of_batch_on_device_, skipped_batches_on_device_;
  int64_t counters_logged_at_ = 0, noted_skips_ = 0;
  bool stopped_ = false;
  std::optional<std::string> rolls_back_for_;  // after the batch of manual optimization
  bool reported_ = false;                      // under skip: this skip has been reported
  bool loss_is_bad_ = false;                   // its gradients, which may be finite, must then show it
  bool counts_ = false;                        // skipped steps are counted
  // With several ranks: whether a loss of this rank was not finite in the window, and which ranks had one in the
  // reported batches.
  bool own_loss_is_bad_ = false;
  bool watches_on_cpu_ = false;  // steps on the CPU are captured, so that losses are not checked one by one
  bool ranks_capture_ = false;   // and each rank others
  std::vector<int64_t> bad_ranks_;
};

}  // namespace fulgur::detail
