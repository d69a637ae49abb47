// WeightAveraging on its own: its numbers are those of torch.optim.swa_utils (fixtures/make_values.py).
#include "fulgur/callbacks/weight_averaging.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include <ATen/ops/randn.h>
#include <torch/nn/modules/batchnorm.h>

#include "fulgur/core/contracts/module.h"
#include "fulgur/nn/batch_norm.h"
#include "fulgur/nn/cumulative_stats.h"
#include "support/expect_error.h"
#include "support/fake_run_context.h"
#include "weights/swa_rate.h"
#include "weights/update_count.h"
#include "weights/weight_average.h"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace weight_averaging_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

using Options = WeightAveraging::Options;

const nlohmann::json& values() {
  static const nlohmann::json values = [] {
    std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "fixtures/values.json");
    return nlohmann::json::parse(file);
  }();
  return values;
}

Tensor numbers(const nlohmann::json& list) {
  return at::tensor(list.get<std::vector<double>>(), at::TensorOptions().dtype(at::kDouble));
}

struct Net : LightningModule {
  Tensor weight, statistic;
  explicit Net(at::ScalarType dtype = at::kDouble) {
    weight = register_parameter("weight", at::zeros({3}, dtype));
    statistic = register_buffer("statistic", at::zeros({3}, dtype));
  }
  void set(const Tensor& value) {
    const at::NoGradGuard no_grad;
    weight.copy_(value);
  }
  StepOutput training_step(const Batch&, int64_t) override { return {}; }
};

/// A fit whose steps the test makes.
struct Fit {
  FakeRunContext run;
  Net net;
  WeightAveraging averaging;
  explicit Fit(Options options, at::ScalarType dtype = at::kDouble, std::optional<int64_t> steps = {})
      : net(dtype), averaging(std::move(options)) {
    run.of_module = &net;
    run.steps = steps;
    averaging.setup(run, TrainerFn::fit);
    averaging.on_train_start(run);
  }
  void step(const Tensor& weight, int64_t samples = 0) {
    net.set(weight);
    ++run.now.global_step;
    run.now.samples_seen += samples;
    end_batch();
  }
  void step(double weight, int64_t samples = 0) { step(at::full({3}, weight, at::kDouble), samples); }
  void end_batch() { averaging.on_train_batch_end(run, {}, {}, run.batch++); }
  void end_epoch() {
    run.now.epochs.processed = run.now.epoch + 1;
    averaging.on_train_epoch_end(run);
    ++run.now.epoch;
  }
  Tensor average() const { return averaging.averaged_parameters().at("weight").tensor(); }
  double first() const { return average()[0].item<double>(); }
};

Interval length(const char* text) { return *Interval::parse(text); }

void check_averages(Options options, const nlohmann::json& expected) {
  Fit fit(std::move(options));
  for (size_t i = 0; i < values().at("weights").size(); ++i) {
    CAPTURE(i);
    fit.net.statistic.copy_(numbers(values().at("statistics").at(i)));
    fit.step(numbers(values().at("weights").at(i)));
    CHECK(fit.average().allclose(numbers(expected.at(i).at("weight")), 1e-14, 1e-14));
    const StateTree state = fit.averaging.state();
    CHECK(state.at("buffers").at("statistic").tensor().allclose(numbers(expected.at(i).at("statistic")), 1e-14, 1e-14));
  }
}

}  // namespace

TEST_CASE("WeightAveraging: averages are those of torch.optim.swa_utils.AveragedModel") {
  check_averages({.decay = 0.9}, values().at("ema").at("averages"));
  check_averages({.kind = AveragingKind::swa, .start = length("0st"), .every = length("1st"), .update_bn = false},
                 values().at("swa").at("averages"));
}

TEST_CASE("WeightAveraging: learning rates are those of torch.optim.swa_utils.SWALR") {
  for (const auto& item : values().at("rates"))
    for (int64_t epoch = 0; epoch < static_cast<int64_t>(item.at("rates").size()); ++epoch) {
      CAPTURE(item.dump(), epoch);
      const SwaAnnealing annealing = *enum_from<SwaAnnealing>(item.at("strategy").get<std::string>());
      CHECK(fulgur::detail::swa_rate(item.at("lr"), item.at("swa_lr"), epoch, item.at("epochs"), annealing) ==
            Approx(item.at("rates").at(epoch).get<double>()).epsilon(1e-12));
    }
}

