// capture: steps on the CPU, recorded as programs.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sin.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>

#include "fulgur/callbacks/weight_averaging.h"
#include "fulgur/optim/adam.h"
#include "fulgur/optim/cyclic_schedules.h"
#include "fulgur/optim/sgd.h"
#include "trainer/capture/captured_fit.h"

namespace captured_cpu_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

// Rates that float32 does not have: on the CPU they are doubles.
struct OnCpu : BoringModule {
  OnCpu() : BoringModule(0.25) {}
  OptimizerPlan configure_optimizers() override { return adamw_with_step_lr(0.01, 4, 0.7); }
};

TEST_CASE(
    "captured steps on the CPU have the bits of eager ones: weights, logged values, dropout, clipping, schedules") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.gradient_clip_val = 0.5;
  options.log_grad_norm = true;
  const auto plain = fit<OnCpu>(options, false, on_cpu), captured = fit<OnCpu>(options, true, on_cpu);
  INFO(captured.told);
  CHECK_FALSE(captured.report.not_captured);
  // 11 batches an epoch, the last of 2 samples; 3 steps are made first.
  CHECK(captured.report.captured_batches == 27);
  CHECK(same_weights(plain.weights, captured.weights));
  check_same_logs(plain, captured, "train_loss");
  check_same_logs(plain, captured, "grad_norm");
}

// Batches as views of other memory: with gaps; with other strides in every second batch.
struct WithViews : OnCpu {
  explicit WithViews(bool gaps) : has_gaps(gaps) {}
  Batch on_after_batch_transfer(Batch batch, int64_t) override {
    Batch views;
    for (const auto& [name, value] : batch) {
      const Tensor x = std::get<Tensor>(value);
      if (has_gaps && x.dim() == 2)
        views.add(name, at::cat({x, x}, 1).slice(1, 0, x.size(1)));
      else if (x.dim() == 2 && ++count % 2 == 0)
        views.add(name, x.t().contiguous().t());
      else
        views.add(name, x);
    }
    return views;
  }
  bool has_gaps;
  int count = 0;
};

template <bool gaps>
struct Views : WithViews {
  Views() : WithViews(gaps) {}
};

TEST_CASE("batches that are views have the bits of eager steps, or are refused if a copy had other strides") {
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto plain = fit<Views<false>>(options, false, on_cpu), captured = fit<Views<false>>(options, true, on_cpu);
  INFO(captured.told);
  CHECK_FALSE(captured.report.not_captured);
  CHECK(captured.report.captured_batches > 10);
  CHECK(same_weights(plain.weights, captured.weights));
  check_same_logs(plain, captured, "train_loss");
  const auto gaps = fit<Views<true>>(options, false, on_cpu), refused = fit<Views<true>>(options, true, on_cpu);
  REQUIRE(refused.report.not_captured);
  CHECK_THAT(*refused.report.not_captured, ContainsSubstring("have gaps or are repeated in memory"));
  CHECK(same_weights(gaps.weights, refused.weights));
  check_same_logs(gaps, refused, "train_loss");
}

// Losses that are kept until the end of the epoch.
struct KeepsLosses : OnCpu {
  void on_train_batch_end(const StepOutput& output, const Batch&, int64_t) override { losses.push_back(output.loss); }
  void on_train_epoch_end() override { log("mean_loss", at::stack(losses).mean()); }
  std::vector<Tensor> losses;
};

struct KeepsOutputs : Callback {
  void on_train_batch_end(RunContext&, const StepOutput& output, const Batch&, int64_t) override {
    losses.push_back(output.loss);
    values.push_back(output.loss.item<double>());
  }
  std::vector<Tensor> losses;
  std::vector<double> values;
};

