// Batches that do not fit into memory are computed in parts, with the same result.
#include <ATen/ops/full.h>
#include <torch/nn/modules/batchnorm.h>

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/callbacks/weight_averaging.h"
#include "fulgur/core/text/log.h"
#include "fulgur/optim/lbfgs.h"
#include "support/expect_error.h"
#include "trainer/checkpointing/interrupted.h"

namespace auto_micro_batch_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

enum class Fails { before_random_numbers, after_random_numbers, in_backward };

/// Has memory for `capacity` samples only, from the batch `from` on (counted from 1).
struct Hungry : SelfPlanned {
  int64_t capacity = 1000, from = 1;
  Fails fails = Fails::after_random_numbers;
  bool with_outputs = false, uneven_outputs = false;
  torch::nn::BatchNorm1d norm{nullptr};
  std::vector<int64_t> sizes;  // of all attempts
  int64_t failures = 0;
  explicit Hungry(double dropout = 0, bool with_norm = false) : SelfPlanned(dropout) {
    if (with_norm) norm = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    sizes.push_back(batch.size());
    if (fails == Fails::before_random_numbers) need_memory(batch);
    const Tensor x = norm ? norm->forward(batch[0]) : batch[0];
    const Tensor loss = at::mse_loss(forward(x), batch[1]);
    log("train_loss", loss, {.on_step = true, .on_epoch = true});
    log("samples", static_cast<double>(batch.size()), {.on_step = true, .on_epoch = true, .reduce_fx = Reduce::sum});
    if (fails == Fails::after_random_numbers) need_memory(batch);
    last = batch;
    if (uneven_outputs) return {loss, {{"rows", at::full({3}, 1.0)}}};
    if (with_outputs) return {loss, {{"x", batch[0].select(1, 0)}, {"mean", batch[0].mean()}}};
    return loss;
  }
  void on_after_backward() override {
    if (fails == Fails::in_backward) need_memory(last);
  }
  void need_memory(const Batch& batch) {
    const bool is_scarce = run().progress().batches_total.started >= from;
    if (is_scarce && batch.size() > capacity) ++failures;
    TORCH_CHECK_WITH(OutOfMemoryError, !is_scarce || batch.size() <= capacity, "no memory for ", batch.size());
  }
  Batch last;
};

struct Ran {
  std::shared_ptr<Hungry> module;
  FitReport report;
  std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
  std::vector<std::string> outputs;
  std::string told;
};

/// Notes what the callbacks see of the steps.
struct SeesOutputs : Callback {
  std::vector<StepOutput> outputs;
  void on_train_batch_end(RunContext&, const StepOutput& output, const Batch&, int64_t) override {
    outputs.push_back(output);
  }
};

/// Two epochs of 40 samples in batches of 8.
Ran fit(std::shared_ptr<Hungry> module, bool micro = true,
        const std::function<void(TrainerOptions&, TrainerComponents&)>& change = {}) {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.auto_micro_batch = micro;
  TrainerComponents components;
  components.seed = 5;
  Ran ran{.module = std::move(module), .report = {}, .outputs = {}, .told = {}};
  components.loggers.push_back(ran.logger);
  if (change) change(options, components);
  log::reset_warnings();
  log::set_sink(
      [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; },
      &ran.told);
  try {
    ran.report = Trainer(options, components).fit(ran.module, regression_data(40, 8, 8));
  } catch (...) {
    log::set_sink(nullptr, nullptr);
    throw;
  }
  log::set_sink(nullptr, nullptr);
  return ran;
}

std::shared_ptr<Hungry> hungry(int64_t capacity, double dropout = 0, bool norm = false) {
  at::manual_seed(3);
  auto module = std::make_shared<Hungry>(dropout, norm);
  module->capacity = capacity;
  return module;
}

double largest_difference(const LightningModule& a, const LightningModule& b) {
  double most = 0;
  const auto left = weights(a), right = weights(b);
  for (const auto& [name, value] : left) {
    const Tensor distance = (value.to(at::kDouble) - right.at(name).to(at::kDouble)).abs().max();
    most = std::max(most, distance.item<double>());
  }
  return most;
}

}  // namespace

TEST_CASE("auto_micro_batch: without a lack of memory nothing changes, to the bit") {
  const int64_t accumulate = GENERATE(1, 2);
  const auto with = [&](TrainerOptions& options, TrainerComponents&) { options.accumulate_grad_batches = accumulate; };
  const Ran plain = fit(hungry(1000, 0.3, true), false, with), micro = fit(hungry(1000, 0.3, true), true, with);
  CHECK(same_weights(weights(*plain.module), weights(*micro.module)));
  CHECK(plain.report.metrics == micro.report.metrics);
  CHECK(micro.module->sizes == std::vector<int64_t>(10, 8));
}