TEST_CASE("CumulativeStats: the statistics of a batch norm are those of torch.optim.swa_utils.update_bn") {
  const nlohmann::json& expected = values().at("batch_norm");
  struct Normed : LightningModule {
    nn::BatchNorm1d norm, frozen;
    Normed() : norm(2), frozen(2) {
      register_module("norm", norm);
      register_module("frozen", frozen);
      to(at::kDouble);
      frozen->eval();
    }
    StepOutput training_step(const Batch&, int64_t) override { return {}; }
  } module;
  module.norm->running_mean.fill_(7);
  module.frozen->running_mean.fill_(7);
  {
    const nn::CumulativeStats stats(module);
    CHECK(stats.names() ==
          std::vector<std::string>{"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"});
    for (const auto& batch : expected.at("batches")) {
      std::vector<double> flat;
      for (const auto& row : batch)
        for (const auto& value : row) flat.push_back(value);
      module.norm->forward(at::tensor(flat, at::TensorOptions().dtype(at::kDouble)).view({-1, 2}));
    }
  }
  CHECK(module.norm->running_mean.allclose(numbers(expected.at("running_mean")), 1e-12, 1e-12));
  CHECK(module.norm->running_var.allclose(numbers(expected.at("running_var")), 1e-12, 1e-12));
  CHECK(module.norm->num_batches_tracked.item<int64_t>() == 3);
  CHECK(module.norm->options.momentum() == 0.1);
  CHECK(module.frozen->running_mean.eq(7).all().item<bool>());
}

namespace {

template <class Norm>
void check_cumulative_2d() {
  struct Normed : LightningModule {
    Norm norm;
    Normed() : norm(2) { register_module("norm", norm); }
    StepOutput training_step(const Batch&, int64_t) override { return {}; }
  } module;
  at::manual_seed(1);
  const Tensor images = at::randn({3, 4, 2, 5, 5});  // three batches
  {
    nn::CumulativeStats stats(module);
    CHECK(stats.names().size() == 3);
    for (int64_t i = 0; i < 3; ++i) module.norm->forward(images[i]);
  }
  const Tensor of_channels = images.transpose(1, 2).reshape({3, 2, -1});
  CHECK(module.norm->running_mean.allclose(of_channels.mean(2).mean(0), 1e-5, 1e-6));
  CHECK(module.norm->running_var.allclose(of_channels.var(2, /*unbiased=*/true).mean(0), 1e-5, 1e-6));
  CHECK(module.norm->num_batches_tracked.template item<int64_t>() == 3);
  // What is put back has the values from before.
  const Tensor mean = module.norm->running_mean.clone();
  nn::CumulativeStats again(module);
  module.norm->forward(images[0]);
  again.put_back();
  CHECK(module.norm->running_mean.equal(mean));
  CHECK(module.norm->num_batches_tracked.template item<int64_t>() == 3);
}

}  // namespace

TEST_CASE("CumulativeStats: batch norms of images are LibTorch's and Fulgur's") {
  check_cumulative_2d<torch::nn::BatchNorm2d>();
  check_cumulative_2d<nn::BatchNorm2d>();
}

TEST_CASE("WeightAveraging: decay is 0.999 unless it is set") {
  Fit fit({});
  fit.step(1);
  fit.step(2);
  CHECK(fit.first() == Approx(1 + 0.001 * (2 - 1)).epsilon(1e-12));
}

TEST_CASE("WeightAveraging: half_life gives the decay by the length between two updates") {
  SECTION("steps") {
    Fit fit({.half_life = length("2st"), .every = length("2st")});
    for (const double weight : {0.0, 0.0, 9.0, 1.0}) fit.step(weight);
    CHECK(fit.averaging.n_averaged() == 2);
    CHECK(fit.first() == 0.5);  // the second update, one half-life after the first
  }
  SECTION("samples, in batches of different sizes") {
    Fit fit({.half_life = length("8sa")});
    fit.step(0, 4);
    fit.step(1, 8);
    CHECK(fit.first() == 0.5);
    fit.step(1, 16);
    CHECK(fit.first() == 1 - 0.5 * 0.25);
  }
}

