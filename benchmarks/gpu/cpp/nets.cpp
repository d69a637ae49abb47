#include "nets.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace gpu_bench {
namespace {

using at::Tensor;
namespace nn = torch::nn;

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding, bool bias) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding).bias(bias));
}

class Mlp final : public Net {
 public:
  explicit Mlp(const Case& work) {
    const int64_t width = work.number("width");
    for (int64_t i = 0; i < work.number("depth"); ++i)
      layers_.push_back(register_module("layer" + std::to_string(i), nn::Linear(width, width)));
    last_ = register_module("last", nn::Linear(width, work.number("classes")));
  }
  Tensor forward(Tensor x) override {
    for (auto& layer : layers_) x = at::relu(layer(x));
    return last_(x);
  }

 private:
  std::vector<nn::Linear> layers_;
  nn::Linear last_{nullptr};
};

// Convolution, pool, norm, GELU, convolution, norm, GELU; norms without a weight that learns.
class AirbenchGroup final : public nn::Module {
 public:
  AirbenchGroup(int64_t in, int64_t out) {
    conv1_ = register_module("conv1", conv(in, out, 3, 1, 1, false));
    norm1_ = register_module("norm1", nn::BatchNorm2d(out));
    conv2_ = register_module("conv2", conv(out, out, 3, 1, 1, false));
    norm2_ = register_module("norm2", nn::BatchNorm2d(out));
    norm1_->weight.set_requires_grad(false);
    norm2_->weight.set_requires_grad(false);
  }
  Tensor forward(const Tensor& x) { return at::gelu(norm2_(conv2_(at::gelu(norm1_(at::max_pool2d(conv1_(x), 2)))))); }

 private:
  nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  nn::BatchNorm2d norm1_{nullptr}, norm2_{nullptr};
};

class Airbench final : public Net {
 public:
  explicit Airbench(const Case& work) {
    whiten_ = register_module("whiten", conv(3, 24, 2, 1, 0, true));
    whiten_->weight.set_requires_grad(false);
    const std::vector<int64_t> widths{24, 64, 256, 256};
    for (size_t i = 1; i < widths.size(); ++i)
      groups_.push_back(
          register_module("group" + std::to_string(i), std::make_shared<AirbenchGroup>(widths[i - 1], widths[i])));
    head_ = register_module("head", nn::Linear(nn::LinearOptions(256, work.number("classes")).bias(false)));
  }
  Tensor forward(Tensor x) override {
    x = at::gelu(whiten_(x));
    for (auto& group : groups_) x = group->forward(x);
    return (head_(at::max_pool2d(x, 3).flatten(1)) / 9).to(at::kFloat);
  }

 private:
  nn::Conv2d whiten_{nullptr};
  std::vector<std::shared_ptr<AirbenchGroup>> groups_;
  nn::Linear head_{nullptr};
};

class Bottleneck final : public nn::Module {
 public:
  Bottleneck(int64_t in, int64_t inner, int64_t stride, bool bias) {
    const int64_t out = 4 * inner;
    conv1_ = register_module("conv1", conv(in, inner, 1, 1, 0, bias));
    norm1_ = register_module("norm1", nn::BatchNorm2d(inner));
    conv2_ = register_module("conv2", conv(inner, inner, 3, stride, 1, bias));
    norm2_ = register_module("norm2", nn::BatchNorm2d(inner));
    conv3_ = register_module("conv3", conv(inner, out, 1, 1, 0, bias));
    norm3_ = register_module("norm3", nn::BatchNorm2d(out));
    if (in == out && stride == 1) return;
    skip_ = register_module("skip", conv(in, out, 1, stride, 0, bias));
    skip_norm_ = register_module("skip_norm", nn::BatchNorm2d(out));
  }
  Tensor forward(const Tensor& x) {
    const Tensor inner = at::relu(norm2_(conv2_(at::relu(norm1_(conv1_(x))))));
    return at::relu(norm3_(conv3_(inner)) + (skip_ ? skip_norm_(skip_(x)) : x));
  }

 private:
  nn::Conv2d conv1_{nullptr}, conv2_{nullptr}, conv3_{nullptr}, skip_{nullptr};
  nn::BatchNorm2d norm1_{nullptr}, norm2_{nullptr}, norm3_{nullptr}, skip_norm_{nullptr};
};

class ResNet final : public Net {
 public:
  explicit ResNet(const Case& work) {
    const bool bias = work.is("bias");
    const int64_t width = work.number("width");
    stem_ = register_module("stem", conv(3, width, 7, 2, 3, bias));
    stem_norm_ = register_module("stem_norm", nn::BatchNorm2d(width));
    int64_t in = width, inner = width;
    const auto depths = work.values.at("depths").get<std::vector<int64_t>>();
    for (size_t stage = 0; stage < depths.size(); ++stage, inner *= 2)
      for (int64_t i = 0; i < depths[stage]; ++i) {
        const auto name = "block" + std::to_string(stage) + "_" + std::to_string(i);
        blocks_.push_back(
            register_module(name, std::make_shared<Bottleneck>(in, inner, i == 0 && stage > 0 ? 2 : 1, bias)));
        in = 4 * inner;
      }
    head_ = register_module("head", nn::Linear(in, work.number("classes")));
  }
  Tensor forward(Tensor x) override {
    x = at::max_pool2d(at::relu(stem_norm_(stem_(x))), 3, 2, 1);
    for (auto& block : blocks_) x = block->forward(x);
    return head_(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

 private:
  nn::Conv2d stem_{nullptr};
  nn::BatchNorm2d stem_norm_{nullptr};
  std::vector<std::shared_ptr<Bottleneck>> blocks_;
  nn::Linear head_{nullptr};
};

}  // namespace

std::shared_ptr<Net> make_net(const Case& work) {
  const auto model = work.text("model", "");
  if (model == "mlp") return std::make_shared<Mlp>(work);
  if (model == "airbench") return std::make_shared<Airbench>(work);
  if (model == "resnet") return std::make_shared<ResNet>(work);
  throw std::runtime_error("there is no model '" + model + "'");
}

}  // namespace gpu_bench
