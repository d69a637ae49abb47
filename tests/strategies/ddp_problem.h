#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/nn/batch_norm.h"

namespace fulgur::test {

/// Results of PyTorch's DistributedDataParallel: `make_ddp_baselines.py`.
inline nlohmann::json read_ddp_baseline() {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "baselines/ddp.json");
  return nlohmann::json::parse(file);
}

inline Tensor baseline_table(int64_t rows, int64_t columns, int64_t seed) {
  Tensor out = at::empty({rows, columns}, at::kDouble);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      out.mutable_data_ptr<double>()[i * columns + j] = std::sin(static_cast<double>(seed + 3 * i + 7 * j));
  return out;
}

/// Twin of the network in make_ddp_baselines.py, with its start values, in float64.
class DdpProblem : public LightningModule {
 public:
  static constexpr int64_t kSamples = 48, kBatch = 3;
  static constexpr double kRate = 0.05, kMomentum = 0.9;

  explicit DdpProblem(bool norm) {
    first_ = register_module("first", torch::nn::Linear(5, 7));
    second_ = register_module("second", torch::nn::Linear(7, 3));
    if (norm) norm_ = register_module("norm", nn::BatchNorm1d(7));
    for (Tensor& parameter : parameters()) parameter.set_data(parameter.to(at::kDouble));
    for (Tensor& buffer : buffers())
      if (buffer.is_floating_point()) buffer.set_data(buffer.to(at::kDouble));
    const at::NoGradGuard no_grad;
    first_->weight.copy_(baseline_table(7, 5, 1));
    first_->bias.copy_(baseline_table(1, 7, 2)[0]);
    second_->weight.copy_(baseline_table(3, 7, 3));
    second_->bias.copy_(baseline_table(1, 3, 4)[0]);
  }

  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor x = first_->forward(batch[0]);
    return at::mse_loss(second_->forward(at::tanh(norm_.is_empty() ? x : norm_->forward(x))), batch[1]);
  }

  /// As the baseline lists them.
  std::vector<double> values() const {
    std::vector<Tensor> tensors = {first_->weight, first_->bias, second_->weight, second_->bias};
    if (!norm_.is_empty())
      tensors.insert(tensors.end(), {norm_->weight, norm_->bias, norm_->running_mean, norm_->running_var});
    std::vector<double> all;
    for (const Tensor& tensor : tensors) {
      const Tensor flat = tensor.detach().contiguous().view(-1);
      all.insert(all.end(), flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
    }
    return all;
  }

  /// All samples, in order.
  static Batch samples() { return {baseline_table(kSamples, 5, 5), baseline_table(kSamples, 3, 6)}; }

  /// Batch `number` of a rank: strided, as samplers deal the samples out, in order and from the begin again.
  static Batch share(int64_t number, int64_t rank, int64_t ranks) {
    const Batch all = samples();
    const Tensor rows = at::empty({kBatch}, at::kLong);
    for (int64_t i = 0; i < kBatch; ++i)
      rows.mutable_data_ptr<int64_t>()[i] = ((number * kBatch + i) * ranks + rank) % kSamples;
    return {all[0].index_select(0, rows), all[1].index_select(0, rows)};
  }

 private:
  torch::nn::Linear first_{nullptr}, second_{nullptr};
  nn::BatchNorm1d norm_{nullptr};
};

}  // namespace fulgur::test
