// torch::data's sampler of the order that all peers have; as its RandomSampler but for where the order comes from.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/samplers/base.h>

namespace bench {

class GivenOrder : public torch::data::samplers::Sampler<> {
 public:
  explicit GivenOrder(at::Tensor order) : order_(std::move(order)) {}
  void reset(std::optional<size_t> = std::nullopt) override {
    at_ = 0;
    ++epoch_;
  }
  std::optional<std::vector<size_t>> next(size_t batch_size) override {
    const int64_t left = order_.size(1) - at_;
    if (left == 0) return std::nullopt;
    const int64_t rows = std::min(left, static_cast<int64_t>(batch_size));
    const int64_t* first = order_.const_data_ptr<int64_t>() + epoch_ * order_.size(1) + at_;
    at_ += rows;
    return std::vector<size_t>(first, first + rows);
  }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  at::Tensor order_;
  int64_t epoch_ = -1, at_ = 0;
};

}  // namespace bench
