// Each precision by what it does to weights, activations, gradients and checkpoints.
#include "trainer/boring.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "fulgur/callbacks/model_summary.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/device/autocast.h"
#include "fulgur/core/text/log.h"
#include "fulgur/nn/batch_norm.h"
#include "fulgur/optim/lbfgs.h"
#include "fulgur/strategies/half_precision.h"
#include "fulgur/strategies/mixed_precision.h"

namespace precision_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

struct Told {
  std::string text;
  Told() {
    log::reset_warnings();
    log::set_sink(
        [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; },
        &text);
  }
  ~Told() { log::set_sink({}, nullptr); }
};

AdamW::Options adam_options() {
  AdamW::Options options;
  options.lr = 0.01;
  return options;
}

// Remembers the formats that it meets.
struct Watched : SelfPlanned {
  using SelfPlanned::SelfPlanned;
  at::ScalarType input = at::kInt, activation = at::kInt, validation = at::kInt, gradient = at::kInt;
  std::vector<double> norms;
  StepOutput training_step(const Batch& b, int64_t i) override {
    input = b[0].scalar_type();
    activation = first->forward(b[0]).scalar_type();
    return SelfPlanned::training_step(b, i);
  }
  Outputs validation_step(const Batch& b, int64_t i, int64_t l) override {
    validation = forward(b[0]).scalar_type();
    return SelfPlanned::validation_step(b, i, l);
  }
  void on_after_backward() override { gradient = first->weight.grad().scalar_type(); }
  at::ScalarType weight() const { return first->weight.scalar_type(); }
};

template <class M = Watched>
struct Fitted {
  std::shared_ptr<M> module;
  std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
  FitReport report;
};

template <class M = Watched>
Fitted<M> fit(const TrainerOptions& options, std::shared_ptr<Precision> precision = nullptr,
              const CheckpointChoice& from = {}) {
  Fitted<M> fitted;
  at::manual_seed(7);
  fitted.module = std::make_shared<M>();
  TrainerComponents components;
  components.seed = 3;
  components.precision = std::move(precision);
  components.loggers = {fitted.logger};
  fitted.report = Trainer(options, components).fit(fitted.module, regression_data(), from);
  return fitted;
}

std::vector<double> logged(const MemoryLogger& logger, const std::string& name) {
  std::vector<double> values;
  for (const auto& [step, value] : logger.values(name)) values.push_back(value);
  return values;
}

TrainerOptions with_precision(const TemporaryFolder& folder, const std::string& yaml) {
  TrainerOptions options = quiet(folder);
  Fields fields;
  options.fields(fields);
  Problems problems;
  ConfigNode node = ConfigNode::map();
  node.set("precision", parse_yaml(yaml, "test", problems));
  const ConfigNode* value = node.find("precision");
  FieldTraits<Spec<Precision>>::read(*value, options.precision, problems, "trainer.precision");
  problems.throw_if_any();
  return options;
}

}  // namespace