TEST_CASE("losses that hooks keep have the values of their steps, captured or not") {
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto plain = fit<KeepsLosses>(options, false, on_cpu), captured = fit<KeepsLosses>(options, true, on_cpu);
  INFO(captured.told);
  CHECK(captured.report.captured_batches > 20);
  check_same_logs(plain, captured, "mean_loss");
  const auto kept = std::make_shared<KeepsOutputs>();
  const auto other = fit<OnCpu>(options, true, [&](TrainerComponents& components) {
    on_cpu(components);
    components.add(kept);
  });
  CHECK(other.report.captured_batches > 20);
  REQUIRE(kept->losses.size() == 33);
  for (size_t i = 0; i < kept->losses.size(); ++i) CHECK(kept->losses[i].item<double>() == kept->values[i]);
}

// Prints in each step.
struct Prints : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    print("a line of the step");
    return OnCpu::training_step(batch, batch_idx);
  }
};

TEST_CASE("a step that prints is not captured, so each of its lines is printed") {
  const TemporaryFolder folder;
  const auto result = fit<Prints>(three_epochs(folder), true, on_cpu);
  REQUIRE(result.report.not_captured);
  CHECK_THAT(*result.report.not_captured, ContainsSubstring("the step prints"));
  size_t lines = 0;
  for (size_t at = 0; (at = result.told.find("a line of the step", at)) != std::string::npos; ++at) ++lines;
  CHECK(lines == 33);
}

TEST_CASE("accumulation windows, captured on the CPU, have the bits of eager ones") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.accumulate_grad_batches = 3;
  const auto plain = fit<OnCpu>(options, false, on_cpu, {}, 100), captured = fit<OnCpu>(options, true, on_cpu, {}, 100);
  INFO(captured.told);
  CHECK_FALSE(captured.report.not_captured);
  CHECK(captured.report.captured_batches > 30);
  CHECK(same_weights(plain.weights, captured.weights));
  check_same_logs(plain, captured, "train_loss");
}

TEST_CASE("a captured run on the CPU resumes to the same weights") {
  const TemporaryFolder whole_folder, folder;
  const auto whole = fit<OnCpu>(three_epochs(whole_folder), true, on_cpu);
  TrainerOptions options = three_epochs(folder);
  options.max_steps = 14;
  fit<OnCpu>(options, true, on_cpu);
  options.max_steps = -1;
  const auto rest = fit<OnCpu>(options, true, on_cpu, "last");
  CHECK(same_weights(whole.weights, rest.weights));
  CHECK(rest.report.captured_batches > 0);
}

struct ReadsLoss : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = OnCpu::training_step(batch, batch_idx);
    if (output.loss.item<double>() > 1e6) output.loss = output.loss * 0.5;
    return output;
  }
};

TEST_CASE(
    "a step that reads a value is not captured: the operation and the place are named, the run is the eager one") {
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto plain = fit<ReadsLoss>(options, false, on_cpu), refused = fit<ReadsLoss>(options, true, on_cpu);
  CHECK(refused.report.captured_batches == 0);
  CHECK_THAT(
      refused.report.not_captured.value_or(""),
      ContainsSubstring("aten::_local_scalar_dense in training_step") && ContainsSubstring("values on the host"));
  CHECK_THAT(refused.told, ContainsSubstring("the steps are not captured"));
  CHECK(same_weights(plain.weights, refused.weights));
}

// Reads a value in one of its modules.
struct Head : torch::nn::Module {
  [[gnu::noinline]] Tensor forward(const Tensor& x) { return x.sum().item<double>() > 1e6 ? x * 0.5 : x; }
};

struct HasHead : OnCpu {
  HasHead() { head = register_module("head", std::make_shared<Head>()); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return at::mse_loss(head->forward(forward(batch[0])), batch[1]);
  }
  std::shared_ptr<Head> head;
};

TEST_CASE("a refusal names the module whose function called the operation") {
  const TemporaryFolder folder;
  const auto refused = fit<HasHead>(three_epochs(folder), true, on_cpu);
  CHECK_THAT(refused.report.not_captured.value_or(""),
             ContainsSubstring("aten::_local_scalar_dense in training_step, module 'head' (Head): it reads"));
}

