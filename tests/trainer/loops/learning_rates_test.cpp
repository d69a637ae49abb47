// scale_lr, lengths that are `auto`, the norm that is logged, several training loaders.
#include "trainer/boring.h"

#include <ATen/ops/stack.h>

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <sstream>

#include "fulgur/core/state/clip.h"
#include "fulgur/optim/composed_schedules.h"
#include "fulgur/optim/cyclic_schedules.h"
#include "fulgur/trainer/config.h"

namespace learning_rates_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

template <class Base>
struct Seen : Base {
  std::vector<double> rates;
  std::vector<double> norms;
  void on_before_optimizer_step(Optimizer& o) override {
    norms.push_back(grad_norm(o.gradients()).template item<double>());
  }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
    rates.push_back(this->run().optimizers().front()->groups().front().lr);
  }
};

struct Planned : BoringModule {
  OptimizerPlan configure_optimizers() override {
    return {std::make_shared<SGD>(SGD::Options{.lr = 0.01}),
            SchedulerConfig{
                .scheduler = std::make_shared<OneCycleLR>(OneCycleLR::Options{.max_lr = 0.1, .cycle_momentum = false}),
                .interval = ScheduleInterval::step}};
  }
};

struct Fitted {
  std::shared_ptr<Seen<SelfPlanned>> module = std::make_shared<Seen<SelfPlanned>>();
  std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
};

Fitted fit(const TrainerOptions& options, int64_t batch_size = 4) {
  Fitted fitted;
  at::manual_seed(3);
  fitted.module = std::make_shared<Seen<SelfPlanned>>();
  TrainerComponents components;
  components.loggers = {fitted.logger};
  Trainer(options, components).fit(fitted.module, regression_data(40, 0, batch_size, false));
  return fitted;
}

std::vector<double> logged(const MemoryLogger& logger, const std::string& name) {
  std::vector<double> values;
  for (const auto& [step, value] : logger.values(name)) values.push_back(value);
  return values;
}

}  // namespace

namespace {

struct FailingSchedule : BoringModule {
  OptimizerPlan configure_optimizers() override {
    const auto schedule = std::make_shared<LambdaLR>(
        [](int64_t step) { return step < 3 ? 1.0 : std::numeric_limits<double>::quiet_NaN(); });
    return {std::make_shared<SGD>(SGD::Options{.lr = 0.01}),
            SchedulerConfig{.scheduler = schedule, .interval = ScheduleInterval::step}};
  }
};

struct NegativeRate : SelfPlanned {
  int on_train_batch_start(const Batch&, int64_t batch_idx) override {
    if (batch_idx == 2) run().optimizers().front()->groups().front().lr = -1;
    return 0;
  }
};

}  // namespace

TEST_CASE("a learning rate that no step can use ends the fit where it is set, and not as a loss", "[trainer][optim]") {
  TemporaryFolder folder;
  CHECK_THROWS_WITH(
      Trainer(quiet(folder)).fit(std::make_shared<FailingSchedule>(), regression_data()),
      ContainsSubstring("LambdaLR gives .nan for group 0 of SGD, whose first rate is 0.01, after 3 of its steps"));
  CHECK_THROWS_WITH(Trainer(quiet(folder)).fit(std::make_shared<NegativeRate>(), regression_data()),
                    ContainsSubstring("SGD has -1.0 in group 0 after 2 of its steps"));
}

TEST_CASE("scale_lr multiplies the rates by the global batch over base_batch_size", "[trainer][optim]") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  const auto rate = [&] { return fit(options).module->rates.front(); };
  CHECK(rate() == 0.05);
  options.scale_lr = ScaleLr::linear;
  options.base_batch_size = 16;
  CHECK(rate() == 0.05 * 4 / 16);
  options.accumulate_grad_batches = 2;
  CHECK(rate() == 0.05 * 8 / 16);
  options.scale_lr = ScaleLr::sqrt;
  CHECK(rate() == Approx(0.05 * std::sqrt(0.5)).epsilon(1e-15));
}

TEST_CASE("scale_lr moves the rates that a schedule names too", "[trainer][optim]") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  const auto rates = [&] {
    auto module = std::make_shared<Seen<Planned>>();
    Trainer(options).fit(module, regression_data(40, 0, 4, false));
    return module->rates;
  };
  const std::vector<double> plain = rates();
  options.scale_lr = ScaleLr::linear;
  options.base_batch_size = 2;
  const std::vector<double> scaled = rates();
  REQUIRE(plain.size() == 10);
  for (size_t i = 0; i < plain.size(); ++i) CHECK(scaled[i] == Approx(2 * plain[i]).epsilon(1e-12));
}

TEST_CASE("scale_lr and base_batch_size need each other", "[trainer][optim]") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.scale_lr = ScaleLr::linear;
  CHECK_THROWS_WITH(fit(options), ContainsSubstring("needs base_batch_size"));
  options.scale_lr = ScaleLr::none;
  options.base_batch_size = 8;
  CHECK_THROWS_WITH(fit(options), ContainsSubstring("has no effect without scale_lr"));
}

