// The Trainer against a hand-written loop: same seed, same order, equal to the last bit.
#include "trainer/boring.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "fulgur/data/samplers.h"
#include "fulgur/optim/lbfgs.h"

namespace parity_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

constexpr int64_t kSamples = 402;  // 101 batches of 4, the last one short
constexpr int64_t kBatch = 4;
constexpr int64_t kEpochs = 2;  // 202 batches

// AdamW by ATen's fused kernel, without any part of this project.
void hand_loop(BoringModule& model, int64_t accumulate, std::optional<double> clip) {
  const Batch data = regression(kSamples);
  std::vector<Tensor> params = model.parameters(), averages, squares, steps;
  for (const Tensor& p : params) {
    averages.push_back(at::zeros_like(p));
    squares.push_back(at::zeros_like(p));
    steps.push_back(at::zeros({}));
  }
  const int64_t batches = (kSamples + kBatch - 1) / kBatch;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (int64_t b = 0; b < batches; ++b) {
      const int64_t start = b * kBatch, count = std::min(kBatch, kSamples - start);
      const int64_t window_start = b / accumulate * accumulate;
      const int64_t window = std::min(accumulate, batches - window_start);
      Tensor loss = at::mse_loss(model.forward(data[0].narrow(0, start, count)), data[1].narrow(0, start, count));
      if (window > 1) loss = loss / static_cast<double>(window);
      loss.backward();
      if (b - window_start + 1 != window) continue;
      if (clip) torch::nn::utils::clip_grad_norm_(params, *clip);
      at::NoGradGuard no_grad;
      std::vector<Tensor> grads;
      for (const Tensor& p : params) grads.push_back(p.grad());
      for (Tensor& s : steps) s.add_(1);
      at::_fused_adamw_(params, grads, averages, squares, {}, steps, 0.01, 0.9, 0.999, 0.01, 1e-8, false, false,
                        std::nullopt, std::nullopt);
      for (Tensor& p : params) p.mutable_grad().reset();
    }
  }
}

struct AdamWModule : BoringModule {
  using BoringModule::BoringModule;
  OptimizerPlan configure_optimizers() override {
    AdamW::Options options;
    options.lr = 0.01;
    return std::make_shared<AdamW>(options);
  }
};

}  // namespace

TEST_CASE("the Trainer equals a hand-written loop bit for bit over 200 steps") {
  const int64_t accumulate = GENERATE(1, 3);
  const bool clip = GENERATE(false, true);
  CAPTURE(accumulate, clip);
  const double dropout = 0.2;  // the order of random numbers must agree too

  at::manual_seed(7);
  AdamWModule by_hand(dropout);
  at::manual_seed(7);
  auto by_trainer = std::make_shared<AdamWModule>(dropout);
  REQUIRE(same_weights(weights(by_hand), weights(*by_trainer)));

  at::manual_seed(99);
  const Batch unused = regression(kSamples);  // both draw their data first
  at::manual_seed(100);
  hand_loop(by_hand, accumulate, clip ? std::optional(0.1) : std::nullopt);

  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = kEpochs;
  options.accumulate_grad_batches = accumulate;
  if (clip) options.gradient_clip_val = 0.1;
  auto dataset = std::make_shared<TensorDataset>(regression(kSamples));
  auto loader = std::make_shared<DataLoader>(dataset, DataLoaderOptions{.batch_size = kBatch});
  // The hand loop draws its data from seed 1 inside, which leaves the generator where `regression` left it.
  (void)regression(kSamples);
  const FitReport report = Trainer(options).fit(by_trainer, DataSource(loader));
  CHECK(report.global_step == (101 + accumulate - 1) / accumulate * kEpochs);
  CHECK(same_weights(weights(by_hand), weights(*by_trainer)));
}

