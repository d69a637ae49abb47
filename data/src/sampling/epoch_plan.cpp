#include "sampling/epoch_plan.h"

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

EpochPlan::EpochPlan(std::vector<int64_t> order, int64_t batch_size, bool whole_only)
    : order_(std::make_shared<const std::vector<int64_t>>(std::move(order))),
      largest_(batch_size),
      whole_only_(whole_only) {}

EpochPlan::EpochPlan(const std::vector<std::vector<int64_t>>& batches) {
  std::vector<int64_t> order;
  for (const auto& batch : batches) {
    if (batch.empty())
      throw Error(
          cat("[data.DataLoader] a batch of the batch sampler must have samples; batch ", ends_.size(), " has none."));
    order.insert(order.end(), batch.begin(), batch.end());
    ends_.push_back(static_cast<int64_t>(order.size()));
    largest_ = std::max(largest_, static_cast<int64_t>(batch.size()));
  }
  order_ = std::make_shared<const std::vector<int64_t>>(std::move(order));
}

int64_t EpochPlan::rows_at(const EpochPosition& position) const {
  if (ends_.empty()) {
    const int64_t left = samples() - position.samples;
    return left < largest_ && whole_only_ ? 0 : std::min(largest_, left);
  }
  const auto batch = static_cast<size_t>(position.batches);
  return batch < ends_.size() ? ends_[batch] - position.samples : 0;
}

bool EpochPlan::fits(const EpochPosition& position) const {
  if (ends_.empty()) return position.samples <= samples();
  const auto batch = static_cast<size_t>(position.batches);
  return batch <= ends_.size() && position.samples == (batch == 0 ? 0 : ends_[batch - 1]);
}

}  // namespace fulgur
