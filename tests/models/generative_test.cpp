// VariationalAutoencoder and Gan: training, pictures, options.
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <set>

#include "fulgur/core/state/rng.h"
#include "fulgur/models/gan.h"
#include "fulgur/models/variational_autoencoder.h"
#include "fulgur/trainer/yaml.h"
#include "models/training.h"
#include "support/expect_error.h"
#include "trainer/boring.h"

namespace generative_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

Gan::Options small_gan() {
  Gan::Options options;
  options.height = 8;
  options.width = 4;
  options.latent_size = 3;
  options.channels = 4;
  options.sample_pictures = 0;
  return options;
}

// The optimizer of the paper with another learning rate.
Spec<Optimizer> with_rate(double lr) {
  Spec<Optimizer> spec = Gan::Options::paper_optimizer();
  Problems problems;
  spec.read(ConfigNode::map({{"init_args", ConfigNode::map({{"lr", ConfigNode::number(lr)}})}}), problems, "");
  problems.throw_if_any();
  return spec;
}

std::shared_ptr<DataModule> pictures_of(int64_t count, at::IntArrayRef shape, double scale = 1) {
  at::manual_seed(2);
  std::vector<int64_t> sizes = {count};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  TensorDataModule::Sets sets;
  sets.train = sets.val = sets.test = sets.predict = Batch{{"image", (2 * at::rand(sizes) - 1) * scale}};
  return std::make_shared<TensorDataModule>(std::move(sets),
                                            TensorDataOptions{.batch_size = 4, .eval_batch_size = {}, .shuffle = true});
}

struct Fitted {
  std::shared_ptr<LightningModule> module;
  std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
  std::map<std::string, Tensor> weights = {};
};

Fitted fitted(const test::TemporaryFolder& folder, std::shared_ptr<LightningModule> module,
              const std::shared_ptr<DataModule>& data, int64_t max_steps, const CheckpointChoice& from = {}) {
  Fitted run{.module = std::move(module)};
  TrainerOptions options = test::quiet(folder);
  options.max_epochs = 4;
  options.max_steps = max_steps;
  TrainerComponents components;
  components.seed = 5;
  components.loggers = {run.logger};
  if (run.module->automatic_optimization()) components.optimizer = Spec<Optimizer>("SGD");
  Trainer(options, components).fit(run.module, data, from);
  run.weights = test::weights(*run.module);
  return run;
}

std::set<std::string> names_of_media(const MemoryLogger& logger) {
  std::set<std::string> names;
  for (const auto& media : logger.media) names.insert(media_name(media.record));
  return names;
}

// Whether a parameter whose name begins so differs.
bool differs(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b, std::string_view prefix) {
  for (const auto& [name, value] : a)
    if (name.starts_with(prefix) && name.find("running") == std::string::npos &&
        name.find("tracked") == std::string::npos && !at::equal(value, b.at(name)))
      return true;
  return false;
}

}  // namespace

TEST_CASE("a variational autoencoder learns to reconstruct, and beta weighs the divergence") {
  seed_everything(3);
  VariationalAutoencoder::Options options;
  options.in_features = 12;
  options.hidden = {16};
  options.latent_size = 4;
  options.beta = 0;
  const Batch batch({at::randn({8, 3, 2, 2})});
  VariationalAutoencoder model(options);
  const auto losses = test::descend(model, batch, 400, 0.05);
  CHECK(losses.back() < 0.3 * losses.front());
  const Outputs outputs = model.predict_step(batch, 0, 0);
  CHECK(outputs["reconstruction"].sizes() == batch[0].sizes());
  CHECK(outputs["code"].sizes() == at::IntArrayRef({8, 4}));
  CHECK(outputs["code_deviation"].min().item<double>() > 0);
  // With a large beta, the distribution of codes comes near the standard normal.
  options.beta = 100;
  VariationalAutoencoder pressed(options);
  test::descend(pressed, batch, 200, 0.001);
  const Outputs near = pressed.predict_step(batch, 0, 0);
  CHECK(near["code"].abs().max().item<double>() < 0.3);
  CHECK((near["code_deviation"] - 1).abs().max().item<double>() < 0.3);
}

