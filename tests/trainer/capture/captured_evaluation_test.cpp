// capture: steps of validation, test and predict on the CPU.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <random>

#include "fulgur/core/text/text.h"
#include "fulgur/metrics/ranking.h"
#include "fulgur/metrics/stat_scores.h"
#include "trainer/capture/captured_fit.h"

namespace captured_evaluation_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

metrics::Accuracy::Options two_classes() {
  metrics::Accuracy::Options options;
  options.num_classes = 2;
  return options;
}

// Logs values of every kind.
struct Evaluated : BoringModule {
  Evaluated() : BoringModule(0.25) {}
  OptimizerPlan configure_optimizers() override { return adamw_with_step_lr(0.01, 4, 0.7); }
  Outputs evaluate(const Batch& batch, const std::string& prefix, metrics::Accuracy& accuracy) {
    ++calls;
    const Tensor out = forward(batch[0]);
    Tensor loss = at::mse_loss(out, batch[1]);
    log(prefix + "loss", loss);
    loss.mul_(2);  // after it was logged
    log(prefix + "twice", loss, {.on_step = true, .on_epoch = true});
    log(prefix + "most", out.max(), {.reduce_fx = Reduce::max});
    log(prefix + "sum", out.sum().to(at::kDouble) / 3, {.reduce_fx = Reduce::sum});
    log(prefix + "number", 0.1);
    accuracy.update(out, batch[1].argmax(1));
    log(prefix + "accuracy", accuracy);
    return {{"out", out}, {"x", batch[0]}, {"weight", first->weight[0].expand({batch.size(), 4}).clone()}};
  }
  Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    return evaluate(batch, "val_", val_accuracy);
  }
  Outputs test_step(const Batch& batch, int64_t, int64_t) override { return evaluate(batch, "test_", test_accuracy); }
  Outputs predict_step(const Batch& batch, int64_t, int64_t) override {
    ++calls;
    return {{"y", at::sigmoid(forward(batch[0]))}, {"x", batch[0]}};
  }
  metrics::Accuracy val_accuracy{two_classes()}, test_accuracy{two_classes()};
  int64_t calls = 0;
};

// Keeps what it gets.
struct Keeping : Callback {
  void on_validation_batch_end(RunContext&, const Outputs& outputs, const Batch&, int64_t, int64_t) override {
    kept.push_back(outputs);
  }
  void on_test_batch_end(RunContext&, const Outputs& outputs, const Batch&, int64_t, int64_t) override {
    kept.push_back(outputs);
  }
  std::vector<Outputs> kept;
};

void check_same_outputs(const std::vector<Outputs>& a, const std::vector<Outputs>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].size() == b[i].size());
    for (const auto& [name, value] : a[i]) CHECK(value.equal(b[i][name]));
  }
}

Trainer trainer_of(const TemporaryFolder& folder, bool captures, const std::shared_ptr<Keeping>& keeping = {},
                   const std::function<void(TrainerOptions&)>& change = {}) {
  TrainerOptions options = quiet(folder);
  options.capture = captures;
  if (change) change(options);
  TrainerComponents components;
  components.seed = 5;
  if (keeping) components.add(keeping);
  return Trainer(options, components);
}

template <class M>
std::shared_ptr<M> made() {
  at::manual_seed(3);
  return std::make_shared<M>();
}

}  // namespace

TEST_CASE("a captured test has the metrics and outputs of an eager one, bit for bit, in any precision") {
  const std::string precision = GENERATE("32-true", "64-true", "bf16-mixed", "bf16-true");
  const bool inference = GENERATE(true, false);
  CAPTURE(precision, inference);
  const TemporaryFolder folder;
  const auto run = [&](bool captures) {
    const auto module = made<Evaluated>();
    const auto keeping = std::make_shared<Keeping>();
    const EvalReport report = trainer_of(folder, captures, keeping, [&](TrainerOptions& options) {
                                options.precision = Spec<Precision>(precision);
                                options.inference_mode = inference;
                              }).test(module, regression_data(8, 31, 3));
    return std::tuple(report, keeping->kept, module->calls);
  };
  const auto [plain, outputs, calls] = run(false);
  const auto [captured, same_outputs, few_calls] = run(true);
  CHECK(plain.loaders == captured.loaders);
  CHECK(plain.loaders[0].size() == 6);
  CHECK(plain.samples == captured.samples);
  check_same_outputs(outputs, same_outputs);
  // 11 batches, the last with one sample. The first is eager, and the second, third and tenth are recorded.
  CHECK(captured.captured_batches == 9);
  CHECK_FALSE(captured.not_captured);
  CHECK(calls == 11);
  CHECK(few_calls == 5);
  CHECK(plain.captured_batches == 0);
  CHECK_FALSE(plain.not_captured);
}