TEST_CASE("the Trainer with SGD follows torch::optim::SGD over shuffled epochs") {
  at::manual_seed(7);
  SelfPlanned by_hand;
  at::manual_seed(7);
  auto by_trainer = std::make_shared<SelfPlanned>();
  const Batch data = regression(64);
  torch::optim::SGD optimizer(by_hand.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int64_t epoch = 0; epoch < 13; ++epoch) {
    const auto order = RandomSampler(64).order({.seed = 11, .epoch = epoch, .rank = 0, .world_size = 1});
    for (size_t start = 0; start < 64; start += 4) {
      const Tensor index = at::tensor(
          std::vector<int64_t>(order.begin() + static_cast<long>(start), order.begin() + static_cast<long>(start) + 4));
      optimizer.zero_grad();
      at::mse_loss(by_hand.forward(data[0].index_select(0, index)), data[1].index_select(0, index)).backward();
      optimizer.step();
    }
  }
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 13;
  TrainerComponents components;
  components.seed = 11;
  auto loader = std::make_shared<DataLoader>(std::make_shared<TensorDataset>(data),
                                             DataLoaderOptions{.batch_size = 4, .shuffle = true});
  Trainer(options, components).fit(by_trainer, DataSource(loader));
  const auto a = weights(by_hand), b = weights(*by_trainer);
  for (const auto& [name, value] : a) CHECK((value - b.at(name)).abs().max().item<double>() < 1e-6);
}

TEST_CASE(
    "LBFGS through its closure equals torch::optim::LBFGS; hooks repeat, logs count once, global_step counts steps") {
  struct Closed : BoringModule {
    int64_t steps = 0, backwards = 0, evaluations = 0;
    OptimizerPlan configure_optimizers() override {
      return std::make_shared<LBFGS>(LBFGS::Options{.lr = 0.5, .max_iter = 4});
    }
    StepOutput training_step(const Batch& b, int64_t i) override {
      ++evaluations;
      return BoringModule::training_step(b, i);
    }
    void on_after_backward() override { ++backwards; }
    void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override { ++steps; }
  };
  const Batch data = regression(16);
  at::manual_seed(7);
  BoringModule by_hand;
  at::manual_seed(7);
  auto by_trainer = std::make_shared<Closed>();
  torch::optim::LBFGS optimizer(by_hand.parameters(), torch::optim::LBFGSOptions(0.5).max_iter(4));
  std::vector<double> first_losses;
  for (int64_t i = 0; i < 4; ++i) {
    const Batch batch = data.narrow(i * 4, 4);
    bool first = true;
    optimizer.step([&] {
      optimizer.zero_grad();
      const Tensor loss = at::mse_loss(by_hand.forward(batch[0]), batch[1]);
      loss.backward();
      if (first) first_losses.push_back(loss.item<double>());
      first = false;
      return loss;
    });
  }
  TemporaryFolder folder;
  auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {logger};
  auto loader = std::make_shared<DataLoader>(std::make_shared<TensorDataset>(data), DataLoaderOptions{.batch_size = 4});
  TrainerOptions options = quiet(folder);
  const FitReport report = Trainer(options, components).fit(by_trainer, DataSource(loader));
  CHECK(report.global_step == 4);
  CHECK(by_trainer->evaluations > 4);
  CHECK(by_trainer->backwards == by_trainer->evaluations);
  CHECK(same_weights(weights(by_hand), weights(*by_trainer)));
  const auto logged = logger->values("train_loss");
  REQUIRE(logged.size() == 4);
  for (size_t i = 0; i < 4; ++i) CHECK(logged[i].second == first_losses[i]);

  // What happens once per batch elsewhere cannot go with it.
  options.accumulate_grad_batches = 2;
  try {
    Trainer(options).fit(std::make_shared<Closed>(), DataSource(loader));
    FAIL("accumulation went with a closure");
  } catch (const ConfigError& error) {
    CHECK(std::string(error.what()).find("accumulate_grad_batches") != std::string::npos);
  }
}

}  // namespace parity_test