TEST_CASE("precision: formats of weights, input, activations, gradients and validation, by Lightning's names") {
  struct Case {
    std::string name;
    at::ScalarType weight, input, activation;
  };
  const auto [name, weight, input, activation] = GENERATE(
      Case{"32-true", at::kFloat, at::kFloat, at::kFloat}, Case{"32", at::kFloat, at::kFloat, at::kFloat},
      Case{"64-true", at::kDouble, at::kDouble, at::kDouble}, Case{"'64'", at::kDouble, at::kDouble, at::kDouble},
      Case{"16-mixed", at::kFloat, at::kFloat, at::kHalf}, Case{"16", at::kFloat, at::kFloat, at::kHalf},
      Case{"bf16-mixed", at::kFloat, at::kFloat, at::kBFloat16}, Case{"bf16", at::kFloat, at::kFloat, at::kBFloat16},
      Case{"16-true", at::kHalf, at::kHalf, at::kHalf}, Case{"bf16-true", at::kBFloat16, at::kBFloat16, at::kBFloat16});
  CAPTURE(name);
  Told told;
  TemporaryFolder folder;
  TrainerOptions options = with_precision(folder, name);
  options.max_epochs = 4;
  const auto run = fit(options);
  CHECK(run.module->weight() == weight);
  CHECK(run.module->gradient == weight);
  CHECK(run.module->input == input);
  CHECK(run.module->activation == activation);
  CHECK(run.module->validation == activation);
  const auto losses = logged(*run.logger, "train_loss");
  REQUIRE(losses.size() == 40);
  CHECK(std::accumulate(losses.end() - 10, losses.end(), 0.0) <
        std::accumulate(losses.begin(), losses.begin() + 10, 0.0));
  // The resolved config has the name itself.
  CHECK((options.precision.class_path().find("-") != std::string::npos));
  const bool emulated = activation == at::kHalf;
  CHECK((told.text.find("47 times as long") != std::string::npos) == emulated);
}

TEST_CASE("an unknown precision is refused with the existing names") {
  TemporaryFolder folder;
  CHECK_THROWS_WITH(with_precision(folder, "transformer-engine"),
                    ContainsSubstring("unknown precision") && ContainsSubstring("bf16-mixed"));
}

TEST_CASE("bf16-mixed equals a hand-written loop under autocast, bit for bit") {
  TemporaryFolder folder;
  TrainerOptions options = with_precision(folder, "bf16-mixed");
  Told told;
  const auto run = fit(options);
  at::manual_seed(7);
  BoringModule module;
  SGD sgd(SGD::Options{.lr = 0.05, .momentum = 0.9});
  sgd.attach(trainable_groups(module));
  const auto data = regression_data();
  data->setup(TrainerFn::fit);
  const auto loader = data->loaders(RunningStage::train).front();
  loader->configure(3, 0, 1);
  Batch batch;
  loader->start_epoch(0);
  while (loader->next(batch)) {
    Tensor loss;
    {
      const Autocast region(at::kCPU, at::kBFloat16);
      loss = at::mse_loss(module.forward(batch[0]), batch[1]);
    }
    loss.backward();
    sgd.step();
    sgd.zero_grad();
  }
  CHECK(same_weights(weights(*run.module), weights(module)));
}

namespace {

// Overflows in the first `overflows` steps.
struct Overflowing : SelfPlanned {
  int64_t overflows = 50, steps = 0;
  std::map<std::string, Tensor> at_last_overflow;
  void on_after_backward() override {
    if (steps++ >= overflows) return;
    first->weight.mutable_grad().fill_(std::numeric_limits<double>::infinity());
    at_last_overflow = weights(*this);
  }
};

}  // namespace

TEST_CASE("F31 50 overflows in a row: the scale halves, the device skips the steps, and training continues") {
  Told told;
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 6;
  const double first_scale = std::ldexp(1, 56);
  const auto run =
      fit<Overflowing>(options, std::make_shared<Float16Mixed>(GradScaler::Options{.init_scale = first_scale}));
  const auto scales = logged(*run.logger, "loss_scale"), skipped = logged(*run.logger, "skipped_steps");
  REQUIRE(scales.size() == 60);
  // After the step of the row.
  CHECK(scales[0] == first_scale / 2);
  CHECK(scales[1] == first_scale / 4);
  CHECK(scales[49] == 64);
  CHECK(scales[59] == scales[50]);
  CHECK(skipped[0] == 1);
  CHECK(skipped[49] == 50);
  CHECK(skipped[59] == 50);
  at::manual_seed(7);
  CHECK(same_weights(run.module->at_last_overflow, weights(Overflowing())));
  CHECK_FALSE(same_weights(run.module->at_last_overflow, weights(*run.module)));
  CHECK_FALSE((told.text.find("the loss scale has fallen") != std::string::npos));
  // The schedule, as Lightning's, follows all steps.
  CHECK(run.report.global_step == 60);
}

