// How a run computes on the CPU: the library that multiplies matrices and the number of threads, and what a resume
// keeps of these decisions.
#include "trainer/boring.h"

#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/core/device/cpu_matmul.h"
#include "fulgur/core/device/cpu_matmul_rule.h"
#include "fulgur/core/system/usable_cpus.h"
#include "fulgur/nn/linear.h"
#include "setup/process_settings.h"
#include "support/shown_lines.h"

namespace cpu_work_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using fulgur::detail::threads_for_work;

namespace {

// A product whose sums are long enough that the two libraries round them differently.
bool multiplies_as_libtorch() {
  const Tensor a = at::randn({128, 4099}), b = at::randn({4099, 128});
  return at::mm(a, b).equal(at::cpu::mm(a, b));
}

struct LookingAtCpu : SelfPlanned {
  bool trains_as_libtorch = true, predicts_as_libtorch = true;
  int threads = 0;
  void on_train_start() override {
    trains_as_libtorch = multiplies_as_libtorch();
    threads = at::get_num_threads();
  }
  void on_predict_start() override { predicts_as_libtorch = multiplies_as_libtorch(); }
};

// Notes whether its weight lies row by row in each stage.
struct WithWideLayer : SelfPlanned {
  nn::Linear wide = register_module("wide", nn::Linear(256, 128));
  bool trains_in_rows = false, tests_in_rows = true, predicts_in_rows = true, fails = false;
  void on_train_start() override { trains_in_rows = wide->weight.is_contiguous(); }
  void on_test_start() override { tests_in_rows = wide->weight.is_contiguous(); }
  void on_predict_start() override {
    predicts_in_rows = wide->weight.is_contiguous();
    if (fails) throw std::runtime_error("on purpose");
  }
};

// The tests run with OMP_NUM_THREADS=1, which decides.
class WithoutThreadVariable {
 public:
  WithoutThreadVariable() {
    if (const char* const text = std::getenv("OMP_NUM_THREADS")) before_ = text;
    ::unsetenv("OMP_NUM_THREADS");
  }
  ~WithoutThreadVariable() {
    if (before_) ::setenv("OMP_NUM_THREADS", before_->c_str(), 1);
    at::set_num_threads(1);
  }
  WithoutThreadVariable(const WithoutThreadVariable&) = delete;
  WithoutThreadVariable& operator=(const WithoutThreadVariable&) = delete;

 private:
  std::optional<std::string> before_;
};

void need_onednn() {
  if (const std::string why = why_no_onednn_matmul(); !why.empty()) SKIP(why);
}

std::string saved_config(const TemporaryFolder& folder) {
  return read_text(folder / "fulgur_logs/version_0/config.yaml");
}

TrainerOptions steps(const TemporaryFolder& folder, int64_t count) {
  TrainerOptions options = quiet(folder);
  options.max_epochs = -1;
  options.max_steps = count;
  return options;
}

}  // namespace

TEST_CASE("cpu_matmul applies to the run alone; the start lines and the saved config have the decision") {
  need_onednn();
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.cpu_matmul = CpuMatmul::onednn;
  auto module = std::make_shared<LookingAtCpu>();
  std::string lines = shown_lines([&] { Trainer(options).fit(module, regression_data()); });
  CHECK_FALSE(module->trains_as_libtorch);
  CHECK(multiplies_as_libtorch());
  CHECK_THAT(lines, ContainsSubstring(" · matrix products: onednn · "));
  CHECK_THAT(saved_config(folder), ContainsSubstring("cpu_matmul: onednn"));
  Trainer(options).predict(module, regression_data());
  CHECK_FALSE(module->predicts_as_libtorch);

  TemporaryFolder other;
  options = quiet(other);
  options.cpu_matmul = CpuMatmul::mkl;
  lines = shown_lines([&] { Trainer(options).fit(module, regression_data()); });
  CHECK(module->trains_as_libtorch);
  CHECK_THAT(lines, ContainsSubstring(" · matrix products: mkl · "));
  CHECK_THAT(saved_config(other), ContainsSubstring("cpu_matmul: mkl"));
}