TEST_CASE("WeightAveraging: start and every say when an average is updated") {
  SECTION("by steps") {
    Fit fit({.decay = 0.5, .start = length("2st"), .every = length("2st")});
    for (int64_t step = 1; step <= 6; ++step) {
      fit.step(static_cast<double>(step));
      CHECK(fit.averaging.n_averaged() == (step < 4 ? 0 : step < 6 ? 1 : 2));
    }
    CHECK(fit.first() == 5);  // of 4 and 6
  }
  SECTION("swa: at the ends of epochs after its start") {
    Fit fit({.kind = AveragingKind::swa, .start = length("1ep"), .update_bn = false});
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      fit.step(-100);
      fit.step(static_cast<double>(epoch));
      fit.end_epoch();
      CHECK(fit.averaging.n_averaged() == epoch);
    }
    CHECK(fit.first() == 2);  // of 1, 2 and 3
  }
  SECTION("swa starts after 0.8 of the run unless start is set") {
    Fit fit({.kind = AveragingKind::swa, .every = length("1st"), .update_bn = false}, at::kDouble, /*steps=*/10);
    for (int64_t step = 1; step <= 10; ++step) fit.step(1);
    CHECK(fit.averaging.n_averaged() == 2);
  }
}

TEST_CASE("WeightAveraging: a batch without a step, and a step that is skipped, do not update the average") {
  Fit fit({.decay = 0.5});
  fit.step(0);
  fit.step(1);
  REQUIRE(fit.first() == 0.5);
  SECTION("accumulation") {
    fit.end_batch();
    CHECK(fit.first() == 0.5);
  }
  SECTION("a skipped step") {
    fit.run.skipped = at::ones({}, at::kDouble);
    fit.step(1);
    CHECK(fit.first() == 0.5);
    CHECK(fit.averaging.n_averaged() == 2);
    fit.step(1);
    CHECK(fit.first() == 0.75);
  }
  SECTION("a batch whose step was rolled back") {
    const StateTree saved = fit.averaging.state();
    fit.run.now.batches_total = {.ready = 5, .started = 5, .processed = 4, .completed = 4};
    fit.averaging.roll_back(fit.run, saved);
    fit.step(1);
    CHECK(fit.first() == 0.5);
    fit.step(1);
    CHECK(fit.first() == 0.75);
  }
}

TEST_CASE("WeightAveraging: a rollback returns the average to the checkpoint's") {
  Fit fit({.decay = 0.5});
  fit.step(0);
  const StateTree state = fit.averaging.state();
  // As a checkpoint is read: other tensors.
  StateTree saved = state;
  saved["average"]["weight"] = state.at("average").at("weight").tensor().clone();
  saved["buffers"]["statistic"] = state.at("buffers").at("statistic").tensor().clone();
  fit.step(std::numeric_limits<double>::quiet_NaN());
  REQUIRE(std::isnan(fit.first()));
  fit.averaging.roll_back(fit.run, saved);
  fit.averaging.on_train_batch_start(fit.run, {}, fit.run.batch);
  fit.step(1);
  CHECK(fit.first() == 0.5);
}

TEST_CASE("WeightAverage: a scalar on the device decides whether the average moves") {
  Net net;
  fulgur::detail::WeightAverage average(/*with_buffers=*/true);
  average.copy(net);
  net.set(at::ones({3}, at::kDouble));
  net.statistic.fill_(1);
  average.move_by_device(net, at::scalar_tensor(0.0, at::kDouble));
  CHECK(average.parameters().at("weight").eq(0).all().item<bool>());
  CHECK(average.buffers().at("statistic").eq(0).all().item<bool>());
  average.move_by_device(net, at::scalar_tensor(0.25, at::kDouble));
  CHECK(average.parameters().at("weight").eq(0.25).all().item<bool>());
  CHECK(average.buffers().at("statistic").eq(0.25).all().item<bool>());
}

