// A hand-written loop with Fabric against the Trainer, and against itself after a save.
#include "fulgur/trainer/fabric.h"

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/optim/lbfgs.h"
#include "trainer/boring.h"

namespace fabric_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr uint64_t kSeed = 7;

std::shared_ptr<Loader> shuffled() {
  return std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(42)),
                                      DataLoaderOptions{.batch_size = 4, .shuffle = true});
}

// A plain module of LibTorch.
struct PlainNet : torch::nn::Module {
  torch::nn::Linear first{4, 8}, second{8, 2};
  torch::nn::Dropout drop{0.3};
  PlainNet() {
    register_module("first", first);
    register_module("drop", drop);
    register_module("second", second);
  }
  Tensor forward(const Tensor& x) { return second->forward(drop->forward(first->forward(x).relu())); }
};

struct ForTrainer : LightningModule {
  std::shared_ptr<PlainNet> net = std::make_shared<PlainNet>();
  ForTrainer() { register_module("net", net); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return at::mse_loss(net->forward(batch[0]), batch[1]);
  }
  OptimizerPlan configure_optimizers() override { return std::make_shared<AdamW>(AdamW::Options{.lr = 0.01}); }
};

FabricOptions on_cpu(const std::string& precision) {
  FabricOptions options;
  options.accelerator = "cpu";
  options.precision = Spec<Precision>(precision);
  return options;
}

// A loop with everything that it needs, until `stop_after` batches are done; it continues from `from`.
struct Loop {
  explicit Loop(const std::string& precision = "32-true") : fabric(on_cpu(precision)) {
    at::manual_seed(1);
    net = std::make_shared<PlainNet>();
    optimizer = std::make_shared<AdamW>(AdamW::Options{.lr = 0.01});
    fabric.setup(net, {optimizer});
    const auto data = shuffled();  // seeds the generator too
    fabric.seed_everything(kSeed);
    loader = fabric.setup_loader(data);
  }
  // True if `stop_after` ended it.
  bool train(int64_t epochs, int64_t accumulate = 1, int64_t stop_after = -1) {
    for (; epoch < epochs; ++epoch) {
      for (const Batch& batch : loader->epoch(epoch)) {
        const bool last = ++done % accumulate == 0;
        const Tensor loss = fabric.forward([&] { return at::mse_loss(net->forward(batch[0]), batch[1]); },
                                           last ? GradSync::now : GradSync::deferred);
        fabric.backward(accumulate > 1 ? loss / static_cast<double>(accumulate) : loss);
        if (last) {
          fabric.clip_gradients(*optimizer, 0.5);
          fabric.step(*optimizer);
        }
        if (done == stop_after) return true;
      }
    }
    return false;
  }
  StateTree state() const { return StateTree::map({{"epoch", epoch}, {"done", done}}); }
  void load(const std::filesystem::path& folder) {
    const StateTree state = fabric.load(folder);
    epoch = state.at("epoch").as_int();
    done = state.at("done").as_int();
  }

  Fabric fabric;
  std::shared_ptr<PlainNet> net;
  std::shared_ptr<AdamW> optimizer;
  std::shared_ptr<FabricLoader> loader;
  int64_t epoch = 0, done = 0;
};

void check_same(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto left = unique_parameters(a), right = unique_parameters(b);
  REQUIRE(left.size() == right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    CAPTURE(left[i].name);
    CHECK(left[i].value.equal(right[i].value));
  }
}

}  // namespace

TEST_CASE("Fabric: a loop equals the Trainer to the bit") {
  const std::string precision = GENERATE("32-true", "bf16-mixed", "bf16-true", "64-true");
  const int64_t accumulate = GENERATE(int64_t{1}, int64_t{2});
  CAPTURE(precision, accumulate);
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.gradient_clip_val = 0.5;
  options.accumulate_grad_batches = accumulate;
  options.precision = Spec<Precision>(precision);
  TrainerComponents components;
  components.seed = kSeed;
  // 42 samples: 11 batches, so that windows of two leave one at the end of an epoch, which the loop does not step.
  if (accumulate > 1) options.limit_train_batches = BatchLimit(int64_t{10});
  at::manual_seed(1);
  const auto module = std::make_shared<ForTrainer>();
  Trainer(options, components).fit(module, DataSource(shuffled()));

  Loop loop(precision);
  if (accumulate == 1) {
    loop.train(2);
  } else {
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      loop.epoch = epoch;
      const int64_t until = loop.done + 10;
      loop.train(epoch + 1, accumulate, until);
    }
  }
  check_same(*module->net, *loop.net);
}

TEST_CASE("Fabric: what is saved in the middle of an epoch continues to the bit") {
  const std::string precision = GENERATE("32-true", "bf16-true");
  const TemporaryFolder folder;
  Loop whole(precision);
  whole.train(3);
  std::filesystem::path saved;
  {
    Loop first(precision);
    REQUIRE(first.train(3, 1, 16));  // in the second epoch
    saved = first.fabric.save(folder / "a.ckpt", first.state());
  }
  CHECK(saved == folder / "a.ckpt");
  CHECK(summarize_checkpoint(saved).global_step == 16);
  Loop second(precision);
  second.load(saved);
  CHECK(second.epoch == 1);
  second.train(3);
  CHECK(second.done == whole.done);
  check_same(*whole.net, *second.net);
  // A taken name is kept.
  CHECK(second.fabric.save(folder / "a.ckpt") == folder / "a-v1.ckpt");
  // Without what is loaded, the end is another one.
  Loop other(precision);
  other.epoch = 1;
  other.train(3);
  CHECK(!unique_parameters(*other.net)[0].value.equal(unique_parameters(*whole.net)[0].value));
}

