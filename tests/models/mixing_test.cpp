#include "fulgur/models/mixing.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/zeros.h>

#include "fulgur/core/state/rng.h"
#include "fulgur/models/cnn_classifier.h"
#include "fulgur/models/mlp_classifier.h"
#include "support/expect_error.h"
#include "trainer/boring.h"

namespace mixing_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {
Tensor labels(int64_t count) { return at::arange(count, at::kLong).remainder_(10); }
}  // namespace

TEST_CASE("mix_up is a weighted mean of each sample and the one before it") {
  at::manual_seed(1);
  for (const double alpha : {0.01, 0.2, 1.0, 8.0}) {
    CAPTURE(alpha);
    const Tensor input = at::randn({6, 5}, at::kDouble);
    const MixedBatch mixed = mix_up(input, labels(6), alpha);
    const double share = mixed.share.item<float>();
    CHECK(share >= 0);
    CHECK(share <= 1);
    CHECK(at::allclose(mixed.input, share * input + (1 - share) * at::roll(input, {1}, {0}), 1e-6, 1e-6));
    CHECK(at::equal(mixed.labels, labels(6)));
    CHECK(at::equal(mixed.other_labels, at::roll(labels(6), {1}, {0})));
  }
}

TEST_CASE("the shares have the mean and the variance of Beta(alpha, alpha)") {
  at::manual_seed(2);
  const Tensor input = at::randn({2, 1});
  for (const double alpha : {0.2, 1.0, 4.0}) {
    CAPTURE(alpha);
    constexpr int kDraws = 4000;
    double sum = 0, squares = 0;
    for (int i = 0; i < kDraws; ++i) {
      const double share = mix_up(input, labels(2), alpha).share.item<float>();
      sum += share;
      squares += share * share;
    }
    const double mean = sum / kDraws, variance = squares / kDraws - mean * mean;
    // Five standard errors of the mean, and a tenth of the variance.
    const double expected = 1 / (4 * (2 * alpha + 1));
    CHECK(std::abs(mean - 0.5) < 5 * std::sqrt(expected / kDraws));
    CHECK(std::abs(variance - expected) < 0.1 * expected);
  }
}

TEST_CASE("cut_mix replaces one rectangle, whose area is what the share lacks") {
  at::manual_seed(3);
  int64_t cut_away = 0;
  for (int i = 0; i < 50; ++i) {
    const Tensor images = at::randn({4, 3, 7, 9});
    const MixedBatch mixed = cut_mix(images, labels(4), 1.0);
    const Tensor kept = mixed.input.eq(images), replaced = mixed.input.eq(at::roll(images, {1}, {0}));
    CHECK(kept.logical_or(replaced).all().item<bool>());
    const Tensor cut = kept.logical_not();
    // The same pixels in all images and channels.
    CHECK(at::equal(cut, cut[0][0].expand_as(cut)));
    const Tensor pixels = cut[0][0].to(at::kLong);
    const int64_t rows = pixels.amax(1).sum().item<int64_t>(), columns = pixels.amax(0).sum().item<int64_t>();
    CHECK(pixels.sum().item<int64_t>() == rows * columns);
    CHECK(std::abs(mixed.share.item<float>() - (1 - static_cast<double>(rows * columns) / 63)) < 1e-6);
    cut_away += rows * columns > 0;
  }
  CHECK(cut_away > 25);
}

TEST_CASE("the sides of cut_mix's rectangle are the square root of the share that it takes") {
  at::manual_seed(7);
  // With such an alpha each draw takes half of the image, so a side is the square root of 1/2.
  constexpr int kDraws = 1000;
  const Tensor image = at::zeros({1, 1, 256, 256});
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) sum += cut_mix(image, labels(1), 1e6).share.item<float>();
  // A side r around a uniform point has a mean length of r - r^2 / 4 inside the image.
  const double side = std::sqrt(0.5), inside = side - side * side / 4;
  // Rounding to whole pixels shortens a side by up to 2/256; the standard error is 0.004.
  CHECK(std::abs(sum / kDraws - (1 - inside * inside)) < 0.025);
}

TEST_CASE("inputs that cannot be mixed are named") {
  CHECK_THAT(message_of<DataError>([] {
               mix_up(at::zeros({2, 3}, at::kLong), labels(2), 1.0);
             }),
             ContainsSubstring("must be floating-point; got Long"));
  CHECK_THAT(message_of<DataError>([] {
               cut_mix(at::zeros({2, 3}), labels(2), 1.0);
             }),
             ContainsSubstring("4 dimensions (N, C, H, W); got"));
}

TEST_CASE("with both alphas, each batch gets one of the two") {
  at::manual_seed(4);
  int cuts = 0;
  for (int i = 0; i < 60; ++i) {
    const Tensor images = at::randn({4, 1, 8, 8});
    const MixedBatch mixed = mix(images, labels(4), 1.0, 1.0);
    const Tensor others = at::roll(images, {1}, {0});
    const double share = mixed.share.item<float>();
    const bool is_mixed = at::allclose(mixed.input, share * images + (1 - share) * others, 1e-4, 1e-4);
    const bool is_cut = mixed.input.eq(images).logical_or(mixed.input.eq(others)).all().item<bool>();
    CHECK((is_mixed || is_cut));
    cuts += is_cut && !is_mixed;
  }
  CHECK(cuts > 15);
  CHECK(cuts < 45);
  const Tensor images = at::randn({4, 1, 8, 8});
  const MixedBatch same = mix(images, labels(4), 0, 0);
  CHECK(at::equal(same.input, images));
  CHECK(same.share.item<float>() == 1);
}

TEST_CASE("label smoothing is cross entropy against smoothed labels") {
  at::manual_seed(5);
  const Tensor logits = at::randn({6, 10}, at::kDouble);
  const Tensor log_probabilities = at::log_softmax(logits, 1);
  const Tensor own = -log_probabilities.gather(1, labels(6).unsqueeze(1)).mean();
  const Tensor all = -log_probabilities.mean();
  CHECK(at::allclose(classification_loss(logits, labels(6), 0.1), 0.9 * own + 0.1 * all, 1e-12, 1e-12));
}

TEST_CASE("a classifier trains on mixed samples and evaluates plain ones") {
  MlpClassifier model({.in_features = 5, .hidden = {}, .label_smoothing = 0.1, .mixup_alpha = 0.4});
  MlpClassifier plain({.in_features = 5, .hidden = {}});
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < model.parameters().size(); ++i) plain.parameters()[i].copy_(model.parameters()[i]);
  }
  const Batch batch({Batch::Entry{"x", at::randn({6, 5})}, Batch::Entry{"label", labels(6)}});
  at::manual_seed(6);
  const Tensor loss = model.training_step(batch, 0).loss;
  at::manual_seed(6);
  const MixedBatch mixed = mix_up(batch[0], batch[1], 0.4);
  const Tensor logits = plain.forward(mixed.input);
  const Tensor expected = mixed.share * classification_loss(logits, mixed.labels, 0.1) +
                          (1 - mixed.share) * classification_loss(logits, mixed.other_labels, 0.1);
  CHECK(at::equal(loss, expected));
  CHECK(at::equal(model.predict_step(batch, 0, 0)["probabilities"], plain.predict_step(batch, 0, 0)["probabilities"]));
}

}  // namespace mixing_test