TEST_CASE("evaluations on the CPU transpose the weights of linear layers in memory until they end, fits do not") {
  const bool stays = !fulgur::detail::this_cpu().avx512;
  TemporaryFolder folder;
  const TrainerOptions options = quiet(folder);
  auto module = std::make_shared<WithWideLayer>();
  const Tensor weight = module->wide->weight.detach().clone();
  Trainer(options).predict(module, regression_data());
  CHECK(module->predicts_in_rows == stays);
  CHECK(module->wide->weight.is_contiguous());
  CHECK(module->wide->weight.equal(weight));
  Trainer(options).test(module, regression_data());
  CHECK(module->tests_in_rows == stays);
  CHECK(module->wide->weight.is_contiguous());
  Trainer(options).fit(module, regression_data());
  CHECK(module->trains_in_rows);

  module->fails = true;
  CHECK_THROWS(Trainer(options).predict(module, regression_data()));
  CHECK(module->wide->weight.is_contiguous());

  module->fails = false;
  module->predicts_in_rows = false;
  TrainerOptions mixed = options;
  mixed.precision = Spec<Precision>("bf16-mixed");
  Trainer(mixed).predict(module, regression_data());
  CHECK(module->predicts_in_rows);
}

TEST_CASE("cpu_matmul: an exception ends the choice too") {
  need_onednn();
  struct Failing : SelfPlanned {
    void on_train_start() override { throw std::runtime_error("on purpose"); }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.cpu_matmul = CpuMatmul::onednn;
  CHECK_THROWS(Trainer(options).fit(std::make_shared<Failing>(), regression_data()));
  CHECK(multiplies_as_libtorch());
}

TEST_CASE("cpu_matmul and num_threads: a resume with auto keeps what the run had") {
  need_onednn();
  const WithoutThreadVariable automatic;
  const int64_t threads = std::min<int64_t>(2, usable_cpus());
  TemporaryFolder folder;
  TrainerOptions options = steps(folder, 4);
  options.cpu_matmul = CpuMatmul::onednn;
  options.num_threads = Auto<int64_t>(threads);
  const FitReport first = Trainer(options).fit(std::make_shared<SelfPlanned>(), regression_data());
  REQUIRE(first.last_checkpoint);

  // The small model alone would get one thread.
  options = steps(folder, 8);
  auto resumed = std::make_shared<LookingAtCpu>();
  Trainer(options).fit(resumed, regression_data(), first.last_checkpoint->string());
  CHECK_FALSE(resumed->trains_as_libtorch);
  CHECK(resumed->threads == threads);
  CHECK_THAT(saved_config(folder), ContainsSubstring("cpu_matmul: onednn"));
  CHECK_THAT(saved_config(folder), ContainsSubstring("num_threads: " + std::to_string(threads)));

  // What is given wins, as does the processor with --allow-config-change.
  options = steps(folder, 12);
  options.cpu_matmul = CpuMatmul::mkl;
  options.num_threads = Auto<int64_t>(1);
  auto changed = std::make_shared<LookingAtCpu>();
  const FitReport third = Trainer(options).fit(changed, regression_data(), "last");
  CHECK(changed->trains_as_libtorch);
  CHECK(changed->threads == 1);
  options = steps(folder, 16);
  TrainerComponents components;
  components.load.allow_config_change = true;
  auto decided = std::make_shared<LookingAtCpu>();
  Trainer(options, components).fit(decided, regression_data(), third.last_checkpoint->string());
  CHECK(decided->trains_as_libtorch == (decide_cpu_matmul(CpuMatmul::automatic) == CpuMatmul::mkl));
}

TEST_CASE("cpu_matmul: a run that was interrupted and resumed equals one that was not, with oneDNN") {
  need_onednn();
  // Large enough for oneDNN: 512 samples of 128 features.
  struct Wide : LightningModule {
    torch::nn::Linear first{nullptr}, second{nullptr};
    Wide() {
      first = register_module("first", torch::nn::Linear(128, 256));
      second = register_module("second", torch::nn::Linear(256, 16));
    }
    StepOutput training_step(const Batch& batch, int64_t) override {
      return at::mse_loss(second->forward(first->forward(batch[0]).relu()), batch[1]);
    }
    OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 0.05}); }
  };
  const auto data = [] {
    at::manual_seed(1);
    TensorDataModule::Sets sets;
    sets.train = Batch{{"x", at::randn({2048, 128})}, {"y", at::randn({2048, 16})}};
    return std::make_shared<TensorDataModule>(
        std::move(sets), TensorDataOptions{.batch_size = 512, .eval_batch_size = {}, .shuffle = true});
  };
  const auto fit = [&](const TemporaryFolder& folder, int64_t max_steps, const CheckpointChoice& from,
                       CpuMatmul matmul) {
    TrainerOptions options = steps(folder, max_steps);
    options.num_threads = Auto<int64_t>(1);
    options.cpu_matmul = matmul;
    TrainerComponents components;
    components.seed = 5;
    at::manual_seed(3);
    const auto module = std::make_shared<Wide>();
    const FitReport report = Trainer(options, components).fit(module, data(), from);
    return std::pair(weights(*module), report.last_checkpoint);
  };
  TemporaryFolder whole, again, parts, mkl;
  const auto expected = fit(whole, 10, {}, CpuMatmul::onednn).first;
  CHECK(same_weights(fit(again, 10, {}, CpuMatmul::onednn).first, expected));
  const auto checkpoint = fit(parts, 6, {}, CpuMatmul::onednn).second;
  REQUIRE(checkpoint);
  CHECK(same_weights(fit(parts, 10, checkpoint->string(), CpuMatmul::automatic).first, expected));
  const auto by_mkl = fit(mkl, 10, {}, CpuMatmul::mkl).first;
  for (const auto& [name, value] : by_mkl) CHECK((value - expected.at(name)).abs().max().item().toDouble() < 1e-5);
}