TEST_CASE("Fabric: an evaluation changes neither modes nor random numbers") {
  Loop quiet_loop, evaluating;
  evaluating.net->drop->eval();
  quiet_loop.net->drop->eval();
  {
    const auto evaluation = evaluating.fabric.evaluation();
    CHECK(!evaluating.net->is_training());
    const auto loader = evaluating.fabric.setup_loader(shuffled(), LoaderUse::evaluate);
    int64_t samples = 0;
    for (const Batch& batch : loader->epoch(0)) {
      CHECK(!evaluating.net->forward(batch[0]).requires_grad());
      samples += batch.size();
    }
    CHECK(samples == 42);
    at::ones({3}).uniform_();
  }
  CHECK(evaluating.net->is_training());
  CHECK(!evaluating.net->drop->is_training());
  evaluating.net->drop->train();
  quiet_loop.net->drop->train();
  // Both draw from the generator of the process, so one after the other.
  quiet_loop.fabric.seed_everything(3);
  quiet_loop.train(1);
  evaluating.fabric.seed_everything(3);
  {
    const auto evaluation = evaluating.fabric.evaluation();
    at::ones({3}).uniform_();
  }
  evaluating.train(1);
  check_same(*quiet_loop.net, *evaluating.net);
}

TEST_CASE("Fabric: an optimizer that evaluates its loss several times gets a closure") {
  at::manual_seed(1);
  const auto net = std::make_shared<PlainNet>();
  const auto optimizer = std::make_shared<LBFGS>(LBFGS::Options());
  Fabric fabric(on_cpu("32-true"));
  fabric.setup(net, {optimizer});
  net->drop->eval();
  const Batch data = regression(42);
  const auto loss = [&] { return fabric.forward([&] { return at::mse_loss(net->forward(data[0]), data[1]); }); };
  const double before = loss().item<double>();
  fabric.step(*optimizer, [&] {
    const Tensor value = loss();
    fabric.backward(value);
    return value;
  });
  CHECK(loss().item<double>() < before);
  CHECK_THROWS_WITH(fabric.step(*optimizer), ContainsSubstring("call step(optimizer, closure)"));
  Loop loop;
  CHECK_THROWS_WITH(loop.fabric.step(*loop.optimizer, loss), ContainsSubstring("call step without a closure"));
}

TEST_CASE("Fabric refuses what it cannot do") {
  const TemporaryFolder folder;
  Loop loop;
  // list_checkpoints would not find it.
  CHECK_THROWS_WITH(loop.fabric.save(folder / "a"), ContainsSubstring("must end in .ckpt"));
  const auto saved = loop.fabric.save(folder / "a.ckpt");
  CHECK_THROWS_WITH(loop.fabric.setup(loop.net), ContainsSubstring("setup takes one module, once"));
  AdamW stranger{AdamW::Options()};
  CHECK_THROWS_WITH(loop.fabric.step(stranger), ContainsSubstring("AdamW was not passed to setup"));
  CHECK_THROWS_WITH(loop.fabric.backward(at::ones({2})), ContainsSubstring("one number"));
  loop.train(1, 1, 1);
  CHECK_THROWS_WITH(loop.fabric.load(saved), ContainsSubstring("load comes before the first forward"));

  Loop more;
  more.fabric.setup_loader(shuffled());
  CHECK_THROWS_WITH(more.fabric.load(saved), ContainsSubstring("has 1 loader, but the loop has set up 2"));
  CHECK_THROWS_AS(more.fabric.load(folder / "none.ckpt"), CheckpointError);

  Fabric empty(on_cpu("32-true"));
  CHECK_THROWS_WITH(empty.evaluation(), ContainsSubstring("call setup first"));
  const auto loader = empty.setup_loader(shuffled());
  CHECK_THROWS_WITH(loader->epoch(0).begin(), ContainsSubstring("call setup first"));

  TrainerOptions options = quiet(folder);
  const auto report = Trainer(options, {}).fit(std::make_shared<ForTrainer>(), DataSource(shuffled()));
  REQUIRE(report.last_checkpoint);
  Loop other;
  CHECK_THROWS_WITH(other.fabric.load(*report.last_checkpoint), ContainsSubstring("is another one"));

  // What a Trainer says about a checkpoint of Fabric.
  CHECK_THROWS_WITH(Trainer(quiet(folder), {}).fit(std::make_shared<ForTrainer>(), DataSource(shuffled()), saved),
                    ContainsSubstring("Fabric wrote the checkpoint") && ContainsSubstring("--load.weights_only true"));
  struct Validated : ForTrainer {
    Outputs validation_step(const Batch&, int64_t, int64_t) override { return {}; }
  };
  CHECK_THROWS_WITH(Trainer(quiet(folder), {}).validate(std::make_shared<Validated>(), regression_data(), saved),
                    ContainsSubstring("missing: net.first.weight") &&
                        ContainsSubstring("Fabric wrote the checkpoint, from a loop of") &&
                        ContainsSubstring("--load.key_prefixes") && !ContainsSubstring("run folder"));

  FabricOptions copies = on_cpu("32-true");
  copies.accelerator = "virtual";
  copies.devices = 2;
  copies.strategy = Spec<Strategy>("dp");
  Fabric replicated(copies);
  CHECK_THROWS_WITH(replicated.setup(std::make_shared<PlainNet>()), ContainsSubstring("splits batches"));
}

}  // namespace fabric_test
