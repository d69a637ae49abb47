// capture with the device's own recorder: what it records, when it records again, and what is left when a recording
// is broken off.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tanh.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <type_traits>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/core/device/memory_stats.h"
#include "fulgur/models/gpt.h"
#include "fulgur/nn/checkpoint.h"
#include "fulgur/optim/cyclic_schedules.h"
#include "support/gpu.h"
#include "trainer/capture/captured_fit.h"

namespace captured_gpu_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

// A captured step launches the kernels of an eager one, with the same random numbers.
template <class M>
Outcome<M> check_equal(const TrainerOptions& options,
                       const std::function<void(TrainerComponents&)>& change = by_device) {
  const auto plain = fit<M>(options, false, change);
  auto captured = fit<M>(options, true, change);
  for (const auto& [name, value] : plain.weights) {
    CAPTURE(name);
    CHECK(at::allclose(value, captured.weights.at(name), 1e-5, 1e-6));
  }
  check_same_logs(plain, captured, "train_loss");
  return captured;
}

struct Freezing : Captured {
  void on_train_epoch_start() override { first->weight.set_requires_grad(run().progress().epoch != 1); }
};

// Its state is made when it gets its first gradient, after steps were captured.
struct Thawing : Captured {
  void on_train_epoch_start() override { second->weight.set_requires_grad(run().progress().epoch > 0); }
};

// A parameter that batches of another size leave without a gradient: their eager step makes the optimizer's lists, with
// their rates, again.
struct UsedByWholeBatches : Captured {
  Tensor extra = register_parameter("extra", at::full({2}, 0.5));
  StepOutput training_step(const Batch& batch, int64_t) override {
    Tensor y = forward(batch[0]);
    if (batch[0].size(0) == 4) y = y + extra;
    const Tensor loss = at::mse_loss(y, batch[1]);
    log("train_loss", loss);
    return loss;
  }
};

// In the middle of an epoch.
struct Switching : Captured {
  int on_train_batch_start(const Batch&, int64_t batch_idx) override {
    if (run().progress().epoch == 1 && batch_idx == 5) drop->eval();
    return 0;
  }
};

struct FailsInForward : Captured {
  StepOutput training_step(const Batch& batch, int64_t index) override {
    // The step that is recorded; it waits for the device, which no capture can.
    if (run().progress().global_step == 3 && !std::exchange(failed, true)) batch[0].sum().item<float>();
    return Captured::training_step(batch, index);
  }
  bool failed = false;
};

class FailingAdam final : public Adam {
 public:
  using Adam::Adam;

 protected:
  void update(Bucket& bucket, const std::optional<Tensor>& found_inf) override {
    // After three steps as they are comes the recording.
    if (++calls_ == 4) bucket.params.front().sum().item<float>();
    Adam::update(bucket, found_inf);
  }

 private:
  int calls_ = 0;
};

struct FailsInOptimizer : Captured {
  OptimizerPlan configure_optimizers() override {
    Adam::Options options;
    options.lr = 0.03125;
    return {std::make_shared<FailingAdam>(options)};
  }
};

struct NotANumberOnce : Captured {
  StepOutput training_step(const Batch& batch, int64_t index) override {
    StepOutput output = Captured::training_step(batch, index);
    output.loss = output.loss * factor_.to(output.loss.device());
    return output;
  }
  // Written to by the callback below, read by each launch of the recorded step.
  Tensor factor_ = register_buffer("factor", at::full({}, 1.0));
};

struct MakesNotANumber : Callback {
  void on_train_batch_start(RunContext& run, const Batch&, int64_t batch_idx) override {
    const bool now = run.progress().epoch == 1 && batch_idx == 7 && !std::exchange(done, true);
    dynamic_cast<NotANumberOnce&>(run.module()).factor_.fill_(now ? std::numeric_limits<double>::quiet_NaN() : 1.0);
  }
  bool done = false;
};

