// capture: host code of modules that a replay does not run: hooks and steps that change members, and tensors that the
// host fills.
#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/metrics/ranking.h"
#include "trainer/capture/captured_fit.h"

namespace captured_host_code_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

struct OnCpu : BoringModule {
  OnCpu() : BoringModule(0.25) { started = 0; }
  OptimizerPlan configure_optimizers() override { return adamw_with_step_lr(0.01, 4, 0.7); }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    ++started;
    return BoringModule::training_step(batch, batch_idx);
  }
  inline static int64_t started = 0;  // steps of the last module that ran on the host
};

template <class M>
Outcome<M> check_refused(const std::string& reason) {
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto plain = fit<M>(options, false, on_cpu);
  auto refused = fit<M>(options, true, on_cpu);
  CHECK_THAT(refused.report.not_captured.value_or("captured"), ContainsSubstring(reason));
  CHECK(same_weights(plain.weights, refused.weights));
  check_same_logs(plain, refused, "train_loss");
  return refused;
}

// A layer that the host fills.
struct Head : torch::nn::Module {
  Head() { scale = register_buffer("scale", at::ones({1})); }
  [[gnu::noinline]] Tensor forward(const Tensor& x) {
    *scale.mutable_data_ptr<float>() *= 0.999F;
    return x * scale;
  }
  static constexpr const char* kName = "head";
  Tensor scale;
};

// A tensor around a number of the host.
struct Wraps : torch::nn::Module {
  [[gnu::noinline]] Tensor forward(const Tensor& x) {
    factor *= 0.999F;
    return x * at::from_blob(&factor, {1}, at::kFloat);
  }
  static constexpr const char* kName = "wraps";
  float factor = 1;
};

// A module that ends in such a layer.
template <class Layer>
struct EndsIn : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor loss = at::mse_loss(layer->forward(forward(batch[0])), batch[1]);
    log("train_loss", loss);
    return loss;
  }
  std::shared_ptr<Layer> layer = register_module(Layer::kName, std::make_shared<Layer>());
};

// Logs a metric late, which breaks a recording off after the host has written a buffer, numbers were drawn and a text
// was logged.
struct LogsLate : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    *counted.mutable_data_ptr<float>() += 1;
    StepOutput output = OnCpu::training_step(batch, batch_idx);
    output.loss = output.loss * counted.sum();
    if (batch_idx < 3) return output;
    log_media(TextRecord{"note", "late"});
    print("a late line");
    auroc.update(batch[1], batch[1].argmax(1));
    log("auroc", auroc);
    return output;
  }
  metrics::Auroc auroc{{.num_classes = 2}};
  Tensor counted = register_buffer("counted", at::zeros({1}));
};

TEST_CASE("a buffer that the host writes is named, with its module; the run has the bits of an eager one") {
  const auto refused = check_refused<EndsIn<Head>>("it writes the memory of buffer 'head.scale' of shape [1] itself");
  CHECK(refused.report.captured_batches == 0);
  CHECK_THAT(refused.report.not_captured.value_or(""),
             ContainsSubstring("host code in training_step, module 'head' (Head)") && !ContainsSubstring("aten::"));
}

TEST_CASE("a tensor around memory of the host is described by its shape and module") {
  const auto refused = check_refused<EndsIn<Wraps>>("a tensor of shape [1]");
  CHECK_THAT(refused.report.not_captured.value_or(""),
             ContainsSubstring("host code in training_step, module 'wraps' (Wraps)") && !ContainsSubstring("aten::"));
}

// Prints from the first recorded step on.
struct PrintsLate : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = OnCpu::training_step(batch, batch_idx);
    if (run().progress().global_step >= 3) print("a late line");
    return output;
  }
};

TEST_CASE("a step that prints for the first time while it is recorded runs once, and is not captured") {
  const auto refused = check_refused<PrintsLate>("the step prints");
  CHECK(refused.report.captured_batches == 0);
  CHECK(OnCpu::started == 33);
  size_t lines = 0;
  for (size_t at = 0; (at = refused.told.find("a late line", at)) != std::string::npos; ++at) ++lines;
  CHECK(lines == 30);
}

TEST_CASE("a step whose recording is broken off is repeated from the state of before, with buffers of the host") {
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto plain = fit<LogsLate>(options, false, on_cpu), refused = fit<LogsLate>(options, true, on_cpu);
  INFO(refused.told);
  CHECK(refused.report.captured_batches == 0);
  CHECK(refused.report.not_captured);
  CHECK_THAT(refused.report.not_captured.value_or(""), ContainsSubstring("'auroc' keeps all samples"));
  CHECK(plain.weights.at("counted").item<float>() == 33);
  CHECK(plain.logger->media.size() == 24);
  CHECK(refused.logger->media.size() == 24);
  size_t lines = 0;
  for (size_t at = 0; (at = refused.told.find("a late line", at)) != std::string::npos; ++at) ++lines;
  CHECK(lines == 24);
  CHECK(same_weights(plain.weights, refused.weights));
}

