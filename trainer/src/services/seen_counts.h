#pragma once

#include <ATen/ops/tensor.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "fulgur/core/contracts/run_context.h"

namespace fulgur::detail {

/// Counts training samples and tokens, of this rank and of all ranks. The totals are exact if requested, and when ranks
/// synchronize anyway; in between, the other ranks are assumed to count like this one. So a run in which nothing
/// depends on the totals makes no exchange for them.
class SeenCounts {
 public:
  /// `progress` holds the totals. `shares` returns the number of shares of the data, each of which as many ranks train
  /// on; empty: one for each rank.
  SeenCounts(RunContext& run, Progress& progress, std::function<int64_t()> shares = {})
      : run_(run), progress_(progress), shares_of_data_(std::move(shares)) {}
  /// From now on, the totals are exact after each batch, at the cost of a small exchange on the host. All ranks must
  /// call it.
  void count_each_batch() { each_batch_ = true; }
  void start_batch() {
    pending_before_ = pending_;
    own_before_ = {progress_.own_samples, progress_.own_tokens};
    all_before_ = {progress_.samples_seen, progress_.tokens_seen};
  }
  /// Adds a batch of this rank. With `count_each_batch` all ranks must call it.
  void add(int64_t samples, int64_t tokens) {
    progress_.own_samples += samples;
    progress_.own_tokens += tokens;
    progress_.samples_seen += samples * shares();
    progress_.tokens_seen += tokens * shares();
    if (run_.world_size() == 1) return;
    pending_.samples += samples;
    pending_.tokens += tokens;
    if (each_batch_) settle();
  }
  /// Makes the counts exact; all ranks must call it.
  void settle() {
    if (run_.world_size() == 1) return;
    const Tensor sums =
        run_.collectives().all_reduce(at::tensor({pending_.samples, pending_.tokens}, at::kLong), ReduceOp::sum);
    const int64_t of_share = run_.world_size() / shares();  // ranks that count the same samples
    progress_.samples_seen += sums.const_data_ptr<int64_t>()[0] / of_share - pending_.samples * shares();
    progress_.tokens_seen += sums.const_data_ptr<int64_t>()[1] / of_share - pending_.tokens * shares();
    pending_ = {};
  }
  /// Restores the counts from before the batch, which is not counted.
  void fall_back() {
    pending_ = pending_before_;
    progress_.own_samples = own_before_.samples;
    progress_.own_tokens = own_before_.tokens;
    progress_.samples_seen = all_before_.samples;
    progress_.tokens_seen = all_before_.tokens;
  }

  struct Counts {
    int64_t samples = 0, tokens = 0;
  };
  /// Counts of this rank that the others do not know yet. The rest is in `progress`.
  using Mark = Counts;
  Mark mark() const { return pending_; }
  void restore(Mark mark) { pending_ = mark; }

 private:
  int64_t shares() const { return shares_of_data_ ? shares_of_data_() : run_.world_size(); }

  RunContext& run_;
  Progress& progress_;
  std::function<int64_t()> shares_of_data_;
  bool each_batch_ = false;
  Counts pending_;  // of this rank, not exchanged yet
  Counts pending_before_, own_before_, all_before_;
};

}  // namespace fulgur::detail