TEST_CASE("log_grad_norm logs the norm before clipping", "[trainer][optim]") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  CHECK(logged(*fit(options).logger, "grad_norm").empty());
  options.log_grad_norm = true;
  const auto check = [&] {
    const Fitted fitted = fit(options);
    const auto norms = logged(*fitted.logger, "grad_norm");
    REQUIRE(norms.size() == 10);
    for (size_t i = 0; i < norms.size(); ++i) CHECK(norms[i] == Approx(fitted.module->norms[i]).epsilon(1e-6));
  };
  check();
  options.gradient_clip_val = 0.1;
  check();
  options.gradient_clip_algorithm = ClipAlgorithm::value;
  check();
}

TEST_CASE("the resolved config has the rates and lengths that were decided, and gives the same run again",
          "[trainer][config]") {
  const TemporaryFolder folder;
  const auto run = [&](const std::string& text, const std::string& name) {
    const auto path = folder.path() / (name + ".yaml");
    std::ofstream(path) << text;
    const Config config = load_config({.files = {path}, .overrides = {}, .environment = {}});
    at::manual_seed(4);
    auto module = std::make_shared<Seen<BoringModule>>();
    Trainer trainer = Trainer::from_config(config);
    const FitReport report = trainer.fit(module, regression_data(40, 0, 4, false));
    std::ifstream file(report.run_dir / "config.yaml");
    std::stringstream all;
    all << file.rdbuf();
    return std::pair{module->rates, all.str()};
  };
  const std::string written =
      "seed_everything: 5\n"
      "trainer: {accelerator: cpu, max_epochs: 2, enable_progress_bar: false, enable_model_summary: false, "
      "default_root_dir: '" +
      folder.path().string() +
      "', scale_lr: linear, base_batch_size: 2}\n"
      "optimizer: {class_path: SGD, init_args: {lr: 0.01}}\n"
      "lr_scheduler_interval: step\n"
      "lr_scheduler:\n"
      "  class_path: WarmupLR\n"
      "  init_args:\n"
      "    length: 4\n"
      "    after: {class_path: CosineAnnealingLR, init_args: {t_max: auto, eta_min: 0.001}}\n";
  const auto [rates, resolved] = run(written, "written");
  REQUIRE(rates.size() == 20);
  CHECK(rates[4] == Approx(0.02).epsilon(0.02));
  CHECK_THAT(resolved, ContainsSubstring("lr: 0.02") && ContainsSubstring("t_max: auto") &&
                           ContainsSubstring("16 steps of the schedule") && ContainsSubstring("eta_min: 0.002") &&
                           ContainsSubstring("scale_lr: none") && ContainsSubstring("scaled already: × 2"));
  const auto [again, resolved_again] = run(resolved, "again");
  CHECK(again == rates);
}

TEST_CASE("several training loaders are combined: shorter ones begin again", "[trainer][data]") {
  struct Two : LightningModule {
    torch::nn::Linear layer{nullptr};
    std::vector<std::vector<std::string>> names;
    Two() { layer = register_module("layer", torch::nn::Linear(4, 2)); }
    StepOutput training_step(const Batch& batch, int64_t) override {
      names.emplace_back();
      for (const auto& [name, value] : batch) names.back().push_back(name);
      return at::mse_loss(layer->forward(batch["0.x"]), batch["0.y"]) +
             at::mse_loss(layer->forward(batch["1.x"]), batch["1.y"]);
    }
    OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 0.01}); }
  };
  const TemporaryFolder folder;
  const auto loader = [](int64_t samples) {
    return std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(samples)),
                                        DataLoaderOptions{.batch_size = 4});
  };
  DataSource data;
  data.train = {loader(8), loader(20)};
  auto module = std::make_shared<Two>();
  Trainer(quiet(folder)).fit(module, data);
  CHECK(module->names == std::vector<std::vector<std::string>>(5, {"0.x", "0.y", "1.x", "1.y"}));
}

TEST_CASE("debug checks losses and gradients of manual optimization", "[trainer]") {
  struct Manual : BoringModule {
    bool bad_loss = false, bad_step = false;
    bool automatic_optimization() const override { return false; }
    OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 0.05}); }
    StepOutput training_step(const Batch& batch, int64_t) override {
      Tensor loss = at::mse_loss(forward(batch[0]), batch[1]);
      if (bad_loss) loss = loss * std::numeric_limits<double>::infinity();
      manual_backward(loss);
      if (bad_step) first->weight.mutable_grad().fill_(std::numeric_limits<double>::infinity());
      optimizers(0).step();
      optimizers(0).zero_grad();
      return loss;
    }
  };
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.debug = true;
  auto module = std::make_shared<Manual>();
  Trainer(options).fit(module, regression_data());
  module = std::make_shared<Manual>();
  module->bad_loss = true;
  CHECK_THROWS_WITH(Trainer(options).fit(module, regression_data()), ContainsSubstring("the loss is .inf"));
  module = std::make_shared<Manual>();
  module->bad_step = true;
  CHECK_THROWS_WITH(Trainer(options).fit(module, regression_data()),
                    ContainsSubstring("first.weight") && ContainsSubstring("after the optimizer's step"));
}

}  // namespace learning_rates_test