// Little but activations: 16 MiB of each of sixteen operations, far more than what the allocator rounds up to.
struct Activations : BoringModule {
  Activations() : scale(register_parameter("scale", at::full({8}, 0.5))) {}
  StepOutput training_step(const Batch& batch, int64_t) override {
    Tensor x = batch[0];
    for (int64_t i = 0; i < 8; ++i) x = at::tanh(x * scale[i]);
    const Tensor loss = x.square().mean();
    log("train_loss", loss);
    return loss;
  }
  OptimizerPlan configure_optimizers() override { return std::make_shared<AdamW>(AdamW::Options{}); }
  Tensor scale;
};

// The rate goes up and down, the momentum the other way.
template <class Optimizer>
struct Cyclic : BoringModule {
  Cyclic() : BoringModule(0.25) {}
  OptimizerPlan configure_optimizers() override {
    typename Optimizer::Options options;
    options.weight_decay = 0.125;
    if constexpr (std::is_same_v<Optimizer, SGD>) options.momentum = 0.9;
    if constexpr (std::is_same_v<Optimizer, SGD>) options.nesterov = nesterov;
    return {std::make_shared<Optimizer>(options),
            SchedulerConfig{.scheduler = std::make_shared<OneCycleLR>(OneCycleLR::Options{.max_lr = 0.03125}),
                            .interval = ScheduleInterval::step}};
  }
  static inline bool nesterov = false;
};

template <class Optimizer>
struct CyclicThawing : Cyclic<Optimizer> {
  void on_train_epoch_start() override { this->second->weight.set_requires_grad(this->run().progress().epoch > 0); }
};

// The same numbers with dropout inside a checkpointed call as without a checkpoint.
template <bool kCheckpointed>
struct WithDropout : Captured {
  StepOutput training_step(const Batch& batch, int64_t) override {
    const auto block = [this](const Tensor& x) { return drop(second(drop(first(x).relu()))); };
    const Tensor y = kCheckpointed ? nn::checkpoint(block, batch[0]) : block(batch[0]);
    // Draws after the block: its numbers are others than those of the recomputation.
    const Tensor loss = at::mse_loss(y + drop(batch[1]), batch[1]);
    log("train_loss", loss);
    return loss;
  }
};

std::map<std::string, Tensor> weights_of_gpt(const std::string& checkpointing, bool captures, std::string& told) {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.accelerator = "cuda";
  options.capture = captures;
  options.max_epochs = 2;
  options.log_every_n_steps = 4;
  at::manual_seed(7);
  const Tensor tokens = at::randint(16, {32, 9}, at::kLong);
  TensorDataModule::Sets sets;
  sets.train = Batch{{"x", tokens.narrow(1, 0, 8).clone()}, {"y", tokens.narrow(1, 1, 8).clone()}};
  const std::shared_ptr<DataModule> data = std::make_shared<TensorDataModule>(
      std::move(sets), TensorDataOptions{.batch_size = 4, .eval_batch_size = {}, .shuffle = false});
  GPT::Options shape;
  shape.vocab_size = 16;
  shape.block_size = 8;
  shape.n_layer = 3;
  shape.n_head = 2;
  shape.n_embd = 16;
  shape.dropout = 0.25;
  shape.activation_checkpointing = checkpointing;
  const auto gpt = std::make_shared<GPT>(shape);
  TrainerComponents components;
  components.seed = 5;
  components.optimizer = Spec<Optimizer>("AdamW");
  log::reset_warnings();
  log::set_sink(
      [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; }, &told);
  Trainer(options, components).fit(gpt, data);
  log::set_sink({}, nullptr);
  return weights(*gpt);
}

// Reads a value in each step, which a recording forbids.
struct ReadingStep : BoringModule {
  StepOutput training_step(const Batch& batch, int64_t index) override {
    StepOutput output = BoringModule::training_step(batch, index);
    last = output.loss.item<double>();
    return output;
  }
  OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 0.05}); }
  double last = 0;
};