TEST_CASE("F31 a scale that falls below 1 is reported once, with what to do") {
  Told told;
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 3;
  fit<Overflowing>(options, std::make_shared<Float16Mixed>());
  const size_t at = told.text.find("the loss scale has fallen to 0.5");
  REQUIRE((at != std::string::npos));
  CHECK((told.text.find("the loss scale has fallen", at + 1) == std::string::npos));
}

TEST_CASE("16-mixed: clipping, the logged norm and accumulation see the gradients of the loss itself") {
  Told told;
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.log_grad_norm = true;
  options.gradient_clip_val = 0.5;
  options.accumulate_grad_batches = 2;
  const auto full = logged(*fit(options).logger, "grad_norm");
  const auto mixed = logged(*fit(options, std::make_shared<Float16Mixed>()).logger, "grad_norm");
  REQUIRE(full.size() == 5);
  REQUIRE(mixed.size() == 5);
  for (size_t i = 0; i < full.size(); ++i) CHECK(std::abs(mixed[i] / full[i] - 1) < 0.02);
}

namespace {

// Two optimizers, the second of whose gradients overflow once; clips by hand.
struct Manual : BoringModule {
  std::vector<double> clipped;
  int64_t batches = 0;
  static inline bool overflows = false;
  bool automatic_optimization() const override { return false; }
  OptimizerPlan configure_optimizers() override {
    const auto only = [&](torch::nn::Linear& part, const std::string& name) {
      auto optimizer = std::make_shared<SGD>(SGD::Options{.lr = 0.05});
      ParamGroup group;
      for (const auto& item : part->named_parameters()) {
        group.params.push_back(item.value());
        group.names.push_back(name + "." + item.key());
      }
      optimizer->attach({group});
      return PlannedOptimizer{optimizer, {}};
    };
    return OptimizerPlan::several({only(first, "first"), only(second, "second")});
  }
  StepOutput training_step(const Batch& b, int64_t) override {
    const Tensor loss = at::mse_loss(forward(b[0]), b[1]);
    manual_backward(loss);
    if (batches++ == 2 && overflows) second->weight.mutable_grad().fill_(std::numeric_limits<double>::quiet_NaN());
    for (size_t i : {0, 1}) {
      clipped.push_back(clip_gradients(optimizers(i).optimizer(), 100.0).item<double>());
      optimizers(i).step();
      optimizers(i).zero_grad();
    }
    return loss;
  }
};

}  // namespace

TEST_CASE(
    "16-mixed by hand: several optimizers share one scale, each skips by its own gradients, and clipping comes after "
    "the unscaling") {
  Told told;
  TemporaryFolder folder;
  Manual::overflows = false;
  const auto full = fit<Manual>(quiet(folder));
  Manual::overflows = true;
  const auto mixed =
      fit<Manual>(quiet(folder), std::make_shared<Float16Mixed>(GradScaler::Options{.init_scale = 1024}));
  REQUIRE(mixed.module->clipped.size() == 20);
  // Up to the overflow in batch 2 the runs are the same except for rounding.
  for (size_t i : {0, 1, 2, 3, 4}) CHECK(std::abs(mixed.module->clipped[i] / full.module->clipped[i] - 1) < 0.02);
  const auto scales = logged(*mixed.logger, "loss_scale");
  CHECK(scales.front() == 1024);
  CHECK(scales.back() == 512);
  CHECK(logged(*mixed.logger, "skipped_steps").back() == 1);
  for (const auto& [name, value] : weights(*mixed.module)) CHECK(value.isfinite().all().item<bool>());
}

