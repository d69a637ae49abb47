// Models for images and their twins in Python: the same logits, losses and gradients.
#include <ATen/ops/allclose.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>

#include <catch2/catch_test_macros.hpp>

#include "fulgur/models/classifier.h"
#include "fulgur/models/gan.h"
#include "fulgur/models/unet.h"
#include "fulgur/models/variational_autoencoder.h"
#include "fulgur/trainer/yaml.h"
#include "models/formula.h"
#include "models/training.h"
#include "support/fake_run_context.h"

namespace vision_parity_test {

using namespace fulgur;
using test::vision_baseline;

namespace {

Tensor numbers_of(const nlohmann::json& list) { return at::tensor(list.get<std::vector<double>>(), at::kDouble); }

std::shared_ptr<LightningModule> made_from(const nlohmann::json& description) {
  Spec<LightningModule> spec;
  Problems problems;
  spec.read(parse_yaml(description.dump(), "baseline", problems), problems, "model");
  problems.throw_if_any();
  return spec.create();
}

Tensor logits_of(LightningModule& module, const Tensor& images) {
  const at::NoGradGuard no_grad;
  module.eval();
  if (auto* const unet = dynamic_cast<UNet*>(&module)) return unet->forward(images);
  return dynamic_cast<Classifier&>(module).forward(images);
}

// As many of the first values as Python has recorded.
bool begins_with(const Tensor& values, const nlohmann::json& recorded, double tolerance) {
  const Tensor expected = numbers_of(recorded), flat = values.reshape(-1);
  return flat.numel() >= expected.numel() &&
         at::allclose(flat.narrow(0, 0, expected.numel()), expected, tolerance, tolerance);
}

std::vector<double> gradient_norms(const torch::nn::Module& module) {
  std::vector<double> norms;
  for (const auto& [name, value] : test::sorted_parameters(module)) norms.push_back(value.grad().norm().item<double>());
  return norms;
}

}  // namespace

TEST_CASE("models for images equal torchvision's, or a twin in Python: logits, losses of three steps, gradients") {
  REQUIRE(vision_baseline().at("cases").size() == 7);
  for (const auto& expected : vision_baseline().at("cases")) {
    CAPTURE(expected.at("model").dump());
    // Of float64: three steps amplify rounding errors to at most 1e-12.
    constexpr double tolerance = 1e-9;
    const auto module = made_from(expected.at("model"));
    REQUIRE((test::fill_by_formula(*module) == expected.at("names").get<std::vector<std::string>>()));
    const Tensor images = test::by_formula(expected.at("image").get<std::vector<int64_t>>(), 997);
    const Tensor labels = at::tensor(expected.at("labels").get<std::vector<int64_t>>(), at::kLong)
                              .view(expected.at("label_shape").get<std::vector<int64_t>>());
    CHECK(begins_with(logits_of(*module, images), expected.at("logits"), tolerance));
    module->train();
    const Batch batch({images, labels});
    module->training_step(batch, 0).loss.backward();
    CHECK(at::allclose(at::tensor(gradient_norms(*module), at::kDouble), numbers_of(expected.at("gradient_norms")),
                       tolerance, tolerance));
    // The statistics of the batch norms have seen the batch once more than Python's; they are set back.
    const auto again = made_from(expected.at("model"));
    test::fill_by_formula(*again);
    const auto losses = test::descend(*again, batch, 3, expected.at("lr"));
    CHECK(at::allclose(at::tensor(losses, at::kDouble), numbers_of(expected.at("losses")), tolerance, tolerance));
    CHECK(begins_with(logits_of(*again, images), expected.at("logits_after"), tolerance));
  }
}

TEST_CASE("a variational autoencoder has the bound of Python's distributions") {
  for (const auto& expected : vision_baseline().at("autoencoders")) {
    const std::string likelihood = expected.at("likelihood");
    CAPTURE(likelihood);
    VariationalAutoencoder model({.in_features = 12,
                                  .hidden = {10},
                                  .latent_size = 3,
                                  .likelihood = *enum_from<PixelLikelihood>(likelihood),
                                  .beta = 0.5});
    REQUIRE((test::fill_by_formula(model) == expected.at("names").get<std::vector<std::string>>()));
    {
      // The standard deviation of codes is e^-40: what is drawn does not matter.
      const at::NoGradGuard no_grad;
      model.named_parameters()["encoder.layer1.weight"].narrow(0, 3, 3).zero_();
      model.named_parameters()["encoder.layer1.bias"].narrow(0, 3, 3).fill_(-80);
    }
    test::FakeRunContext run;
    fulgur::detail::ComponentAccess::set_run(model, &run);
    const Batch batch({(test::by_formula({4, 3, 2, 2}, 997) + 1) / 2});
    const Tensor loss = model.training_step(batch, 0).loss;
    loss.backward();
    const std::map<std::string, double> wanted = {{"train_loss", expected.at("loss")},
                                                  {"train_reconstruction", expected.at("reconstruction")},
                                                  {"train_kl", expected.at("kl")}};
    REQUIRE(run.logged.size() == wanted.size());
    for (const auto& [name, value] : run.logged) {
      CAPTURE(name);
      CHECK(std::abs(value - wanted.at(name)) < 1e-10 * std::abs(wanted.at(name)));
    }
    CHECK(at::allclose(at::tensor(gradient_norms(model), at::kDouble), numbers_of(expected.at("gradient_norms")), 1e-9,
                       1e-12));
    fulgur::detail::ComponentAccess::set_run(model, nullptr);
  }
}

TEST_CASE("the networks of a Gan are those of PyTorch's DCGAN example") {
  const auto& expected = vision_baseline().at("gan");
  Gan model(
      {.in_channels = 2, .height = 12, .width = 8, .depth = 2, .latent_size = 5, .channels = 4, .sample_pictures = 0});
  REQUIRE((test::fill_by_formula(model) == expected.at("names").get<std::vector<std::string>>()));
  const Tensor images = model.generate(test::by_formula({3, 5}, 997));
  CHECK(images.sizes() == at::IntArrayRef({3, 2, 12, 8}));
  CHECK(begins_with(images, expected.at("images"), 1e-10));
  const Tensor logits = model.discriminate(images);
  CHECK(begins_with(logits, expected.at("logits"), 1e-10));
  at::binary_cross_entropy_with_logits(logits, at::ones_like(logits)).backward();
  CHECK(at::allclose(at::tensor(gradient_norms(model), at::kDouble), numbers_of(expected.at("gradient_norms")), 1e-9,
                     1e-12));
}

}  // namespace vision_parity_test
