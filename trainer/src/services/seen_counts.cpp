#include "services/seen_counts.h"

#include <ATen/ops/tensor.h>

namespace fulgur::detail {

void SeenCounts::start_batch() {
  pending_before_ = pending_;
  own_before_ = {progress_.own_samples, progress_.own_tokens};
  all_before_ = {progress_.samples_seen, progress_.tokens_seen};
}

void SeenCounts::add(int64_t samples, int64_t tokens) {
  progress_.own_samples += samples;
  progress_.own_tokens += tokens;
  progress_.samples_seen += samples * run_.world_size();
  progress_.tokens_seen += tokens * run_.world_size();
  if (run_.world_size() == 1) return;
  pending_.samples += samples;
  pending_.tokens += tokens;
  if (each_batch_) settle();
}

void SeenCounts::settle() {
  if (run_.world_size() == 1) return;
  const Tensor sums =
      run_.collectives().all_reduce(at::tensor({pending_.samples, pending_.tokens}, at::kLong), ReduceOp::sum);
  progress_.samples_seen += sums.const_data_ptr<int64_t>()[0] - pending_.samples * run_.world_size();
  progress_.tokens_seen += sums.const_data_ptr<int64_t>()[1] - pending_.tokens * run_.world_size();
  pending_ = {};
}

void SeenCounts::fall_back() {
  pending_ = pending_before_;
  progress_.own_samples = own_before_.samples;
  progress_.own_tokens = own_before_.tokens;
  progress_.samples_seen = all_before_.samples;
  progress_.tokens_seen = all_before_.tokens;
}

}  // namespace fulgur::detail
