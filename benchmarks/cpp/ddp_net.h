// C10 and C16: the network and the data that every rank trains with; peers/ddp_net.py is the same in Python.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>

#include "bench.h"
#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/nn/batch_norm.h"

namespace bench {

using at::Tensor;

constexpr int64_t kWidth = 1024, kLayers = 8, kBatches = 4, kAccumulated = 4;
constexpr double kRate = 0.05;
constexpr int64_t kComparedLosses = 12;

/// Linear layers with ReLU between them; with `norm`, BatchNorm in front of each ReLU.
struct Net : fulgur::LightningModule {
  explicit Net(bool norm) {
    for (int64_t i = 0; i < kLayers; ++i)
      linear_.push_back(register_module("linear" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    for (int64_t i = 0; i + 1 < kLayers && norm; ++i)
      norm_.push_back(register_module("norm" + std::to_string(i), fulgur::nn::BatchNorm1d(kWidth)));
  }

  fulgur::StepOutput training_step(const fulgur::Batch& batch, int64_t) override {
    Tensor x = batch[0];
    for (size_t i = 0; i < linear_.size(); ++i) {
      x = linear_[i]->forward(x);
      if (i + 1 < linear_.size()) x = at::relu(norm_.empty() ? x : norm_[i]->forward(x));
    }
    return at::mse_loss(x, batch[1]);
  }

  void load(const std::map<std::string, Tensor>& weights) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < linear_.size(); ++i) {
      linear_[i]->weight.copy_(weights.at("linear." + std::to_string(i) + ".weight"));
      linear_[i]->bias.copy_(weights.at("linear." + std::to_string(i) + ".bias"));
    }
    for (auto& norm : norm_) norm->reset_parameters();
    for (Tensor& parameter : parameters()) parameter.mutable_grad() = Tensor();
  }

 private:
  std::vector<torch::nn::Linear> linear_;
  std::vector<fulgur::nn::BatchNorm1d> norm_;
};

/// Batches by number and rank, and the weights to start with.
struct Inputs {
  Tensor x, y;
  std::map<std::string, Tensor> weights;
  explicit Inputs(const Arguments& arguments) {
    for (const auto& [name, value] : fulgur::read_safetensors(arguments.text("inputs") + "/data.safetensors").tensors)
      (name == "x" ? x : y) = value;
    for (const auto& [name, value] :
         fulgur::read_safetensors(arguments.text("inputs") + "/weights.safetensors").tensors)
      weights[name] = value;
  }
  fulgur::Batch batch(int64_t number, int64_t rank) const {
    return {x[number % kBatches][rank], y[number % kBatches][rank]};
  }
};

}  // namespace bench