TEST_CASE("WeightAverage: a copy on the device has the bits of the values") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Net net(dtype);
    net.set(at::full({3}, 0.1, at::kDouble));
    fulgur::detail::WeightAverage average(/*with_buffers=*/true);
    average.copy(net);
    const Tensor values = at::tensor({1e-30, -7.3, 12345.678}, at::kDouble);
    net.set(values);
    net.statistic.copy_(values);
    average.move_by_device(net, at::scalar_tensor(0.25, at::kDouble), at::scalar_tensor(false, at::kBool));
    CHECK_FALSE(average.parameters().at("weight").equal(net.weight.to(at::kFloat)));
    average.move_by_device(net, at::scalar_tensor(1.0, at::kDouble), at::scalar_tensor(true, at::kBool));
    CHECK(average.parameters().at("weight").equal(net.weight.to(at::kFloat)));
    CHECK(average.buffers().at("statistic").equal(net.statistic.to(at::kFloat)));
  }
}

TEST_CASE("UpdateCount: the device's count, of which the host learns later") {
  const Tensor yes = at::scalar_tensor(true, at::kBool), no = at::scalar_tensor(false, at::kBool);
  fulgur::detail::UpdateCount count;
  count.set_device(at::Device(at::kCUDA, 0));  // so numbers are late
  count.add_if(no);
  CHECK(count.value() == 0);
  CHECK(count.is_zero(yes).item<bool>());
  CHECK(count.equal_weight(yes).item<double>() == 1);
  count.add_if(yes);
  CHECK(count.value() == 1);
  CHECK(count.state().as_int() == 1);
  CHECK_FALSE(count.is_zero(yes).item<bool>());
  CHECK(count.equal_weight(yes).item<double>() == 0.5);
  // What arrives first is the count of the skipped step.
  for (int batch = 0; batch < 6; ++batch) count.end_batch();
  CHECK_FALSE(count.is_known());
  count.add_if(yes);
  for (int batch = 0; batch < 4; ++batch) {
    count.end_batch();
    CHECK_FALSE(count.is_known());
  }
  count.end_batch();
  CHECK(count.is_known());
  CHECK(count.value() == 2);
  count.set(5);
  CHECK(count.is_known());
  CHECK(count.value() == 5);
  count.add();
  CHECK(count.equal_weight() == 1.0 / 7);
  count.add_if(yes);
  CHECK(count.value() == 7);
}

TEST_CASE("WeightAveraging: averages of half-precision weights are float32") {
  Fit fit({.decay = 0.999}, at::kBFloat16);
  fit.step(1);
  for (int i = 0; i < 10; ++i) fit.step(2);
  CHECK(fit.average().scalar_type() == at::kFloat);
  CHECK(fit.first() == Approx(2 - std::pow(0.999, 10)).epsilon(1e-5));  // bfloat16 would stay at 1
}

TEST_CASE("WeightAveraging: use_buffers says whether buffers are averaged; infinite constants stay") {
  for (const bool use_buffers : {true, false}) {
    CAPTURE(use_buffers);
    Fit fit({.decay = 0.5, .use_buffers = use_buffers});
    fit.net.statistic[0] = -std::numeric_limits<double>::infinity();
    fit.step(0);
    fit.net.statistic[1] = 1;
    fit.step(1);
    fit.averaging.on_validation_start(fit.run);
    CHECK(fit.net.weight[1].item<double>() == 0.5);
    CHECK(fit.net.statistic[0].item<double>() == -std::numeric_limits<double>::infinity());
    CHECK(fit.net.statistic[1].item<double>() == (use_buffers ? 0.5 : 1));
    fit.averaging.on_validation_end(fit.run);
    CHECK(fit.net.weight[1].item<double>() == 1);
    CHECK(fit.net.statistic[1].item<double>() == 1);
  }
}