TEST_CASE("cpu_matmul: onednn on a machine that cannot is an error before the run, and no resume fails for it") {
  need_onednn();
  TemporaryFolder folder;
  TrainerOptions options = steps(folder, 4);
  options.cpu_matmul = CpuMatmul::onednn;
  const FitReport first = Trainer(options).fit(std::make_shared<SelfPlanned>(), regression_data());
  at::globalContext().setUserEnabledMkldnn(false);
  CHECK_THROWS_AS(Trainer(options).fit(std::make_shared<SelfPlanned>(), regression_data()), ConfigError);
  options = steps(folder, 8);
  auto module = std::make_shared<LookingAtCpu>();
  const std::string lines =
      shown_lines([&] { Trainer(options).fit(module, regression_data(), first.last_checkpoint->string()); });
  at::globalContext().setUserEnabledMkldnn(true);
  CHECK_THAT(lines, ContainsSubstring("resume: oneDNN multiplied the matrices of this run, and cannot do so here: "));
  CHECK(module->trains_as_libtorch);
}

TEST_CASE("num_threads: auto gives small models one thread, large ones all CPUs; OMP_NUM_THREADS wins") {
  CHECK(threads_for_work(1e4, 16) == 1);
  CHECK(threads_for_work(64.0 * 101'770, 16) == 1);  // 784-128-10, batch 64
  CHECK(threads_for_work(70e6, 16) == 2);
  CHECK(threads_for_work(1e12, 16) == 16);
  CHECK(threads_for_work(1e12, 1) == 1);

  const WithoutThreadVariable automatic;
  TemporaryFolder folder;
  const auto threads_of_fit = [&](const std::shared_ptr<DataModule>& data) {
    auto module = std::make_shared<LookingAtCpu>();
    Trainer(quiet(folder)).fit(module, data);
    return module->threads;
  };
  CHECK(threads_of_fit(regression_data()) == 1);
  // 58 weights for two million samples in a batch.
  CHECK(threads_of_fit(regression_data(2'000'000, 0, 2'000'000)) == std::min<int64_t>(3, usable_cpus()));
  // The few batches of a validation do not decide for the training.
  TensorDataModule::Sets sets;
  sets.train = regression(40);
  sets.val = regression(2'000'000);
  CHECK(threads_of_fit(std::make_shared<TensorDataModule>(
            std::move(sets), TensorDataOptions{.batch_size = 4, .eval_batch_size = 2'000'000, .shuffle = true})) == 1);
  ::setenv("OMP_NUM_THREADS", "2", 1);
  CHECK(threads_of_fit(regression_data()) == 2);
}

}  // namespace cpu_work_test
