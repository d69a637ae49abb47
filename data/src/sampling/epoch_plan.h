#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/sampler.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

struct EpochPosition {
  int64_t epoch = 0;
  int64_t batches = 0;
  int64_t samples = 0;     ///< of this rank's share
  int64_t dealt_from = 0;  ///< samples of the epoch, over all ranks, that came before the rest was redistributed
};

/// The samples of one epoch in order, and where each batch of them ends.
class EpochPlan {
 public:
  EpochPlan() : order_(std::make_shared<std::vector<int64_t>>()) {}
  /// Batches of `batch_size`; the last one has the remainder, or is dropped with `whole_only`.
  EpochPlan(std::vector<int64_t> order, int64_t batch_size, bool whole_only)
      : order_(std::make_shared<const std::vector<int64_t>>(std::move(order))),
        largest_(batch_size),
        whole_only_(whole_only) {}
  /// Given batches. Throws an Error for an empty one.
  explicit EpochPlan(const std::vector<std::vector<int64_t>>& batches) {
    std::vector<int64_t> order;
    for (const auto& batch : batches) {
      if (batch.empty())
        throw Error(cat("[data.DataLoader] a batch of the batch sampler must have samples; batch ", ends_.size(),
                        " has none."));
      order.insert(order.end(), batch.begin(), batch.end());
      ends_.push_back(static_cast<int64_t>(order.size()));
      largest_ = std::max(largest_, static_cast<int64_t>(batch.size()));
    }
    order_ = std::make_shared<const std::vector<int64_t>>(std::move(order));
  }

  const std::shared_ptr<const std::vector<int64_t>>& order() const { return order_; }
  int64_t samples() const { return static_cast<int64_t>(order_->size()); }
  int64_t largest_batch() const { return largest_; }
  /// Rows of the batch at `position`; 0 at the end.
  int64_t rows_at(const EpochPosition& position) const {
    if (ends_.empty()) {
      const int64_t left = samples() - position.samples;
      return left < largest_ && whole_only_ ? 0 : std::min(largest_, left);
    }
    const auto batch = static_cast<size_t>(position.batches);
    return batch < ends_.size() ? ends_[batch] - position.samples : 0;
  }
  /// True if a batch may start at `position`: with batches of fixed size, at any sample, so that the size can change
  /// between runs.
  bool fits(const EpochPosition& position) const {
    if (ends_.empty()) return position.samples <= samples();
    const auto batch = static_cast<size_t>(position.batches);
    return batch <= ends_.size() && position.samples == (batch == 0 ? 0 : ends_[batch - 1]);
  }

 private:
  std::shared_ptr<const std::vector<int64_t>> order_;
  std::vector<int64_t> ends_;  ///< of given batches
  int64_t largest_ = 1;
  bool whole_only_ = false;
};

}  // namespace fulgur