TEST_CASE("captured predictions equal eager ones, and each batch has its own memory") {
  const TemporaryFolder folder;
  const auto run = [&](bool captures) {
    return trainer_of(folder, captures).predict(made<Evaluated>(), regression_data(8, 30, 3));
  };
  const PredictReport plain = run(false), captured = run(true);
  CHECK(captured.captured_batches == 9);
  check_same_outputs(plain.loaders, captured.loaders);
}

TEST_CASE("validations of a captured fit have the bits of an eager one: other weights, passes and loaders") {
  const uint32_t seed = GENERATE(range(1U, 9U));
  std::mt19937 draw(seed);
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.num_sanity_val_steps = static_cast<int64_t>(draw() % 3);
  options.val_check_interval = static_cast<int64_t>(2 + draw() % 4);
  if (draw() % 2 == 0) options.limit_val_batches = static_cast<int64_t>(2 + draw() % 8);
  options.precision = Spec<Precision>(draw() % 2 == 0 ? "64-true" : "32-true");
  options.accumulate_grad_batches = static_cast<int64_t>(1 + draw() % 2);
  const auto samples = static_cast<int64_t>(24 + draw() % 8);
  const auto run = [&](bool captures) {
    const auto keeping = std::make_shared<Keeping>();
    auto outcome = fit<Evaluated>(
        options, captures,
        [&](TrainerComponents& components) {
          on_cpu(components);
          components.add(keeping);
        },
        {}, 42, regression_data(42, samples, 3));
    return std::pair(std::move(outcome), keeping->kept);
  };
  const auto [plain, outputs] = run(false);
  const auto [captured, same_outputs] = run(true);
  CAPTURE(seed, samples, captured.told);
  CHECK(captured.report.captured_validation_batches > 0);
  CHECK_FALSE(captured.report.validation_not_captured);
  CHECK(same_weights(plain.weights, captured.weights));
  CHECK(plain.report.metrics == captured.report.metrics);
  for (const char* name : {"val_loss", "val_twice_epoch", "val_most", "val_sum", "val_number", "val_accuracy"}) {
    CAPTURE(name);
    CHECK_FALSE(plain.logger->values(name).empty());
    CHECK(plain.logger->values(name) == captured.logger->values(name));
  }
  check_same_outputs(outputs, same_outputs);
}

namespace {

struct ReadsOutput : Evaluated {
  Outputs test_step(const Batch& batch, int64_t, int64_t) override {
    const Tensor out = forward(batch[0]);
    log("test_large", out.max().item<double>() > 0.5 ? 1.0 : 0.0);
    return {};
  }
};

struct Gathers : Evaluated {
  Outputs test_step(const Batch& batch, int64_t i, int64_t l) override {
    gathered.push_back(Evaluated::test_step(batch, i, l)["out"]);
    return {};
  }
  void on_test_epoch_end() override { log("test_gathered", static_cast<double>(gathered.size())); }
  std::vector<Tensor> gathered;
};

struct LogsIndex : Evaluated {
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t) override {
    log("test_index", static_cast<double>(batch_idx));
    return {{"out", forward(batch[0])}};
  }
};

struct GetsViews : Evaluated {
  Batch on_after_batch_transfer(Batch batch, int64_t) override {
    Batch views;
    for (const auto& [name, value] : batch) {
      const Tensor x = std::get<Tensor>(value);
      views.add(name, at::cat({x, x}, 1).slice(1, 0, x.size(1)));
    }
    return views;
  }
};

struct ScalesByIndex : Evaluated {
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t) override {
    log("test_scaled", forward(batch[0]).sum() * static_cast<double>(batch_idx));
    return {};
  }
};