TEST_CASE("likelihood: bernoulli gives probabilities, and refuses values that are none") {
  VariationalAutoencoder::Options options;
  options.in_features = 6;
  options.hidden = {};
  options.latent_size = 2;
  options.likelihood = PixelLikelihood::bernoulli;
  VariationalAutoencoder model(options);
  const Batch batch({at::rand({5, 6})});
  CHECK(model.training_step(batch, 0).loss.item<double>() > 0);
  const Tensor pixels = model.predict_step(batch, 0, 0)["reconstruction"];
  CHECK(pixels.min().item<double>() > 0);
  CHECK(pixels.max().item<double>() < 1);
  CHECK_THAT(message_of<DataError>([&] { model.training_step(Batch({batch[0] - 1}), 0); }),
             ContainsSubstring("between 0 and 1") && ContainsSubstring("gaussian"));
  CHECK_THAT(message_of<ConfigError>([&] {
               model.training_step(Batch({at::rand({5, 7})}), 0);
             }),
             ContainsSubstring("in_features = 6"));
}

TEST_CASE("sample_pictures of a variational autoencoder: drawn pictures and reconstructions") {
  const test::TemporaryFolder folder;
  VariationalAutoencoder::Options options;
  options.in_features = 2 * 6;
  options.hidden = {8};
  options.latent_size = 2;
  options.sample_pictures = 3;
  const auto make = [&] { return std::make_shared<VariationalAutoencoder>(options); };
  const Fitted run = fitted(folder, make(), pictures_of(8, {1, 2, 6}), 2);
  CHECK(names_of_media(*run.logger) == std::set<std::string>{"val_samples", "val_reconstructions"});
  for (const auto& media : run.logger->media) {
    const auto& picture = std::get<ImageRecord>(media.record);
    const int64_t count = picture.name == "val_samples" ? 3 : 6;
    CHECK(picture.pixels.sizes() == at::IntArrayRef({1, 2, count * 7 - 1}));
  }
  CHECK_FALSE(run.logger->values("val_kl").empty());
  CHECK_FALSE(run.logger->values("val_reconstruction").empty());
  // Vectors are no pictures.
  const test::TemporaryFolder other;
  CHECK(fitted(other, make(), pictures_of(8, {12}), 2).logger->media.empty());
}

TEST_CASE("each optimizer of a Gan steps its own network") {
  const auto trained = [](double generator_lr, double discriminator_lr) {
    const test::TemporaryFolder folder;
    Gan::Options options = small_gan();
    options.generator_optimizer = with_rate(generator_lr);
    options.discriminator_optimizer = with_rate(discriminator_lr);
    seed_everything(6);
    return fitted(folder, make_component<LightningModule, Gan>(options), pictures_of(8, {1, 8, 4}), 2).weights;
  };
  const auto still = trained(0, 0), generator = trained(0.01, 0), discriminator = trained(0, 0.01);
  CHECK(differs(still, generator, "generator."));
  CHECK_FALSE(differs(still, generator, "discriminator."));
  CHECK(differs(still, discriminator, "discriminator."));
  CHECK_FALSE(differs(still, discriminator, "generator."));
}

TEST_CASE("a Gan's discriminator learns to tell images from generated ones") {
  const test::TemporaryFolder folder;
  Gan::Options options = small_gan();
  options.generator_optimizer = with_rate(0);
  options.discriminator_optimizer = with_rate(0.02);
  seed_everything(7);
  const auto model = make_component<LightningModule, Gan>(options);
  TrainerOptions trainer_options = test::quiet(folder);
  trainer_options.max_epochs = 30;
  TrainerComponents components;
  components.seed = 5;
  const auto logger = std::make_shared<MemoryLogger>();
  components.loggers = {logger};
  Trainer(trainer_options, components).fit(model, pictures_of(16, {1, 8, 4}));
  const auto real = logger->values("train_d_real"), fake = logger->values("train_d_fake");
  REQUIRE(real.size() == 120);
  CHECK(real.back().second > 0.8);
  CHECK(fake.back().second < 0.2);
  for (const char* name : {"train_d_loss", "train_g_loss", "val_d_loss", "val_g_loss", "val_d_real", "val_d_fake"})
    CHECK_FALSE(logger->values(name).empty());
}