TEST_CASE("auto_micro_batch: weights, losses and counts equal those of whole batches") {
  const int64_t capacity = GENERATE(1, 3, 4, 7);
  const int64_t accumulate = GENERATE(1, 2);
  const Fails fails = GENERATE(Fails::before_random_numbers, Fails::after_random_numbers, Fails::in_backward);
  const auto with = [&](TrainerOptions& options, TrainerComponents&) {
    options.accumulate_grad_batches = accumulate;
    options.gradient_clip_val = 0.1;
  };
  auto module = hungry(capacity);
  module->fails = fails;
  module->from = 4;  // inside a window of accumulation
  const Ran whole = fit(hungry(1000), false, with), split = fit(std::move(module), true, with);
  INFO(capacity << " " << accumulate << " " << static_cast<int>(fails));
  CHECK(split.report.global_step == whole.report.global_step);
  CHECK(largest_difference(*whole.module, *split.module) < 1e-6);
  REQUIRE(whole.report.metrics.size() == split.report.metrics.size());
  for (const auto& [name, value] : whole.report.metrics) CHECK(split.report.metric(name) == Approx(value).margin(1e-6));
  // 8 samples, then 4, 2, 1, until they fit; later batches begin with that.
  CHECK(split.module->failures == (capacity >= 4 ? 1 : capacity == 3 ? 2 : 3));
  CHECK_THAT(split.told, ContainsSubstring("cpu ran out of memory with 8 samples"));
  CHECK_THAT(split.told, ContainsSubstring("at most 4 samples"));
}

TEST_CASE("auto_micro_batch: a batch that is repeated draws the random numbers of the first attempt again") {
  auto early = hungry(4, 0.5, true), late = hungry(4, 0.5, true);
  early->fails = Fails::before_random_numbers;
  late->fails = GENERATE(Fails::after_random_numbers, Fails::in_backward);
  early->from = late->from = 3;
  const Ran a = fit(std::move(early)), b = fit(std::move(late));
  // The buffers of the batch norm, which the failed attempt has changed, are among the weights.
  CHECK(same_weights(weights(*a.module), weights(*b.module)));
  CHECK(a.report.metrics == b.report.metrics);
  CHECK(a.module->norm->num_batches_tracked.item<int64_t>() == 2 + 8 * 2);
}

TEST_CASE("auto_micro_batch: rows have one loss per batch, and callbacks one output") {
  const auto sees = std::make_shared<SeesOutputs>(), saw = std::make_shared<SeesOutputs>();
  auto module = hungry(3), whole_module = hungry(1000);
  module->with_outputs = whole_module->with_outputs = true;
  const Ran split = fit(std::move(module), true, [&](auto&, TrainerComponents& c) { c.add(sees); });
  const Ran whole = fit(std::move(whole_module), false, [&](auto&, TrainerComponents& c) { c.add(saw); });
  REQUIRE(sees->outputs.size() == 10);
  for (size_t i = 0; i < 10; ++i) {
    const StepOutput& a = sees->outputs[i];
    const StepOutput& b = saw->outputs[i];
    CHECK(a.loss.item<double>() == Approx(b.loss.item<double>()));
    CHECK_FALSE(a.loss.requires_grad());
    CHECK(a.extra["x"].equal(b.extra["x"]));
    CHECK(a.extra["mean"].item<double>() == Approx(b.extra["mean"].item<double>()));
  }
  auto uneven = hungry(4);
  uneven->uneven_outputs = true;
  CHECK_THAT(message_of<Error>([&] { fit(uneven); }), ContainsSubstring("one row per sample"));
}

TEST_CASE("auto_micro_batch: the size is saved: a run that is killed and resumed equals one that is not") {
  using interrupted::Settings;
  const auto with = [](TrainerOptions& options, TrainerComponents&) {
    options.auto_micro_batch = true;
    options.max_epochs = 3;
  };
  const auto module = [] {
    auto made = hungry(2, 0.3);
    made->from = 2;
    return made;
  };
  const TemporaryFolder once, twice;
  const auto whole = module(), first = module(), second = module();
  interrupted::fit(once, {.change = with, .module = whole});
  interrupted::fit(twice, {.ends_at = 13, .change = with, .module = first});
  interrupted::fit(twice, {.from = "auto", .change = with, .module = second});
  CHECK(first->failures == 1);
  // It begins with parts that fit.
  CHECK(second->failures == 0);
  CHECK(second->sizes.front() == 2);
  CHECK(same_weights(weights(*whole), weights(*second)));
}