TEST_CASE("WeightAveraging: the weights of training come back bit for bit, also after an exception") {
  Fit fit({.decay = 0.5});
  fit.step(0);
  // A NaN with a payload, and a negative zero.
  Tensor own = at::zeros({3}, at::kDouble);
  own.mutable_data_ptr<double>()[0] = std::nan("77");
  own.mutable_data_ptr<double>()[1] = -0.0;
  fit.step(own);
  fit.averaging.on_validation_start(fit.run);
  CHECK(fit.net.weight[2].item<double>() == 0);
  if (GENERATE(false, true))
    fit.averaging.on_exception(fit.run, std::runtime_error("on purpose"));
  else
    fit.averaging.on_validation_end(fit.run);
  CHECK(std::memcmp(fit.net.weight.const_data_ptr<double>(), own.const_data_ptr<double>(), 3 * sizeof(double)) == 0);
}

TEST_CASE("WeightAveraging: the sanity check and a run without an average evaluate the weights themselves") {
  Fit fit({.decay = 0.5});
  fit.net.set(at::ones({3}, at::kDouble));
  fit.averaging.on_validation_start(fit.run);
  CHECK(fit.net.weight[0].item<double>() == 1);
  fit.averaging.on_validation_end(fit.run);
  fit.step(0);
  fit.step(1);
  fit.run.is_sanity_check = true;
  fit.averaging.on_validation_start(fit.run);
  CHECK(fit.net.weight[0].item<double>() == 1);
}

TEST_CASE("WeightAveraging: a state is loaded whole, and only into a module that it fits") {
  Fit fit({.decay = 0.5});
  fit.step(0);
  fit.step(1);
  const StateTree state = fit.averaging.state();
  Fit same({.decay = 0.5});
  same.averaging.load_state(state);
  CHECK(same.averaging.n_averaged() == 2);
  CHECK(same.average().equal(fit.average()));

  StateTree other = state;
  other["average"]["weight"] = at::zeros({4});
  CHECK_THAT(message_of<CheckpointError>([&] { same.averaging.load_state(other); }),
             ContainsSubstring("'weight' has [3] in the module and [4] in the checkpoint"));
  CHECK(same.average().equal(fit.average()));
  other = state;
  other["average"] = StateTree::map({{"weights", at::zeros({3})}});
  CHECK_THAT(message_of<CheckpointError>([&] { same.averaging.load_state(other); }),
             ContainsSubstring("the module has no 'weights'"));
  Fit swa({.kind = AveragingKind::swa, .start = length("0st")});
  CHECK_THAT(message_of<CheckpointError>([&] { swa.averaging.load_state(state); }),
             ContainsSubstring("the checkpoint has ema, the option kind is swa"));
}

TEST_CASE("WeightAveraging: a state has the steps that were skipped since the last update") {
  const auto skipped = [](double steps) { return at::full({}, steps, at::kDouble); };
  // A run with manual optimization counts from zero when it resumes, others continue to count.
  const double at_resume = GENERATE(0.0, 1.0);
  CAPTURE(at_resume);
  Fit fit({.decay = 0.5, .every = length("2st")});
  fit.step(0);
  fit.step(0);
  REQUIRE(fit.averaging.n_averaged() == 1);
  fit.run.skipped = skipped(1);
  fit.step(7);
  CHECK(fit.averaging.state().at("skipped_since_update").as_int() == 1);

  FakeRunContext run;
  Net net;
  run.of_module = &net;
  run.now.global_step = 3;
  run.skipped = skipped(at_resume);
  WeightAveraging averaging({.decay = 0.5, .every = length("2st")});
  averaging.setup(run, TrainerFn::fit);
  averaging.load_state(fit.averaging.state());
  averaging.on_train_start(run);
  net.set(at::ones({3}, at::kDouble));
  run.now.global_step = 4;
  SECTION("both steps were skipped") {
    run.skipped = skipped(at_resume + 1);
    averaging.on_train_batch_end(run, {}, {}, 0);
    CHECK(averaging.n_averaged() == 1);
  }
  SECTION("one of them was made") {
    averaging.on_train_batch_end(run, {}, {}, 0);
    CHECK(averaging.n_averaged() == 2);
  }
}