TEST_CASE("a Gan that is stopped inside an epoch and resumed ends with the bits of one that was not") {
  Gan::Options options = small_gan();
  options.sample_pictures = 2;
  const auto make = [&] {
    seed_everything(8);
    return make_component<LightningModule, Gan>(options);
  };
  const auto data = [] { return pictures_of(16, {1, 8, 4}); };
  const test::TemporaryFolder whole_folder, folder;
  const Fitted whole = fitted(whole_folder, make(), data(), 7);
  fitted(folder, make(), data(), 3);
  const Fitted resumed = fitted(folder, make(), data(), 7, "last");
  CHECK(test::same_weights(whole.weights, resumed.weights));
  CHECK(whole.weights.contains("shown_codes"));
}

TEST_CASE("a Gan logs pictures of the same codes, predicts images, and keeps the range of its data") {
  const test::TemporaryFolder folder;
  Gan::Options options = small_gan();
  options.low = 0;
  options.high = 255;
  options.sample_pictures = 3;
  options.generator_optimizer = with_rate(0);
  seed_everything(9);
  const auto model = make_component<LightningModule, Gan>(options);
  const Fitted run = fitted(folder, model, pictures_of(8, {1, 8, 4}, 100), 4);
  CHECK(names_of_media(*run.logger) == std::set<std::string>{"val_samples"});
  const auto& picture = std::get<ImageRecord>(run.logger->media.front().record);
  CHECK(picture.pixels.sizes() == at::IntArrayRef({1, 8, 3 * 5 - 1}));
  model->eval();
  const Outputs outputs = model->predict_step(Batch({at::zeros({5, 1, 8, 4})}), 0, 0);
  CHECK(outputs["image"].sizes() == at::IntArrayRef({5, 1, 8, 4}));
  CHECK(outputs["code"].sizes() == at::IntArrayRef({5, 3}));
  CHECK(outputs["image"].min().item<double>() >= 0);
  CHECK(outputs["image"].max().item<double>() <= 255);
  CHECK(outputs["image"].mean().item<double>() > 50);  // in the middle of the range
  CHECK(at::equal(model->generate(outputs["code"]), outputs["image"]));
  // What the discriminator sees does not depend on the range.
  Gan::Options plain = options;
  plain.low = -1;
  plain.high = 1;
  Gan other(plain);
  {
    const at::NoGradGuard no_grad;
    const auto from = model->named_parameters(), to = other.named_parameters();
    for (const auto& item : from) to[item.key()].copy_(item.value());
  }
  const Tensor images = 2 * at::rand({4, 1, 8, 4}) - 1;
  model->train();
  CHECK(at::allclose(model->discriminate((images + 1) * 127.5), other.discriminate(images), 1e-4, 1e-5));
}

TEST_CASE("a Gan names sizes and ranges that do not fit") {
  Gan::Options odd = small_gan();
  odd.height = 10;
  CHECK_THAT(message_of<ConfigError>([&] { Gan{odd}; }), ContainsSubstring("2^depth = 4") && ContainsSubstring("10"));
  Gan::Options range = small_gan();
  range.low = 1;
  CHECK_THAT(message_of<ConfigError>([&] { Gan{range}; }), ContainsSubstring("low must be smaller"));
  Gan model(small_gan());
  CHECK_THAT(message_of<ConfigError>([&] {
               model.discriminate(at::zeros({2, 1, 4, 8}));
             }),
             ContainsSubstring("8 x 4") && ContainsSubstring("4 x 8"));
  CHECK_THAT(message_of<ConfigError>([&] { model.generate(at::zeros({2, 4})); }), ContainsSubstring("latent_size = 3"));
}

}  // namespace generative_test