struct KeepsState : Evaluated {
  Outputs test_step(const Batch& batch, int64_t, int64_t) override {
    const Tensor sum = forward(batch[0]).sum();
    state = state.defined() ? state + sum : sum;
    log("test_state", state, {.reduce_fx = Reduce::last});
    return {};
  }
  Tensor state;
};

// An eager step of the first batch may do something else.
struct FirstIsOther : Evaluated {
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t l) override {
    if (batch_idx == 0) first_sum = forward(batch[0]).sum().item<double>();
    return Evaluated::test_step(batch, batch_idx, l);
  }
  double first_sum = 0;
};

// Code of the host that changes late in the pass.
struct ChangesLate : Evaluated {
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t) override {
    const Tensor sum = forward(batch[0]).sum();
    log("test_sum", batch_idx < 7 ? sum : sum * 2);
    return {};
  }
};

// Changes a member after the fifth batch.
struct ChangesMember : Evaluated {
  Outputs test_step(const Batch& batch, int64_t, int64_t) override {
    ++test_calls;
    const Tensor sum = forward(batch[0]).sum();
    log("test_sum", scale == 1 ? sum : sum * 2);
    return {};
  }
  void on_test_batch_end(const Outputs&, const Batch&, int64_t batch_idx, int64_t) override {
    if (batch_idx == 4) scale = 2;
  }
  double scale = 1;
  inline static int64_t test_calls = 0;
};

// Counts its batches in a buffer by a pointer, draws, and updates a metric that a recording refuses when it is logged.
struct BreaksOff : Evaluated {
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t) override {
    *counted.mutable_data_ptr<float>() += 1;
    const Tensor noise = at::rand({batch.size(), 2});
    log("test_drawn", noise.sum() + counted.sum() + forward(batch[0]).sum());
    if (batch_idx > 0) {
      auroc.update(noise, batch[1].argmax(1));
      log("test_auroc", auroc);
    }
    return {{"noise", noise}, {"counted", counted.clone()}};
  }
  Tensor counted = register_buffer("counted", at::zeros({1}));
  metrics::Auroc auroc{{.num_classes = 2}};
};

template <class M>
std::pair<EvalReport, EvalReport> tested(std::string& told, int64_t samples = 30) {
  const TemporaryFolder folder;
  log::reset_warnings();
  const EvalReport plain = trainer_of(folder, false).test(made<M>(), regression_data(8, samples, 3));
  log::set_sink([](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line; },
                &told);
  const EvalReport captured = trainer_of(folder, true).test(made<M>(), regression_data(8, samples, 3));
  log::set_sink({}, nullptr);
  return {plain, captured};
}

template <class M>
void expect_refused(const std::string& reason) {
  std::string told;
  const auto [plain, refused] = tested<M>(told);
  CHECK(plain.loaders == refused.loaders);
  CHECK(refused.captured_batches <= 1);
  CHECK_THAT(refused.not_captured.value_or("captured"), ContainsSubstring(reason));
  CHECK_THAT(told, ContainsSubstring("test_step is not captured: ") && ContainsSubstring(reason));
}

}  // namespace

TEST_CASE("steps of an evaluation that cannot be captured are refused by name, and run eagerly") {
  expect_refused<ReadsOutput>("aten::_local_scalar_dense in test_step: it reads a tensor's values on the host");
  expect_refused<Gathers>("overrides on_test_epoch_end");
  expect_refused<LogsIndex>("log() got other names, numbers of the host or batch sizes");
  expect_refused<ScalesByIndex>("a number of the host has changed");
  expect_refused<KeepsState>("a result of the previous step");
  expect_refused<GetsViews>("have gaps or are repeated in memory");
}

TEST_CASE("what a step does only with the first batch is done") {
  std::string told;
  const auto [plain, captured] = tested<FirstIsOther>(told);
  CHECK(plain.loaders == captured.loaders);
  CHECK(captured.captured_batches == 9);
  CHECK_FALSE(captured.not_captured);
}

TEST_CASE("an evaluation whose host code changes late ends with an error that names the operation") {
  std::string told;
  CHECK_THROWS_WITH(tested<ChangesLate>(told, 60),
                    ContainsSubstring("[trainer.capture] a captured test_step") && ContainsSubstring("aten::mul"));
  log::set_sink({}, nullptr);
}