// Sequences of several lengths: the mean over the samples of a batch.
struct Lengths : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t) override {
    ++calls;
    const Tensor loss = forward(batch[0]).mean(at::IntArrayRef({0, 1})).square().sum();
    log("train_loss", loss, {.on_epoch = true});
    return loss;
  }
  int64_t calls = 0;
};

// Yields batches of shape (2, length, 4), whose lengths come again in another order.
struct LengthStream : IterableDataset {
  explicit LengthStream(int64_t shapes) : shapes_(shapes) {}
  void reset(const SampleContext& context) override { at_ = 0, epoch_ = context.epoch; }
  std::optional<Batch> next(int64_t, const SampleContext&) override {
    if (at_ == 40) return std::nullopt;
    const int64_t length = 1 + (at_++ * 7 + epoch_) % shapes_;
    const Tensor x = at::arange(2 * length * 4, at::kFloat).reshape({2, length, 4});
    return Batch{{"x", at::sin(x + static_cast<double>(at_))}};
  }
  StateTree state() const override { return StateTree::map({{"at", at_}}); }
  void load_state(const StateTree& state) override { at_ = state.at("at").as_int(); }
  int64_t shapes_, at_ = 0, epoch_ = 0;
};

TEST_CASE("on the CPU each shape of batches has its recording, up to capture_shapes") {
  const int64_t shapes = GENERATE(3, 8, 12), most = GENERATE(1, 8);
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.max_epochs = 2;
  options.capture_shapes = most;
  options.accumulate_grad_batches = GENERATE(1, 2);
  const auto run = [&](bool captures) {
    Outcome<Lengths> outcome;
    at::manual_seed(11);
    outcome.module = std::make_shared<Lengths>();
    TrainerComponents components;
    components.seed = 5;
    components.loggers = {outcome.logger};
    options.capture = captures;
    log::reset_warnings();
    log::set_sink(
        [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; },
        &outcome.told);
    DataSource data;
    data.train = {std::make_shared<IterableLoader>(std::make_shared<LengthStream>(shapes),
                                                   IterableLoaderOptions{.batch_size = 2})};
    outcome.report = Trainer(options, components).fit(outcome.module, data);
    log::set_sink({}, nullptr);
    outcome.weights = weights(*outcome.module);
    return outcome;
  };
  const auto plain = run(false), captured = run(true);
  CAPTURE(shapes, most, options.accumulate_grad_batches, captured.told, captured.module->calls);
  CHECK(same_weights(plain.weights, captured.weights));
  CHECK(plain.logger->values("train_loss_step") == captured.logger->values("train_loss_step"));
  CHECK(plain.logger->values("train_loss_epoch") == captured.logger->values("train_loss_epoch"));
  CHECK((captured.told.find("more than 8 shapes") != std::string::npos) == (shapes > most && most > 1));
  if (most == 1) return;
  // Each shape runs eagerly at first.
  CHECK(captured.report.captured_batches > 10);
  CHECK_FALSE(captured.report.not_captured);
}

template <class O>
struct CyclesMomentum : OnCpu {
  OptimizerPlan configure_optimizers() override {
    typename O::Options options;
    options.lr = 0.01;
    if constexpr (std::is_same_v<O, SGD>) options.momentum = 0.9;
    return {std::make_shared<O>(options),
            SchedulerConfig{.scheduler = std::make_shared<OneCycleLR>(OneCycleLR::Options{.max_lr = 0.1}),
                            .interval = ScheduleInterval::step}};
  }
};

template <class O>
void check_cycled_momentum() {
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto plain = fit<CyclesMomentum<O>>(options, false, on_cpu),
             captured = fit<CyclesMomentum<O>>(options, true, on_cpu);
  CHECK(captured.report.captured_batches > 3);
  CHECK_FALSE(captured.report.not_captured);
  CHECK(same_weights(plain.weights, captured.weights));
}

