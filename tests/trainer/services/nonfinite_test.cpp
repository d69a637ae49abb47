// on_nonfinite: what NaN and infinity do to a run, by policy.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include "trainer/boring.h"

#include <torch/nn/modules/batchnorm.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/text/log.h"
#include "support/gpu.h"

namespace nonfinite_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

enum class Fault { none, loss, gradient, metric, input, denormal, weight };

// Goes wrong in the batch `at` of the run.
struct Failing : SelfPlanned {
  Fault fault = Fault::none;
  int64_t at = 6, batches = 0;
  bool once = true;
  std::map<std::string, Tensor> before;
  bool now() const { return once ? batches == at : batches >= at; }
  StepOutput training_step(const Batch& b, int64_t i) override {
    ++batches;
    if (now()) {
      before = weights(*this);
      if (fault == Fault::loss) return at::mse_loss(forward(b[0]), b[1]) * kNan;
      if (fault == Fault::metric) log("odd", kNan);
      if (fault == Fault::denormal) return at::mse_loss(forward(b[0]), b[1]) * 1e-42;
    }
    return SelfPlanned::training_step(b, i);
  }
  Batch on_before_batch_transfer(Batch b, int64_t) override {
    if (fault == Fault::input && batches + 1 == at) b.set(0, b[0] * kNan);
    return b;
  }
  void on_after_backward() override {
    if (now() && fault == Fault::gradient) first->weight.mutable_grad().fill_(kInf);
  }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
    at::NoGradGuard no_grad;
    if (now() && fault == Fault::weight) first->weight.fill_(kNan);
  }
};

int64_t count_of(const std::string& text, std::string_view part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

struct Result {
  FitReport report;
  std::shared_ptr<Failing> module = std::make_shared<Failing>();
  std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
  std::string error, told;
};

Result fit(const TemporaryFolder& folder, Fault fault, const std::string& policy,
           const std::function<void(TrainerOptions&, Failing&)>& change = {}) {
  Result result;
  result.module->fault = fault;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.on_nonfinite = *enum_from<OnNonFinite>(policy);
  if (change) change(options, *result.module);
  TrainerComponents components;
  ModelCheckpoint::Options saving;
  saving.every_n_train_steps = 2;
  saving.save_top_k = -1;
  components.add(std::make_shared<ModelCheckpoint>(saving));
  components.loggers = {result.logger};
  log::reset_warnings();
  log::set_sink(
      [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; },
      &result.told);
  try {
    result.report = Trainer(options, components).fit(result.module, regression_data(40, 4), {});
  } catch (const NonFiniteError& error) {
    CHECK(error.code() == ExitCode::non_finite);
    result.error = error.what();
  }
  log::set_sink({}, nullptr);
  return result;
}

// Batch norm of its input, which is NaN in the batch `at`. What a forward makes of the running statistics is there
// before it is known that the step is skipped.
struct Normed : SelfPlanned {
  torch::nn::BatchNorm1d norm{nullptr};
  int64_t at = 13, window = 1, batches = 0;
  std::map<std::string, Tensor> before, after;  // the window of `at`
  Normed() { norm = register_module("norm", torch::nn::BatchNorm1d(4)); }
  StepOutput training_step(const Batch& b, int64_t) override { return at::mse_loss(forward(norm(b[0])), b[1]); }
  // Not in training_step, which captured steps do not run.
  Batch on_before_batch_transfer(Batch b, int64_t) override {
    if (++batches == at) b.set(0, b[0] * kNan);
    return b;
  }
  int on_train_batch_start(const Batch&, int64_t) override {
    if (batches == first_of_window()) before = statistics();
    return 0;
  }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
    if (batches == first_of_window() + window - 1) after = statistics();
  }
  int64_t first_of_window() const { return (at - 1) / window * window + 1; }
  std::map<std::string, Tensor> statistics() const {
    std::map<std::string, Tensor> all;
    for (const auto& item : named_buffers()) all[item.key()] = item.value().cpu().clone();
    return all;
  }
};

// The same with manual optimization: a step every `window` batches.
struct NormedManual : Normed {
  bool automatic_optimization() const override { return false; }
  StepOutput training_step(const Batch& b, int64_t i) override {
    const StepOutput output = Normed::training_step(b, i);
    manual_backward(output.loss);
    if ((i + 1) % window == 0) optimizers(0).step(), optimizers(0).zero_grad();
    return output;
  }
};