TEST_CASE("short evaluations are compared at their last batches, too") {
  for (const int64_t samples : {27, 30, 25}) {
    std::string told;
    CAPTURE(samples);
    CHECK_THROWS_WITH(tested<ChangesLate>(told, samples), ContainsSubstring("[trainer.capture] a captured test_step"));
    log::set_sink({}, nullptr);
  }
}

TEST_CASE("a change of the module's members in an evaluation is found at the next batch") {
  std::string told;
  CHECK_THROWS_WITH(tested<ChangesMember>(told, 60), ContainsSubstring("aten::mul"));
  log::set_sink({}, nullptr);
  // 20 eager steps; then the first is eager, the next two are recorded, and so is the one after the change.
  CHECK(ChangesMember::test_calls == 20 + 4);
}

TEST_CASE("an evaluation whose recording is broken off has the bits of an eager one: buffers, generators, metrics") {
  const TemporaryFolder folder;
  const auto run = [&](bool captures) {
    const auto module = made<BreaksOff>();
    const auto keeping = std::make_shared<Keeping>();
    const EvalReport report = trainer_of(folder, captures, keeping).test(module, regression_data(8, 30, 3));
    return std::tuple(report, keeping->kept, module->counted.item<float>());
  };
  const auto [plain, outputs, counted] = run(false);
  const auto [refused, same_outputs, same_counted] = run(true);
  CHECK(plain.loaders == refused.loaders);
  CHECK(refused.captured_batches == 0);
  CHECK_THAT(refused.not_captured.value_or(""), ContainsSubstring("'test_auroc' keeps all samples"));
  check_same_outputs(outputs, same_outputs);
  CHECK(counted == 10);
  CHECK(same_counted == 10);
}

TEST_CASE("passes that are too short are not captured, and the report says so") {
  std::string told;
  const auto [plain, captured] = tested<Evaluated>(told, 4);
  CHECK(plain.loaders == captured.loaders);
  CHECK(captured.captured_batches == 0);
  CHECK_THAT(captured.not_captured.value_or(""), ContainsSubstring("no loader has had two batches of the same shape"));
}

TEST_CASE("loaders with fewer batches than capture_min_eval_batches run eagerly, and the report says so") {
  const TemporaryFolder folder;
  const auto captured = [&](int64_t least, const std::optional<int64_t>& limit = {}) {
    return trainer_of(folder, true, {},
                      [&](TrainerOptions& options) {
                        options.capture_min_eval_batches = least;
                        if (limit) options.limit_test_batches = *limit;
                      })
        .test(made<Evaluated>(), regression_data(8, 30, 3));
  };
  CHECK(captured(10).captured_batches == 9);
  const EvalReport eager = captured(11), limited = captured(10, 9);
  CHECK(eager.captured_batches == 0);
  CHECK_THAT(eager.not_captured.value_or(""), ContainsSubstring("a loader has 10 batches in a pass") &&
                                                  ContainsSubstring("capture_min_eval_batches (11)"));
  CHECK(limited.captured_batches == 0);
  // One loader of two is long enough.
  TrainerOptions options = quiet(folder);
  options.capture = true;
  options.capture_min_eval_batches = 10;
  const auto loader = [](int64_t samples) {
    return std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(samples, 3)),
                                        DataLoaderOptions{.batch_size = 3});
  };
  DataSource data;
  data.predict = {loader(27), loader(30)};
  const PredictReport both = Trainer(options).predict(made<Evaluated>(), data);
  CHECK(both.captured_batches == 9);
  CHECK_FALSE(both.not_captured);
}

TEST_CASE("a stream is captured in its first pass, and later only if it has had enough batches") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.capture = true;
  options.capture_min_eval_batches = GENERATE(5, 6);
  options.max_epochs = 3;
  if (GENERATE(false, true)) options.limit_val_batches = 100;
  const DataSource data(regression_stream(8), {regression_stream(20)});
  const FitReport report = Trainer(options).fit(made<Evaluated>(), data);
  CHECK(report.captured_validation_batches == (options.capture_min_eval_batches == 5 ? 12 : 4));
}

}  // namespace captured_evaluation_test