TEST_CASE("on the CPU captured steps follow a schedule of the momentum, with the bits of eager ones") {
  check_cycled_momentum<SGD>();
  check_cycled_momentum<Adam>();
  check_cycled_momentum<AdamW>();
}

// A number of the host that changes in each step.
struct CountsOnHost : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = OnCpu::training_step(batch, batch_idx);
    output.loss = output.loss * (1 + 1e-3 * static_cast<double>(run().progress().global_step));
    return output;
  }
};

TEST_CASE("a step with a number that the host changes is found by the second recording, and its run is the eager one") {
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto plain = fit<CountsOnHost>(options, false, on_cpu), refused = fit<CountsOnHost>(options, true, on_cpu);
  CHECK(refused.report.captured_batches == 1);
  CHECK_THAT(refused.report.not_captured.value_or(""), ContainsSubstring("a number of the host has changed"));
  CHECK(same_weights(plain.weights, refused.weights));
}

// One that changes rarely.
struct ChangesRarely : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = OnCpu::training_step(batch, batch_idx);
    if (run().progress().epoch > 0) output.loss = output.loss * 0.5;
    return output;
  }
};

TEST_CASE("host code that depends on the epoch is found at its first step, which is captured again") {
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto plain = fit<ChangesRarely>(options, false, on_cpu), captured = fit<ChangesRarely>(options, true, on_cpu);
  INFO(captured.told);
  CHECK_FALSE(captured.report.not_captured);
  CHECK(captured.report.captured_batches > 20);
  CHECK(same_weights(plain.weights, captured.weights));
  check_same_logs(plain, captured, "train_loss");
  CHECK_THAT(captured.told, ContainsSubstring("it is captured again"));
}

TEST_CASE("if the length of epochs is not known, host code that depends on the epoch ends the run") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.capture = true;
  DataSource data;
  data.train = {regression_stream(42)};
  CHECK_THROWS_WITH(Trainer(options).fit(std::make_shared<ChangesRarely>(), data),
                    ContainsSubstring("[trainer.capture]") && ContainsSubstring("aten::mul"));
}

// One batch is infinite.
struct Breaks : OnCpu {
  int on_train_batch_start(const Batch& batch, int64_t batch_idx) override {
    if (run().progress().global_step == 20) Tensor(batch[0]).fill_(std::numeric_limits<float>::infinity());
    return OnCpu::on_train_batch_start(batch, batch_idx);
  }
};

TEST_CASE("a loss that is not finite is found in captured steps on the CPU, and skipped steps leave no trace") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.on_nonfinite = OnNonFinite::raise;
  CHECK_THROWS_WITH(fit<Breaks>(options, true, on_cpu), ContainsSubstring("not finite"));
  options.on_nonfinite = OnNonFinite::skip;
  const auto plain = fit<Breaks>(options, false, on_cpu), captured = fit<Breaks>(options, true, on_cpu);
  INFO(captured.told);
  CHECK(captured.report.captured_batches == 27);
  CHECK(same_weights(plain.weights, captured.weights));
}

TEST_CASE("on the CPU, policies that would act at another batch are refused") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.on_nonfinite = GENERATE(OnNonFinite::stop, OnNonFinite::rollback);
  const auto refused = fit<OnCpu>(options, true, on_cpu);
  CHECK(refused.report.captured_batches == 0);
  CHECK_THAT(refused.report.not_captured.value_or(""), ContainsSubstring("on_nonfinite is "));
}

TEST_CASE("on the CPU, weight averaging counts the skipped steps of captured runs") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.on_nonfinite = OnNonFinite::skip;
  const auto averages = [](TrainerComponents& components) {
    on_cpu(components);
    components.add(std::make_shared<WeightAveraging>(WeightAveraging::Options{.decay = 0.5}));
  };
  const auto plain = fit<Breaks>(options, false, averages), captured = fit<Breaks>(options, true, averages);
  INFO(captured.told);
  CHECK(captured.report.captured_batches == 27);
  CHECK(same_weights(plain.weights, captured.weights));
}

}  // namespace captured_cpu_test
