#pragma once

#include "fulgur/core/contracts/sampler.h"

namespace bench {

/// The order that all peers have.
class GivenOrder : public fulgur::Sampler {
 public:
  explicit GivenOrder(at::Tensor order) : order_(std::move(order)) {}
  int64_t size(int64_t, int64_t) const override { return order_.size(1); }
  std::vector<int64_t> order(const fulgur::SamplerContext& context) const override {
    const int64_t* row = order_.const_data_ptr<int64_t>() + context.epoch * order_.size(1);
    return {row, row + order_.size(1)};
  }
  bool shuffles() const override { return true; }

 private:
  at::Tensor order_;
};

}  // namespace bench