TEST_CASE("a closure and a loss scale, or master weights, exclude each other") {
  struct Closing : BoringModule {
    OptimizerPlan configure_optimizers() override { return std::make_shared<LBFGS>(LBFGS::Options{}); }
  };
  Told told;
  TemporaryFolder folder;
  CHECK_THROWS_WITH(fit<Closing>(quiet(folder), std::make_shared<Float16Mixed>()),
                    ContainsSubstring("precision 16-mixed"));
  CHECK_THROWS_WITH(
      fit<Closing>(quiet(folder), std::make_shared<BFloat16True>(BFloat16True::Options{.master_weights = true})),
      ContainsSubstring("without master weights"));
  CHECK_THROWS_WITH(Float16True(Float16True::Options{.loss_scaling = true, .scaler = {}}),
                    ContainsSubstring("master_weights is false"));
}

namespace {

// One weight of 1 and a gradient of 1: each step of SGD takes the learning rate away.
struct OneWeight : LightningModule {
  Tensor weight = register_parameter("weight", at::ones({1}));
  StepOutput training_step(const Batch& b, int64_t) override { return (weight * b[0].sum() * 0 + weight).sum(); }
  OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 0.001}); }
};

double after_ten_steps(const TemporaryFolder& folder, bool master_weights) {
  return fit<OneWeight>(quiet(folder),
                        std::make_shared<BFloat16True>(BFloat16True::Options{.master_weights = master_weights}))
      .module->weight.template item<double>();
}

}  // namespace

TEST_CASE("master weights keep updates that are too small for a bfloat16 weight") {
  TemporaryFolder folder;
  CHECK(after_ten_steps(folder, false) == 1.0);  // 1 - 0.001 rounds to 1
  CHECK(std::abs(after_ten_steps(folder, true) - 0.99) < 0.002);
}

namespace {

struct Normed : SelfPlanned {
  nn::BatchNorm1d norm{nullptr};
  Normed() : SelfPlanned(0.2) { norm = register_module("norm", nn::BatchNorm1d(4)); }
  StepOutput training_step(const Batch& b, int64_t) override {
    const Tensor loss = at::mse_loss(forward(norm->forward(b[0])), b[1]);
    log("train_loss", loss);
    return loss;
  }
  OptimizerPlan configure_optimizers() override { return std::make_shared<AdamW>(adam_options()); }
};

std::shared_ptr<Precision> made(const std::string& name) {
  if (name == "16-mixed")
    return std::make_shared<Float16Mixed>(GradScaler::Options{.init_scale = 1024, .growth_interval = 4});
  if (name == "bf16-mixed") return std::make_shared<BFloat16Mixed>();
  if (name == "16-true scaled")
    return std::make_shared<Float16True>(Float16True::Options{.master_weights = true,
                                                              .keep_norm_fp32 = true,
                                                              .loss_scaling = true,
                                                              .scaler = {.init_scale = 512, .growth_interval = 3}});
  return std::make_shared<BFloat16True>(BFloat16True::Options{.master_weights = name == "bf16-true masters",
                                                              .keep_norm_fp32 = name == "bf16-true masters"});
}

}  // namespace

TEST_CASE("keep_norm_fp32 leaves weights and statistics of norms in float32, in the run and in its checkpoint") {
  Told told;
  TemporaryFolder folder;
  const auto run = fit<Normed>(quiet(folder), made("bf16-true masters"));
  CHECK(run.module->norm->weight.scalar_type() == at::kFloat);
  CHECK(run.module->norm->running_var.scalar_type() == at::kFloat);
  CHECK(run.module->norm->num_batches_tracked.scalar_type() == at::kLong);
  CHECK(run.module->first->weight.scalar_type() == at::kBFloat16);
  for (const auto& [name, value] : read_checkpoint(*run.report.last_checkpoint).module) {
    const bool of_norm = name.starts_with("norm.");
    CAPTURE(name);
    CHECK(value.scalar_type() == (name == "norm.num_batches_tracked" ? at::kLong
                                  : of_norm                          ? at::kFloat
                                                                     : at::kBFloat16));
  }
  const auto without = fit<Normed>(quiet(folder), made("bf16-true"));
  CHECK(without.module->norm->weight.scalar_type() == at::kBFloat16);
}