int64_t allocated_after_fit(bool captures) {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.accelerator = "cuda";
  options.capture = captures;
  Trainer(options).fit(std::make_shared<ReadingStep>(), regression_data(40, 0));
  return device_memory(at::Device(at::kCUDA, 0))->allocated;
}

int64_t reserved_by_fit(bool captures) {
  // Three steps before the recording, and one after it.
  constexpr int64_t kSamples = 8192;
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.accelerator = "cuda";
  options.capture = captures;
  options.log_every_n_steps = 4;
  TensorDataModule::Sets sets;
  sets.train = Batch{{"x", at::full({5 * kSamples, 512}, 0.25)}, {"y", at::full({5 * kSamples, 2}, 0.0)}};
  const std::shared_ptr<DataModule> data = std::make_shared<TensorDataModule>(
      std::move(sets), TensorDataOptions{.batch_size = kSamples, .eval_batch_size = {}, .shuffle = false});
  // What an earlier fit left in the cache is another's.
  c10::getDeviceAllocator(at::kCUDA)->emptyCache();
  reset_peak_memory(at::Device(at::kCUDA, 0));
  Trainer(options).fit(std::make_shared<Activations>(), data);
  return device_memory(at::Device(at::kCUDA, 0))->peak_reserved;
}

}  // namespace

TEST_CASE("on a GPU, a recording that is broken off leaves no workspace of its stream allocated", "[gpu]") {
  require_gpus(1);
  const int64_t eager = allocated_after_fit(false);
  CHECK(allocated_after_fit(true) <= eager);
}

TEST_CASE("on a GPU, captured steps equal uncaptured ones, and dropout draws other numbers in each", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  for (const char* precision : {"32-true", "bf16-mixed", "16-mixed"}) {
    CAPTURE(precision);
    TrainerOptions options = three_epochs_on_cuda(folder);
    options.precision = Spec<Precision>(precision);
    const auto captured = check_equal<Captured>(options);
    CHECK(captured.report.captured_batches == 27);
  }
}

TEST_CASE(
    "on a GPU, a step is captured again when layers are frozen or freed, with rates and states as eager steps have "
    "them",
    "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  // Three epochs of ten whole batches and an odd one, with three steps before each recording.
  const auto frozen = check_equal<Freezing>(three_epochs_on_cuda(folder));
  CHECK(frozen.report.captured_batches == 21);
  CHECK_THAT(frozen.told, !ContainsSubstring("not captured"));
  const auto thawed = check_equal<Thawing>(three_epochs_on_cuda(folder));
  CHECK(thawed.report.captured_batches == 24);
}

TEST_CASE("on a GPU, captured steps follow a schedule that changes the momentum", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  const auto check = [&]<class M>(std::type_identity<M>, const char* precision = "32-true") {
    TrainerOptions options = three_epochs_on_cuda(folder);
    options.precision = Spec<Precision>(precision);
    const auto plain = fit<M>(options, false, by_device), captured = fit<M>(options, true, by_device);
    CHECK(captured.report.captured_batches > 0);
    CHECK_THAT(captured.told, !ContainsSubstring("not captured"));
    for (const auto& [name, value] : plain.weights) {
      CAPTURE(name, precision);
      CHECK(at::allclose(value, captured.weights.at(name), 1e-6, 1e-6));
    }
  };
  check(std::type_identity<Cyclic<AdamW>>{});
  check(std::type_identity<Cyclic<Adam>>{});
  check(std::type_identity<Cyclic<SGD>>{});
  Cyclic<SGD>::nesterov = true;
  check(std::type_identity<Cyclic<SGD>>{});
  // Steps that the device leaves out; parameters with different counts of steps.
  check(std::type_identity<Cyclic<AdamW>>{}, "16-mixed");
  check(std::type_identity<CyclicThawing<AdamW>>{});
}