TEST_CASE("WeightAveraging: a state of no update, which only the device knew, gives no average") {
  Fit fit({.decay = 0.5});
  fit.step(3);
  StateTree state = fit.averaging.state();
  state["n_averaged"] = int64_t{0};
  Fit other({.decay = 0.5});
  other.averaging.load_state(state);
  other.net.set(at::ones({3}, at::kDouble));
  other.averaging.on_validation_start(other.run);
  CHECK(other.net.weight[0].item<double>() == 1);
  other.averaging.on_validation_end(other.run);
}

TEST_CASE("WeightAverage: a scalar on the device decides whether the module gets the average") {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    Net net(dtype);
    fulgur::detail::WeightAverage average(/*with_buffers=*/true);
    average.copy(net);
    net.set(at::ones({3}, at::kDouble));
    net.statistic.fill_(1);
    for (const bool stays : {true, false}) {
      average.enter(net, /*and_keep_buffers=*/false, at::scalar_tensor(stays, at::kBool));
      CHECK(net.weight.eq(stays ? 1 : 0).all().item<bool>());
      CHECK(net.statistic.eq(stays ? 1 : 0).all().item<bool>());
      average.leave();
      CHECK(net.weight.eq(1).all().item<bool>());
    }
  }
}

TEST_CASE("WeightAveraging: a checkpoint without states of callbacks gets the average") {
  Fit fit({.decay = 0.5});
  fit.step(3);
  StateTree whole = StateTree::map({{"callbacks", StateTree()}}), weights_only;
  fit.averaging.on_save_checkpoint(fit.run, whole);
  CHECK(whole.at("callbacks").as_map().empty());
  fit.averaging.on_save_checkpoint(fit.run, weights_only);
  CHECK(weights_only.at("callbacks").at("WeightAveraging").at("average").at("weight").tensor().equal(fit.average()));
}

TEST_CASE("WeightAveraging: options that exclude each other are errors") {
  const auto error = [](Options options) {
    return message_of<ConfigError>([&] { WeightAveraging{std::move(options)}; });
  };
  const auto swa = AveragingKind::swa;
  CHECK_THAT(error({.kind = swa, .decay = 0.9}), ContainsSubstring("decay belongs to kind: ema"));
  CHECK_THAT(error({.kind = swa, .half_life = length("2ep")}), ContainsSubstring("half_life belongs to kind: ema"));
  CHECK_THAT(error({.decay = 0.9, .half_life = length("2ep")}), ContainsSubstring("exclude each other"));
  CHECK_THAT(error({.decay = 1.5}), ContainsSubstring("decay"));
  CHECK_THAT(error({.half_life = length("2min")}), ContainsSubstring("half_life"));
  CHECK_THAT(error({.half_life = length("0st")}), ContainsSubstring("half_life must be longer than 0"));
  CHECK_THAT(error({.every = length("0st")}), ContainsSubstring("must be longer than 0"));
  CHECK_THAT(error({.swa_lrs = {0.1}}), ContainsSubstring("swa_lrs belongs to kind: swa"));
  CHECK_THAT(error({.kind = swa, .annealing_epochs = 3}), ContainsSubstring("swa_lrs is not set"));
  CHECK_THAT(error({.kind = swa, .annealing_strategy = SwaAnnealing::cos}), ContainsSubstring("swa_lrs is not set"));
  CHECK_THAT(error({.kind = swa, .swa_lrs = {0.0}}), ContainsSubstring("swa_lrs"));
  CHECK_FALSE(error({.kind = swa, .swa_lrs = {std::numeric_limits<double>::infinity()}}).empty());
  // All options that are out of range are named at once.
  CHECK_THAT(error({.decay = 1.5, .annealing_epochs = -1}),
             ContainsSubstring("WeightAveraging.decay") && ContainsSubstring("WeightAveraging.annealing_epochs"));
  CHECK_THAT(message_of<ConfigError>([] { Fit({.half_life = length("5tok")}); }), ContainsSubstring("num_tokens"));
  CHECK_THAT(message_of<ConfigError>([] { Fit({.half_life = length("2ep")}); }),
             ContainsSubstring("half_life in epochs needs a training loader of known length; got 2ep"));
}

}  // namespace weight_averaging_test
