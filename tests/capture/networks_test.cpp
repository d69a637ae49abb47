#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/modules/rnn.h>

#include "capture/twin.h"

namespace networks_test {

using namespace capture_test;

std::unique_ptr<Training> mlp(bool adam, at::ScalarType dtype = at::kFloat) {
  auto made = std::make_unique<Training>();
  Training* const t = made.get();
  const auto of_type = [t, dtype](at::IntArrayRef shape) {
    t->parameters.push_back((at::randn(shape) * 0.2).to(dtype).requires_grad_());
    return t->parameters.back();
  };
  const Tensor w1 = of_type({16, 32}), b1 = of_type({16}), w2 = of_type({10, 16}), b2 = of_type({10});
  t->batch_by(7, [dtype] { return std::vector{at::randn({8, 32}).to(dtype), at::randint(10, {8}, at::kLong)}; });
  const auto optimizer = std::make_shared<AdamW>(*t);
  t->step = [=] {
    const Tensor hidden = at::relu(at::linear(t->inputs[0], w1, b1));
    const auto gradients = take_gradients(*t, at::cross_entropy_loss(at::linear(hidden, w2, b2), t->inputs[1]));
    adam ? optimizer->step(gradients) : sgd_step(*t, gradients);
  };
  return made;
}

TEST_CASE("an MLP with AdamW and a changing learning rate: all calls are typed, nothing is allocated") {
  const CaptureSummary summary = expect_same_bits([] { return mlp(/*adam=*/true); }, 60);
  CHECK(summary.boxed == 0);
  CHECK(summary.exchanged == 0);
  CHECK(summary.typed > 10);
  CHECK(summary.typed < 25);
  CHECK(summary.planned_bytes + summary.separate_bytes <= summary.peak_live_bytes + 256);
}

TEST_CASE("an MLP with SGD, in float32, float64 and bfloat16") {
  expect_same_bits([] { return mlp(/*adam=*/false); });
  expect_same_bits([] { return mlp(/*adam=*/false, at::kDouble); });
  expect_same_bits([] { return mlp(/*adam=*/false, at::kBFloat16); });
}

TEST_CASE("convolutions, BatchNorm with running statistics, pooling and dropout") {
  expect_same_bits([] {
    auto made = std::make_unique<Training>();
    Training* const t = made.get();
    const Tensor c1 = t->parameter({4, 1, 3, 3}), d1 = t->parameter({4}), g1 = t->parameter({4}),
                 e1 = t->parameter({4}), c2 = t->parameter({8, 4, 3, 3}), w = t->parameter({10, 8 * 9}),
                 b = t->parameter({10});
    const Tensor mean = t->buffer(at::zeros({4})), variance = t->buffer(at::ones({4})),
                 count = t->buffer(at::zeros({}, at::kLong));
    t->batch_by(5, [] { return std::vector{at::randn({6, 1, 12, 12}), at::randint(10, {6}, at::kLong)}; });
    const auto optimizer = std::make_shared<AdamW>(*t);
    t->step = [=] {
      count.add_(1);
      Tensor h = at::conv2d(t->inputs[0], c1, d1, 1, 1);
      h = at::relu(at::batch_norm(h, g1, e1, mean, variance, /*training=*/true, 0.1, 1e-5, /*cudnn_enabled=*/false));
      h = at::max_pool2d(h, 2, 2);
      h = at::avg_pool2d(at::relu(at::conv2d(h, c2, {}, 1, 1)), 2, 2);
      h = at::dropout(h.flatten(1), 0.5, /*train=*/true);
      optimizer->step(take_gradients(*t, at::cross_entropy_loss(at::linear(h, w, b), t->inputs[1])));
    };
    return made;
  });
}

std::unique_ptr<Training> lstm(bool by_cells) {
  auto made = std::make_unique<Training>();
  Training* const t = made.get();
  const int64_t length = 6, batch = 4, hidden = 8;
  const auto layers = std::make_shared<torch::nn::LSTM>(torch::nn::LSTMOptions(5, hidden).num_layers(2));
  for (const Tensor& parameter : (*layers)->parameters()) t->parameters.push_back(parameter);
  const Tensor w = t->parameter({3, hidden}), b = t->parameter({3});
  t->batch_by(5, [=] { return std::vector{at::randn({length, batch, 5}), at::randint(3, {batch}, at::kLong)}; });
  const auto optimizer = std::make_shared<AdamW>(*t);
  t->step = [=] {
    const bool mkldnn = at::globalContext().userEnabledMkldnn();
    if (by_cells) at::globalContext().setUserEnabledMkldnn(false);
    const Tensor out = std::get<0>((*layers)->forward(t->inputs[0]));
    auto gradients = take_gradients(*t, at::cross_entropy_loss(at::linear(out[length - 1], w, b), t->inputs[1]));
    at::globalContext().setUserEnabledMkldnn(mkldnn);
    clip(gradients, 0.5);
    optimizer->step(gradients);
  };
  return made;
}

TEST_CASE("an LSTM as one operation of oneDNN, and of LibTorch's cells") {
  expect_same_bits([] { return lstm(/*by_cells=*/false); });
  expect_same_bits([] { return lstm(/*by_cells=*/true); }, 12);
}

std::unique_ptr<Training> transformer(double dropout, bool autocast) {
  auto made = std::make_unique<Training>();
  Training* const t = made.get();
  const int64_t batch = 2, length = 6, width = 16, heads = 4, words = 11;
  const Tensor embedding = t->parameter({words, width}), places = t->parameter({length, width}),
               g1 = t->parameter({width}), e1 = t->parameter({width}), qkv = t->parameter({3 * width, width}),
               o = t->parameter({width, width}), g2 = t->parameter({width}), e2 = t->parameter({width}),
               f1 = t->parameter({4 * width, width}), f2 = t->parameter({width, 4 * width}),
               u = t->parameter({words, width});
  t->batch_by(6, [=] {
    return std::vector{at::randint(words, {batch, length}, at::kLong), at::randint(words, {batch, length}, at::kLong)};
  });
  const auto optimizer = std::make_shared<AdamW>(*t);
  t->step = [=] {
    const bool was = at::autocast::is_autocast_enabled(at::kCPU);
    at::autocast::set_autocast_enabled(at::kCPU, autocast);
    Tensor h = at::embedding(embedding, t->inputs[0]) + places;
    const Tensor parts = at::linear(at::layer_norm(h, {width}, g1, e1), qkv)
                             .view({batch, length, 3, heads, width / heads})
                             .permute({2, 0, 3, 1, 4});
    const Tensor attended = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    h = h + at::dropout(at::linear(attended.transpose(1, 2).reshape({batch, length, width}), o), dropout, true);
    h = h + at::dropout(at::linear(at::gelu(at::linear(at::layer_norm(h, {width}, g2, e2), f1)), f2), dropout, true);
    const Tensor loss =
        at::cross_entropy_loss(at::linear(h, u).view({batch * length, words}).to(at::kFloat), t->inputs[1].view({-1}));
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, was);
    auto gradients = take_gradients(*t, loss);
    clip(gradients, 0.5);
    optimizer->step(gradients);
  };
  return made;
}

