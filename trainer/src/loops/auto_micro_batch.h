#pragma once

#include <exception>
#include <functional>
#include <vector>

#include "fulgur/core/state/outputs.h"
#include "run/services.h"

namespace fulgur::detail {

/// `trainer.auto_micro_batch`: computes a training batch in micro-batches of at most `RunState::micro_batch_samples`
/// samples, and halves that number whenever one of the ranks runs out of memory (c10::OutOfMemoryError). What the
/// failed attempt has drawn, logged and accumulated is undone first. With several ranks, the attempt must not exchange
/// anything, and each attempt ends with one small exchange, after which all ranks continue alike.
class AutoMicroBatch {
 public:
  AutoMicroBatch(RunState& run, Services& services) : run_(run), services_(services) {}

  /// Forward and backward of the samples `part`, which are the fraction `share` of the batch. Returns their loss,
  /// without its graph and not multiplied by `share`. `stop` is set to leave out the parts that follow.
  using Part = std::function<StepOutput(const Batch& part, double share, bool& stop)>;

  /// The output of the whole batch: the mean of the losses weighted by samples, and the other outputs joined. Rethrows
  /// the OutOfMemoryError if not even one sample fits; then the other ranks throw an Error that names that rank. Throws
  /// an Error for outputs that cannot be joined, or a loss of only some of the parts.
  StepOutput run(const Batch& batch, const Part& part);

 private:
  struct Before;
  /// One attempt; true if this rank ran out of memory.
  bool ran_out(const Batch& batch, const std::vector<int64_t>& sizes, const Part& part, StepOutput& output);
  StepOutput compute(const Batch& batch, const std::vector<int64_t>& sizes, const Part& part) const;
  /// Halves the parts after an attempt in which the largest of this rank had `samples`.
  void halve(int64_t samples, bool here);

  RunState& run_;
  Services& services_;
  std::exception_ptr failure_;  // of the last attempt on this rank
  bool reported_ = false;
};

}  // namespace fulgur::detail