// Asks for a checkpoint after batch `at`.
struct AskingAt : Callback {
  int64_t at = 0;
  fs::path path;
  void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
    if (run.progress().batches_total.processed == at)
      run.request_checkpoint({.name = "middle",
                              .reason = "test",
                              .best = false,
                              .keep = true,
                              .weights_only = false,
                              .owner = "AskingAt",
                              .score = {}});
  }
  void on_checkpoint_published(RunContext&, const CheckpointInfo& info) override {
    if (info.request.owner == "AskingAt") path = info.path;
  }
};

void check_all_finite(const fs::path& checkpoints, int64_t most_steps) {
  const auto all = list_checkpoints(checkpoints);
  REQUIRE_FALSE(all.empty());
  CHECK(all.front().global_step <= most_steps);
  for (const auto& summary : all)
    for (const auto& [name, value] : read_checkpoint(summary.path).module) CHECK(value.isfinite().all().item<bool>());
}

}  // namespace

TEST_CASE(
    "F30 raise, the default: a NaN loss ends the run with exit code 6, the batch and what is wrong; no checkpoint has "
    "it") {
  TemporaryFolder folder;
  CHECK(TrainerOptions().on_nonfinite == OnNonFinite::raise);
  const Result run = fit(folder, Fault::loss, "raise");
  CHECK_THAT(run.error, ContainsSubstring("the loss is not finite") && ContainsSubstring("batch 5") &&
                            ContainsSubstring("step 5"));
  CHECK(same_weights(run.module->before, weights(*run.module)));
  check_all_finite(folder / "fulgur_logs/version_0/checkpoints", 5);
  CHECK_THAT(read_text(folder / "fulgur_logs/version_0/nonfinite.jsonl"),
             ContainsSubstring("\"global_step\":5") && ContainsSubstring("\"what\":\"the loss\""));
}

TEST_CASE("F30 an input that is NaN is named, and so is a gradient if gradients are checked") {
  TemporaryFolder folder;
  CHECK_THAT(fit(folder, Fault::input, "raise").error, ContainsSubstring("'x' of the batch"));
  const auto looked_at = [](TrainerOptions& o, Failing&) { o.check_every = 1; };
  CHECK_THAT(fit(folder, Fault::gradient, "raise", looked_at).error,
             ContainsSubstring("the gradient of 'first.weight'"));
  // Clipping has the norm, which costs nothing more.
  const auto clipped = [](TrainerOptions& o, Failing&) { o.gradient_clip_val = 1.0; };
  CHECK_THAT(fit(folder, Fault::gradient, "raise", clipped).error, ContainsSubstring("the gradient of 'first.weight'"));
}

TEST_CASE("on a GPU, F30 raise: a gradient that is infinite ends the run at the next row, if clipping has the norm",
          "[gpu]") {
  require_gpus(1);
  TemporaryFolder folder;
  const Result run = fit(folder, Fault::gradient, "raise", [](TrainerOptions& o, Failing& module) {
    o.accelerator = "cuda";
    o.gradient_clip_val = 1.0;
    module.at = 20;  // the last step: no later loss shows it
  });
  CHECK_THAT(run.error, ContainsSubstring("the norm of the gradients is not finite"));
  check_all_finite(folder / "fulgur_logs/version_0/checkpoints", 18);
}

TEST_CASE("F30 skip: the step is skipped, the weights stay, the skipped are counted and training continues") {
  for (const Fault fault : {Fault::loss, Fault::input, Fault::gradient}) {
    CAPTURE(static_cast<int>(fault));
    TemporaryFolder folder;
    const Result run = fit(folder, fault, "skip");
    CHECK(run.error.empty());
    CHECK(run.report.epochs == 2);
    for (const auto& [name, value] : weights(*run.module)) CHECK(value.isfinite().all().item<bool>());
    REQUIRE_FALSE(run.logger->values("skipped_steps").empty());
    CHECK(run.logger->values("skipped_steps").back().second == 1);
    check_all_finite(folder / "fulgur_logs/version_0/checkpoints", 20);
  }
}

TEST_CASE("F30 skip leaves the weights of that step as they were") {
  struct Watching : Callback {
    std::map<std::string, Tensor> after;
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t i) override {
      if (i == 5 && run.progress().epoch == 0) after = weights(run.module());
    }
  };
  TemporaryFolder folder;
  auto module = std::make_shared<Failing>();
  module->fault = Fault::gradient;
  TrainerOptions options = quiet(folder);
  options.on_nonfinite = OnNonFinite::skip;
  auto watching = std::make_shared<Watching>();
  TrainerComponents components;
  components.add(watching);
  Trainer(options, components).fit(module, regression_data(40, 0));
  CHECK(same_weights(module->before, watching->after));
}

