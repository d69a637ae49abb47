// capture: models of ours on the CPU, in several precisions, and programs of TorchScript.
#include <ATen/ops/arange.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/api/module.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/device/recordable_hooks.h"
#include "fulgur/models/gpt.h"
#include "fulgur/models/mlp_classifier.h"
#include "fulgur/models/torch_modules.h"
#include "trainer/capture/captured_fit.h"

namespace captured_models_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

template <class Model>
struct Planned : Model {
  using Model::Model;
  OptimizerPlan configure_optimizers() override { return adamw_with_step_lr(0.01, 7, 0.7); }
};

struct Mlp : Planned<MlpClassifier> {
  Mlp() : Planned({.in_features = 12, .hidden = {16, 8}, .num_classes = 3, .dropout = 0.25}) {}
};

struct SmallGpt : Planned<GPT> {
  SmallGpt() : Planned({.vocab_size = 11, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 16, .dropout = 0.1}) {}
};

std::shared_ptr<DataModule> data_of(Batch train, Batch val) {
  TensorDataModule::Sets sets;
  sets.train = std::move(train);
  sets.val = std::move(val);
  const auto data =
      std::make_shared<TensorDataModule>(std::move(sets), TensorDataOptions{.batch_size = 4, .shuffle = true});
  fulgur::detail::ComponentAccess::find_overridden<DataModule>(*data);
  return data;
}

Batch samples_of(const Mlp*, int64_t count) {
  return Batch{{"x", at::randn({count, 12})}, {"y", at::randint(3, {count}, at::kLong)}};
}

Batch samples_of(const SmallGpt*, int64_t count) {
  const Tensor tokens = at::randint(11, {count, 9}, at::kLong);
  return Batch{{"x", tokens.slice(1, 0, 8).contiguous()}, {"y", tokens.slice(1, 1, 9).contiguous()}};
}

template <class Model>
void check_captured(const std::string& precision, int64_t accumulate) {
  CAPTURE(precision, accumulate);
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.precision = Spec<Precision>(precision);
  options.gradient_clip_val = 0.5;
  options.log_grad_norm = true;
  options.accumulate_grad_batches = accumulate;
  const auto run = [&](bool captures) {
    at::manual_seed(2);
    const Model* const none = nullptr;
    return fit<Model>(options, captures, on_cpu, {}, 0, data_of(samples_of(none, 80), samples_of(none, 12)));
  };
  const auto plain = run(false), captured = run(true);
  CAPTURE(captured.told);
  CHECK_FALSE(captured.report.not_captured);
  CHECK(captured.report.captured_batches > 50);
  CHECK(same_weights(plain.weights, captured.weights));
  for (const char* name : {"train_loss", "grad_norm", "val_loss"}) {
    CAPTURE(name);
    CHECK_FALSE(plain.logger->values(name).empty());
    CHECK(plain.logger->values(name) == captured.logger->values(name));
  }
}

}  // namespace

TEST_CASE("captured steps of an MLP and a GPT have the bits of eager ones in each precision of the CPU") {
  const std::string precision = GENERATE("32-true", "64-true", "bf16-mixed", "bf16-true");
  const int64_t accumulate = GENERATE(1, 2);
  check_captured<Mlp>(precision, accumulate);
  check_captured<SmallGpt>(precision, accumulate);
}

namespace {

// A program that assigns other tensors to its buffers in each forward.
std::string written_program(const TemporaryFolder& folder) {
  torch::jit::Module program("Net");
  program.register_parameter("weight", at::linspace(-1, 1, 8).view({4, 2}).requires_grad_(), /*is_buffer=*/false);
  program.register_buffer("count", at::zeros({}));
  program.register_buffer("mean", at::zeros({2}));
  program.define(
      "def forward(self, x):\n"
      "    y = x.matmul(self.weight)\n"
      "    self.count = self.count + 1\n"
      "    self.mean = self.mean * 0.9 + y.detach().mean(0) * 0.1\n"
      "    return y - self.mean\n");
  std::string path = (folder / "net.pt").string();
  program.save(path);
  return path;
}

struct Folder {
  TemporaryFolder folder;
};

struct Scripted : Folder, TorchScriptModule {
  Scripted() : TorchScriptModule({.path = written_program(folder), .task = {.loss = NamedLoss::mse_loss}}) {}
  OptimizerPlan configure_optimizers() override { return adamw_with_step_lr(0.01, 4, 0.7); }
};

}  // namespace

TEST_CASE("steps of a TorchScript program that assigns its buffers are captured, with the bits of eager ones") {
  const int64_t accumulate = GENERATE(1, 3);
  const TemporaryFolder folder;
  TrainerOptions options = three_epochs(folder);
  options.accumulate_grad_batches = accumulate;
  const auto plain = fit<Scripted>(options, false, on_cpu, {}, 100);
  const auto captured = fit<Scripted>(options, true, on_cpu, {}, 100);
  CAPTURE(captured.told);
  CHECK_FALSE(captured.report.not_captured);
  CHECK(captured.report.captured_batches > 50);
  CHECK(plain.weights.at("count").item<double>() == 75);
  CHECK(same_weights(plain.weights, captured.weights));
  check_same_logs(plain, captured, "train_loss");
}

namespace {

// Hooks inside a step, of operations only.
struct Hooked : BoringModule {
  OptimizerPlan configure_optimizers() override { return adamw_with_step_lr(0.01, 4, 0.7); }
  void on_before_backward(const Tensor& loss) override { seen.add_(loss.detach()); }
  void on_after_backward() override {
    for (const auto& [name, value] : unique_parameters(*this))
      if (value.grad().defined()) value.mutable_grad().mul_(0.5);
  }
  void on_before_optimizer_step(Optimizer&) override { log("first_norm", first->weight.grad().norm()); }
  Tensor seen = register_buffer("seen", at::zeros({}));
};
struct RecordableHooked : Hooked, RecordableHooks {};

}  // namespace

TEST_CASE("hooks inside a step are captured if the module says that they are RecordableHooks, else refused") {
  const TemporaryFolder folder;
  const TrainerOptions options = three_epochs(folder);
  const auto plain = fit<Hooked>(options, false, on_cpu), refused = fit<Hooked>(options, true, on_cpu);
  CHECK_THAT(refused.report.not_captured.value_or(""),
             ContainsSubstring("the module overrides on_before_backward") && ContainsSubstring("RecordableHooks"));
  const auto captured = fit<RecordableHooked>(options, true, on_cpu);
  CAPTURE(captured.told);
  CHECK_FALSE(captured.report.not_captured);
  CHECK(captured.report.captured_batches > 20);
  CHECK(same_weights(plain.weights, captured.weights));
  CHECK(same_weights(plain.weights, refused.weights));
  CHECK(plain.logger->values("train_loss") == captured.logger->values("train_loss"));
  CHECK(plain.logger->values("first_norm") == captured.logger->values("first_norm"));
}

}  // namespace captured_models_test