TEST_CASE("attention with clipping, with dropout and in autocast") {
  expect_same_bits([] { return transformer(0.0, /*autocast=*/false); });
  expect_same_bits([] { return transformer(0.2, /*autocast=*/false); });
  expect_same_bits([] { return transformer(0.1, /*autocast=*/true); });
}

TEST_CASE("gradients that are accumulated in memory that stays") {
  expect_same_bits([] {
    auto made = std::make_unique<Training>();
    Training* const t = made.get();
    const Tensor w = t->parameter({3, 4}), b = t->parameter({3});
    t->batch_by(5, [] { return std::vector{at::randn({6, 4}), at::randn({6, 3})}; });
    for (Tensor& parameter : t->parameters) {
      parameter.mutable_grad() = at::zeros_like(parameter.detach());
      t->state.push_back(parameter.grad());
    }
    t->step = [=] {
      for (int part = 0; part < 3; ++part) {
        const Tensor x = t->inputs[0].slice(0, 2 * part, 2 * part + 2),
                     y = t->inputs[1].slice(0, 2 * part, 2 * part + 2);
        const Tensor loss = at::mse_loss(at::linear(x, w, b), y) / 3;
        loss.backward();
        t->loss = loss.detach();
      }
      const at::NoGradGuard no_grad;
      for (const Tensor& parameter : t->parameters) {
        parameter.sub_(parameter.grad() * t->rate);
        parameter.grad().zero_();
      }
    };
    return made;
  });
}

}  // namespace networks_test