TEST_CASE("F30 skip puts the buffers back too: running statistics are those of before the window") {
  const int64_t window = GENERATE(1, 2);
  const bool manual = GENERATE(false, true);
  CAPTURE(window, manual);
  TemporaryFolder folder;
  const std::shared_ptr<Normed> module = manual ? std::make_shared<NormedManual>() : std::make_shared<Normed>();
  module->window = window;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.on_nonfinite = OnNonFinite::skip;
  if (!manual) options.accumulate_grad_batches = window;
  const FitReport report = Trainer(options).fit(std::shared_ptr<LightningModule>(module), regression_data(40, 0));
  REQUIRE(module->before.size() == 3);
  CHECK(same_weights(module->before, module->after));
  for (const auto& [name, value] : weights(*module)) CHECK(value.isfinite().all().item<bool>());
  REQUIRE(report.last_checkpoint);
  CHECK(summarize_checkpoint(*report.last_checkpoint).global_step == 20 / window);
}

TEST_CASE("F30 skip puts back a buffer that the module replaces: by assignment, by other memory, by another shape") {
  // A running mean that forward does not change in place.
  struct Replacing : SelfPlanned {
    enum class How { assigned, set_data, grown } how;
    Tensor& mean;  // the registered one
    int64_t at = 13, window = 1, batches = 0;
    Tensor before, after;
    explicit Replacing(How kind) : how(kind), mean(register_buffer("mean", at::zeros({4}))) {}
    StepOutput training_step(const Batch& b, int64_t) override {
      Tensor next;
      {
        const at::NoGradGuard no_grad;
        next = how == How::grown ? at::cat({mean, b[0].mean().view({1})}) : mean * 0.9 + b[0].mean(0) * 0.1;
      }
      if (how == How::set_data)
        mean.set_data(next);
      else
        mean = next;
      return at::mse_loss(forward(b[0]), b[1]);
    }
    Batch on_before_batch_transfer(Batch b, int64_t) override {
      if (++batches == at) b.set(0, b[0] * kNan);
      return b;
    }
    int on_train_batch_start(const Batch&, int64_t) override {
      if (batches == (at - 1) / window * window + 1) before = mean.clone();
      return 0;
    }
    void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
      if (batches == ((at - 1) / window + 1) * window) after = mean.clone();
    }
  };
  const auto how = GENERATE(Replacing::How::assigned, Replacing::How::set_data, Replacing::How::grown);
  const int64_t window = GENERATE(1, 2);
  CAPTURE(static_cast<int>(how), window);
  TemporaryFolder folder;
  const auto module = std::make_shared<Replacing>(how);
  module->window = window;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.on_nonfinite = OnNonFinite::skip;
  options.accumulate_grad_batches = window;
  const FitReport report = Trainer(options).fit(module, regression_data(40, 0));
  REQUIRE(module->before.defined());
  CHECK(module->before.abs().sum().item<double>() > 0);
  CHECK(module->before.equal(module->after));
  CHECK(module->mean.isfinite().all().item<bool>());
  REQUIRE(report.last_checkpoint);
  CHECK(summarize_checkpoint(*report.last_checkpoint).global_step == 20 / window);
}

TEST_CASE("F30 skip: a run that resumes inside a window puts back the buffers of before it") {
  TemporaryFolder folder;
  const auto run = [&](const std::shared_ptr<Normed>& module, const std::shared_ptr<AskingAt>& asking,
                       const CheckpointChoice& from) {
    module->at = 14;
    module->window = 2;
    TrainerOptions options = quiet(folder);
    options.max_epochs = 2;
    options.on_nonfinite = OnNonFinite::skip;
    options.accumulate_grad_batches = 2;
    TrainerComponents components;
    components.seed = 5;
    if (asking) components.add(asking);
    Trainer(options, components).fit(module, regression_data(40, 0), from);
  };
  const auto asking = std::make_shared<AskingAt>();
  asking->at = 13;
  const auto whole = std::make_shared<Normed>(), resumed = std::make_shared<Normed>();
  run(whole, asking, {});
  REQUIRE(same_weights(whole->before, whole->after));
  REQUIRE(fs::exists(asking->path));
  resumed->batches = 13;
  run(resumed, nullptr, asking->path.string());
  CHECK(same_weights(whole->before, resumed->after));
}