TEST_CASE("auto_micro_batch: if not even one sample fits, the run ends as without it") {
  const auto module = hungry(0);
  CHECK_THROWS_AS(fit(module), c10::OutOfMemoryError);
  CHECK(module->sizes == std::vector<int64_t>{8, 4, 2, 1});
  CHECK_THROWS_AS(fit(hungry(4), false), c10::OutOfMemoryError);
}

TEST_CASE("auto_micro_batch: only the callbacks with hooks of an attempt are restored") {
  struct Counts : Callback {
    int64_t count = 0, loads = 0;
    mutable int64_t reads = 0;
    StateTree state() const override {
      ++reads;
      return StateTree::map({{"count", count}});
    }
    void load_state(const StateTree& state) override {
      ++loads;
      count = state.at("count").as_int();
    }
  };
  struct InAttempt : Counts {
    void on_after_backward(RunContext&) override { ++count; }
  };
  struct AfterIt : Counts {
    void on_train_batch_end(RunContext&, const StepOutput&, const Batch&, int64_t) override { ++count; }
  };
  const auto inside = std::make_shared<InAttempt>();
  const auto after = std::make_shared<AfterIt>(), after_plain = std::make_shared<AfterIt>();
  auto module = hungry(4);
  module->fails = Fails::in_backward;
  module->from = 4;
  fit(std::move(module), true, [&](TrainerOptions&, TrainerComponents& components) {
    components.add(inside);
    components.add(after);
  });
  fit(hungry(1000), false, [&](TrainerOptions&, TrainerComponents& components) { components.add(after_plain); });
  // Three whole batches, then seven in two parts; the failed backward does not count.
  CHECK(inside->loads == 1);
  CHECK(inside->count == 3 + 7 * 2);
  CHECK(after->loads == 0);
  CHECK(after->count == 10);
  CHECK(after->reads == after_plain->reads);
}

TEST_CASE("auto_micro_batch: what cannot be repeated in parts is refused") {
  const auto refused = [](const std::shared_ptr<Hungry>& module, const std::function<void(TrainerOptions&)>& change) {
    return message_of<ConfigError>(
        [&] { fit(module, true, [&](TrainerOptions& options, TrainerComponents&) { change(options); }); });
  };
  struct Manual : Hungry {
    bool automatic_optimization() const override { return false; }
  };
  struct Repeats : Hungry {
    OptimizerPlan configure_optimizers() override { return std::make_shared<LBFGS>(LBFGS::Options{}); }
  };
  struct NoLoss : Hungry {
    StepOutput training_step(const Batch&, int64_t) override { return {}; }
  };
  CHECK_THAT(refused(std::make_shared<Manual>(), [](auto&) {}), ContainsSubstring("manual optimization"));
  CHECK_THAT(refused(std::make_shared<Repeats>(), [](auto&) {}), ContainsSubstring("LBFGS evaluates"));
  CHECK_THAT(refused(hungry(8), [](auto& options) { options.capture = true; }), ContainsSubstring("capture"));
  CHECK_THAT(refused(hungry(8), [](auto& options) { options.sync_batchnorm = true; }),
             ContainsSubstring("sync_batchnorm"));
  CHECK_THAT(message_of<Error>([] { fit(std::make_shared<NoLoss>()); }), ContainsSubstring("it returned none"));
}

TEST_CASE("auto_micro_batch: the pass that recomputes batch norms is computed in micro-batches too") {
  const auto module = hungry(3, 0, /*norm=*/true);
  fit(module, true, [](TrainerOptions& options, TrainerComponents& components) {
    options.limit_val_batches = 0;
    components.add(std::make_shared<WeightAveraging>(WeightAveraging::Options{
        .kind = AveragingKind::swa, .start = *Interval::parse("0st"), .every = *Interval::parse("1st")}));
  });
  // Five batches of eight samples, in parts of two.
  CHECK(std::vector<int64_t>(module->sizes.end() - 20, module->sizes.end()) == std::vector<int64_t>(20, 2));
  CHECK(module->norm->num_batches_tracked.item<int64_t>() == 20);
}

}  // namespace auto_micro_batch_test
