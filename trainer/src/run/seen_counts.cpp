#include "run/seen_counts.h"

#include <ATen/ops/tensor.h>

#include "run/run.h"

namespace fulgur::detail {

void SeenCounts::start_batch() {
  const Progress& progress = run_.progress_;
  pending_before_ = pending_;
  own_before_ = {progress.own_samples, progress.own_tokens};
  all_before_ = {progress.samples_seen, progress.tokens_seen};
}

void SeenCounts::add(int64_t samples, int64_t tokens) {
  Progress& progress = run_.progress_;
  progress.own_samples += samples;
  progress.own_tokens += tokens;
  progress.samples_seen += samples * run_.world_size();
  progress.tokens_seen += tokens * run_.world_size();
  if (run_.world_size() == 1) return;
  pending_.samples += samples;
  pending_.tokens += tokens;
  if (each_batch_) settle();
}

void SeenCounts::settle() {
  if (run_.world_size() == 1) return;
  const Tensor sums =
      run_.collectives().all_reduce(at::tensor({pending_.samples, pending_.tokens}, at::kLong), ReduceOp::sum);
  Progress& progress = run_.progress_;
  progress.samples_seen += sums.const_data_ptr<int64_t>()[0] - pending_.samples * run_.world_size();
  progress.tokens_seen += sums.const_data_ptr<int64_t>()[1] - pending_.tokens * run_.world_size();
  pending_ = {};
}

void SeenCounts::fall_back() {
  Progress& progress = run_.progress_;
  pending_ = pending_before_;
  progress.own_samples = own_before_.samples;
  progress.own_tokens = own_before_.tokens;
  progress.samples_seen = all_before_.samples;
  progress.tokens_seen = all_before_.tokens;
}

}  // namespace fulgur::detail