// A schedule of the host, by epochs.
struct Anneals : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = OnCpu::training_step(batch, batch_idx);
    output.loss = output.loss * scale;
    return output;
  }
  void on_train_epoch_start() override { scale = 1.0 / static_cast<double>(1 + run().progress().epoch); }
  double scale = 1;
};

// The same at the end of an epoch, by another operation.
struct Switches : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = OnCpu::training_step(batch, batch_idx);
    if (squares) output.loss = output.loss.square();
    return output;
  }
  void on_train_epoch_end() override { squares = true; }
  bool squares = false;
};

// In the middle of an epoch, at step 16.
struct ChangesBetween : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = OnCpu::training_step(batch, batch_idx);
    if (halves) output.loss = output.loss * 0.5;
    return output;
  }
  int on_train_batch_start(const Batch&, int64_t) override {
    halves = run().progress().global_step >= 16;
    last = run().progress().global_step;
    return 0;
  }
  bool halves = false;
  inline static int64_t last = 0;
};

// A member on which no step depends.
struct Counts : OnCpu {
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override { ++count; }
  int64_t count = 0;
};

struct Gathers : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    StepOutput output = OnCpu::training_step(batch, batch_idx);
    losses.push_back(output.loss.detach());
    return output;
  }
  void on_train_epoch_end() override {
    double sum = 0;
    for (const Tensor& loss : losses) sum += loss.item<double>();
    log("gathered", sum);
    losses.clear();
  }
  std::vector<Tensor> losses;
};

struct CountsSteps : OnCpu {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    ++steps;
    return OnCpu::training_step(batch, batch_idx);
  }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
    log("gathered", static_cast<double>(steps));
  }
  int64_t steps = 0;
};

template <class M>
void check_recorded_again() {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  for (const int64_t samples : {42, 44}) {  // the last batch of an epoch is smaller, or not
    const auto plain = fit<M>(options, false, on_cpu, {}, samples);
    const auto captured = fit<M>(options, true, on_cpu, {}, samples);
    CAPTURE(samples, captured.told);
    CHECK_FALSE(captured.report.not_captured);
    CHECK(captured.report.captured_batches >= 16);
    CHECK(same_weights(plain.weights, captured.weights));
    check_same_logs(plain, captured, "train_loss");
    CHECK_THAT(captured.told, ContainsSubstring("it is captured again"));
  }
}

TEST_CASE("members that hooks between epochs change are found at the epoch's first step, which is captured again") {
  check_recorded_again<Anneals>();
  check_recorded_again<Switches>();
}

TEST_CASE("a member that a hook changes in the middle of an epoch is found at the next step") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(fit<ChangesBetween>(three_epochs(folder), true, on_cpu),
                    ContainsSubstring("[trainer.capture]") && ContainsSubstring("aten::mul"));
  log::set_sink({}, nullptr);
  CHECK(ChangesBetween::last == 16);
}

TEST_CASE("a member on which nothing depends costs few comparisons") {
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  const auto plain = fit<Counts>(options, false, on_cpu, {}, 800);
  const auto captured = fit<Counts>(options, true, on_cpu, {}, 800);
  CHECK_FALSE(captured.report.not_captured);
  CHECK(captured.report.captured_batches == 597);
  CHECK(captured.module->count == 600);
  // The first three, the two recordings, those of steps 10 and 100 and of two epochs, and by the counter's changes.
  CHECK(OnCpu::started < 30);
  CHECK(same_weights(plain.weights, captured.weights));
}

TEST_CASE("a step that gathers values in members for a hook is not captured, and the hook gets them all") {
  for (const auto& [refused, hook] :
       {std::pair(check_refused<Gathers>("training_step changes members of the module").report, "on_train_epoch_end"),
        std::pair(check_refused<CountsSteps>("training_step changes members").report, "on_train_batch_end")}) {
    CHECK(refused.captured_batches == 0);
    CHECK_THAT(refused.not_captured.value_or(""), ContainsSubstring(hook));
  }
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto plain = fit<Gathers>(options, false, on_cpu), refused = fit<Gathers>(options, true, on_cpu);
  CHECK(plain.logger->values("gathered") == refused.logger->values("gathered"));
  const auto counted = fit<CountsSteps>(options, false, on_cpu), same = fit<CountsSteps>(options, true, on_cpu);
  CHECK(counted.module->steps == 33);
  CHECK(same.module->steps == 33);
}

}  // namespace captured_host_code_test
