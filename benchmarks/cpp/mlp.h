// C2: the network and the data that every C++ program trains with; peers/mlp.py is the same in Python.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>

#include "bench.h"
#include "fulgur/checkpoint/safetensors.h"

namespace bench {

using at::Tensor;

constexpr int64_t kBatch = 64;
constexpr double kRate = 1e-3;
constexpr size_t kComparedLosses = 100;

struct Mlp : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  Mlp() {
    first = register_module("first", torch::nn::Linear(784, 128));
    second = register_module("second", torch::nn::Linear(128, 10));
  }
  Tensor forward(const Tensor& x) { return second->forward(at::relu(first->forward(x))); }
  Tensor loss(const Tensor& x, const Tensor& y) { return at::cross_entropy_loss(forward(x), y); }

  void load(const std::string& path) {
    const at::NoGradGuard no_grad;
    auto mine = named_parameters();
    for (const auto& [name, value] : fulgur::read_safetensors(path).tensors) mine[name].copy_(value);
  }
};

/// Samples, and the order of them in each epoch.
struct Inputs {
  Tensor x, y, order;
  explicit Inputs(const Arguments& arguments) {
    for (const auto& [name, value] : fulgur::read_safetensors(arguments.text("inputs") + "/data.safetensors").tensors)
      (name == "x" ? x : name == "y" ? y : order) = value;
  }
  int64_t samples() const { return x.size(0); }
};

/// The first losses one by one, and the mean over 10,000 samples at the end.
class Losses {
 public:
  void add(const Tensor& loss) {
    if (first_.size() < kComparedLosses) first_.push_back(loss.item<double>());
  }
  nlohmann::json report(Mlp& net, const Inputs& inputs) const {
    const at::NoGradGuard no_grad;
    return {{"first", first_},
            {"final", net.loss(inputs.x.narrow(0, 0, 10000), inputs.y.narrow(0, 0, 10000)).item<double>()}};
  }

 private:
  std::vector<double> first_;
};

}  // namespace bench