TEST_CASE("a run in any precision continues to the same bits, inside an accumulation window too") {
  const std::string name = GENERATE("16-mixed", "bf16-mixed", "bf16-true", "bf16-true masters", "16-true scaled");
  const int64_t accumulate = GENERATE(1, 3);
  CAPTURE(name, accumulate);
  Told told;
  TemporaryFolder whole_folder, folder;
  TrainerOptions options = quiet(whole_folder);
  options.max_epochs = 2;
  options.accumulate_grad_batches = accumulate;
  const auto whole = fit<Normed>(options, made(name));
  options.default_root_dir = folder.path();
  options.max_steps = 3;
  const auto part = fit<Normed>(options, made(name));
  CHECK(part.report.global_step == 3);
  options.max_steps = -1;
  const auto rest = fit<Normed>(options, made(name), "last");
  CHECK(same_weights(weights(*whole.module), weights(*rest.module)));
  auto all = logged(*part.logger, "loss_scale");
  for (const double value : logged(*rest.logger, "loss_scale")) all.push_back(value);
  CHECK(all == logged(*whole.logger, "loss_scale"));
}

TEST_CASE("weights of one precision load into a run of another, with a message") {
  Told told;
  TemporaryFolder folder;
  const auto half = fit(quiet(folder), std::make_shared<BFloat16True>(BFloat16True::Options{}));
  const auto as_float = std::make_shared<Watched>();
  TrainerComponents components;
  components.precision = nullptr;
  const EvalReport report =
      Trainer(quiet(folder), components).test(as_float, regression_data(), half.report.last_checkpoint->string());
  CHECK(as_float->weight() == at::kFloat);
  CHECK(as_float->first->weight.equal(half.module->first->weight.to(at::kFloat)));
  CHECK_THAT(told.text, ContainsSubstring("BFloat16 in the checkpoint"));
}

TEST_CASE("the summary shows the bytes per trainable parameter, which are those that training keeps") {
  struct Case {
    std::string name, line;
  };
  const auto [name, line] = GENERATE(
      Case{"32", "weights 4 + gradients 4 + optimizer 8"}, Case{"bf16-true", "weights 2 + gradients 2 + optimizer 4"},
      Case{"bf16-true masters", "weights 2 + gradients 2 + master weights 4 + their gradients 4 + optimizer 8"});
  CAPTURE(name);
  struct Wide : LightningModule {
    torch::nn::Linear layer{register_module("layer", torch::nn::Linear(64, 500))};
    StepOutput training_step(const Batch& b, int64_t) override {
      return layer->forward(b[0].repeat({1, 16})).square().mean();
    }
    OptimizerPlan configure_optimizers() override { return std::make_shared<AdamW>(adam_options()); }
  };
  Told told;
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.enable_model_summary = true;
  const auto run = fit<Wide>(options, name == "32" ? nullptr : made(name));
  CHECK_THAT(told.text, ContainsSubstring("bytes per trainable parameter: " + line));
  // As the checkpoint has them: two moments in the format of what is stepped, and two counters of 4 bytes.
  const CheckpointContent content = read_checkpoint(*run.report.last_checkpoint);
  double bytes = 0;
  for (const auto& [parameter, state] : content.optimizers.as_list().at(0).at("state").as_map())
    for (const auto& [key, value] : state.as_map()) bytes += static_cast<double>(value.tensor().nbytes());
  const double count = 64 * 500 + 500;
  CHECK(std::abs(bytes / count - (name == "bf16-true" ? 4 : 8)) < 0.001);
  const StateTree& precision = content.state.at("precision");
  CHECK(precision.contains("master_weights") == (name == "bf16-true masters"));
}

}  // namespace precision_test