TEST_CASE("on a GPU, a captured step with dropout inside a checkpointed call equals an eager one without checkpoint",
          "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  const auto plain = fit<WithDropout<false>>(three_epochs_on_cuda(folder), false, by_device);
  const auto eager = fit<WithDropout<true>>(three_epochs_on_cuda(folder), false, by_device);
  const auto captured = fit<WithDropout<true>>(three_epochs_on_cuda(folder), true, by_device);
  CHECK(captured.report.captured_batches == 27);
  for (const auto& [name, value] : plain.weights) {
    CAPTURE(name);
    CHECK(value.equal(eager.weights.at(name)));
    CHECK(at::allclose(value, captured.weights.at(name), 1e-5, 1e-6));
  }
}

TEST_CASE("on a GPU, a GPT with activation checkpointing and dropout is captured", "[gpu]") {
  require_gpus(1);
  std::string told, ignored;
  // Both captured: the keys' biases have no gradient but rounding, of which Adam makes whole steps.
  const auto plain = weights_of_gpt("none", true, ignored);
  const auto checkpointed = weights_of_gpt("all", true, told);
  CHECK_THAT(told, ContainsSubstring("capture: 13 of "));
  for (const auto& [name, value] : plain) {
    CAPTURE(name);
    CHECK(value.equal(checkpointed.at(name)));
  }
}

TEST_CASE("on a GPU, a layer that changes its mode inside an epoch is seen at once", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  const auto switched = check_equal<Switching>(three_epochs_on_cuda(folder));
  CHECK(switched.report.captured_batches > 0);
}

TEST_CASE("on a GPU, a captured step follows the schedule after an eager step with other parameters", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  const auto captured = check_equal<UsedByWholeBatches>(three_epochs_on_cuda(folder));
  CHECK(captured.report.captured_batches > 0);
}

TEST_CASE("on a GPU, a recording that is broken off leaves no trace: in this step, in later ones, in the next fit",
          "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  const bool in_forward = GENERATE(true, false);
  const std::string told = in_forward ? check_equal<FailsInForward>(three_epochs_on_cuda(folder)).told
                                      : check_equal<FailsInOptimizer>(three_epochs_on_cuda(folder)).told;
  CHECK_THAT(told, ContainsSubstring("the steps are not captured: at aten::"));
  // Pinned memory is available as before, and the next fit captures, with dropout.
  CHECK(at::empty({1 << 20}, at::TensorOptions().pinned_memory(true)).is_pinned());
  CHECK(check_equal<Captured>(three_epochs_on_cuda(folder)).report.captured_batches == 27);
}

TEST_CASE("on a GPU, a rollback in a captured run gives the weights and rates of an eager one", "[gpu]") {
  require_gpus(1);
  const auto run = [](bool captures) {
    const TemporaryFolder folder;
    TrainerOptions options = three_epochs_on_cuda(folder);
    options.on_nonfinite = OnNonFinite::rollback;
    return fit<NotANumberOnce>(options, captures, [](TrainerComponents& components) {
      by_device(components);
      ModelCheckpoint::Options each_epoch;
      components.add(std::make_shared<ModelCheckpoint>(each_epoch));
      components.add(std::make_shared<MakesNotANumber>());
    });
  };
  const auto plain = run(false), captured = run(true);
  CHECK_THAT(captured.told, ContainsSubstring("training continues"));
  CHECK(captured.report.captured_batches > 0);
  for (const auto& [name, value] : plain.weights) {
    CAPTURE(name);
    CHECK(at::allclose(value, captured.weights.at(name), 1e-5, 1e-6));
  }
}

TEST_CASE("on a GPU, a captured run reserves little more memory than an eager one", "[gpu]") {
  require_gpus(1);
  const int64_t eager = reserved_by_fit(false);
  const int64_t captured = reserved_by_fit(true);
  CAPTURE(captured, eager);
  CHECK(captured > 0);
  CHECK(static_cast<double>(captured) <= 1.3 * static_cast<double>(eager));
}

}  // namespace captured_gpu_test