TEST_CASE("on a GPU, F30 skip puts the buffers back, in steps as they are and in captured ones", "[gpu]") {
  require_gpus(1);
  const int64_t window = GENERATE(1, 2);
  const bool captures = GENERATE(false, true);
  CAPTURE(window, captures);
  TemporaryFolder folder;
  const auto module = std::make_shared<Normed>();
  module->window = window;
  module->at = 33;
  TrainerOptions options = quiet(folder);
  options.accelerator = "cuda";
  options.max_epochs = 2;
  options.on_nonfinite = OnNonFinite::skip;
  options.accumulate_grad_batches = window;
  options.capture = captures;
  const FitReport report = Trainer(options).fit(module, regression_data(80, 0));
  CHECK((report.captured_batches > 0) == captures);
  REQUIRE(module->before.size() == 3);
  CHECK(same_weights(module->before, module->after));
  for (const auto& [name, value] : weights(*module)) CHECK(value.isfinite().all().item<bool>());
  REQUIRE(report.last_checkpoint);
  CHECK(summarize_checkpoint(*report.last_checkpoint).global_step == 40 / window);
}

TEST_CASE("F30 stop: the run ends cleanly with exit code 6 and no further checkpoint") {
  TemporaryFolder folder;
  const Result run = fit(folder, Fault::loss, "stop");
  CHECK(run.error.empty());
  CHECK(run.report.exit_code == ExitCode::non_finite);
  CHECK_THAT(run.report.stop_reason, ContainsSubstring("non-finite: the loss"));
  check_all_finite(folder / "fulgur_logs/version_0/checkpoints", 5);
  // Not finished: with other data or rates it can continue.
  CHECK_FALSE(fs::exists(folder / "fulgur_logs/version_0/finished.json"));
}

TEST_CASE(
    "F30 rollback: weights and optimizer are those of the last checkpoint, and training continues after the batch") {
  TemporaryFolder folder;
  const Result run = fit(folder, Fault::loss, "rollback");
  CHECK(run.error.empty());
  CHECK(run.report.epochs == 2);
  CHECK_THAT(run.told, ContainsSubstring("were restored from") && ContainsSubstring("epoch=0-step=4.ckpt"));
  CHECK_THAT(run.told, ContainsSubstring("[trainer.rolled_back]") && !ContainsSubstring("error:"));
  for (const auto& [name, value] : weights(*run.module)) CHECK(value.isfinite().all().item<bool>());
}

TEST_CASE("F30 rollback gives up if the same checkpoint does not help three times") {
  TemporaryFolder folder;
  const Result run =
      fit(folder, Fault::loss, "rollback", [](TrainerOptions&, Failing& module) { module.once = false; });
  CHECK_THAT(run.error, ContainsSubstring("after 3 rollbacks to the same weights"));
  // Each of them is reported, the first as a warning.
  CHECK(count_of(run.told, "were restored from") == 3);
  CHECK(count_of(run.told, "[trainer.rolled_back]") == 1);
  CHECK_THAT(fit(folder, Fault::loss, "rollback", [](TrainerOptions&, Failing& module) { module.at = 1; }).error,
             ContainsSubstring("no checkpoint to roll back to"));
}

TEST_CASE("F30 off: nothing is checked, and a metric that is NaN or a tiny loss is not an error") {
  TemporaryFolder folder;
  CHECK(fit(folder, Fault::loss, "off").report.epochs == 2);
  CHECK(fit(folder, Fault::metric, "raise").report.epochs == 2);
  CHECK(fit(folder, Fault::denormal, "raise").report.epochs == 2);
}

TEST_CASE("F30 weights that are not finite reach no checkpoint, and the best one stays") {
  TemporaryFolder folder;
  const Result run = fit(folder, Fault::weight, "raise", [](TrainerOptions& o, Failing&) { o.max_steps = 6; });
  CHECK_THAT(run.told, ContainsSubstring("is not written: 'first.weight' is not finite") &&
                           ContainsSubstring("[trainer.checkpoint_refused]"));
  check_all_finite(folder / "fulgur_logs/version_0/checkpoints", 4);
}

TEST_CASE("check_every judges gradients and weights, not a batch with NaN for missing values") {
  struct Masks : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t i) override {
      return SelfPlanned::training_step(Batch({Batch::Entry{"x", b[0].nan_to_num(0)}, Batch::Entry{"y", b[1]}}), i);
    }
    Batch on_before_batch_transfer(Batch b, int64_t) override {
      Tensor x = b[0].clone();
      x.select(1, 0).fill_(kNan);
      b.set(0, x);
      return b;
    }
  };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.check_every = 1;
  for (const char* policy : {"raise", "skip", "stop"}) {
    CAPTURE(policy);
    options.on_nonfinite = *enum_from<OnNonFinite>(policy);
    CHECK(Trainer(options).fit(std::make_shared<Masks>(), regression_data(40, 0)).global_step == 10);
  }
}

}  // namespace nonfinite_test
