// Checkpoints of a run on a GPU that are written while it trains: what they hold, and what they make the run wait for.
#include "trainer/boring.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/renorm.h>
#include <torch/nn/modules/batchnorm.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <limits>
#include <sstream>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "support/device_counts.h"
#include "support/gpu.h"
#include "support/host_waits.h"

namespace saves_gpu_test {

using namespace fulgur;
using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kSteps = 8, kWidth = 70'000;  // each tensor with its own copy

// Learns with batch norm, and logs nothing.
struct Wide : LightningModule {
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  int64_t batches = 0;
  Wide() {
    first = register_module("first", torch::nn::Linear(4, kWidth));
    norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
    second = register_module("second", torch::nn::Linear(kWidth, 2));
  }
  Tensor loss_of(const Batch& batch) {
    return at::mse_loss(second->forward(norm->forward(first->forward(batch[0])).relu()), batch[1]);
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    ++batches;
    return loss_of(batch);
  }
  OptimizerPlan configure_optimizers() override {
    AdamW::Options options;
    options.lr = 0.002;
    return std::make_shared<AdamW>(options);
  }
};

struct Manual : Wide {
  bool automatic_optimization() const override { return false; }
  StepOutput training_step(const Batch& batch, int64_t) override {
    for (const size_t i : {0, 1}) {
      manual_backward(loss_of(batch));
      optimizers(i).step();
      optimizers(i).zero_grad();
    }
    return {};
  }
  OptimizerPlan configure_optimizers() override {
    const auto of = [](const torch::nn::Module& module, const char* name) {
      ParamGroup group;
      for (const auto& item : module.named_parameters()) {
        group.params.push_back(item.value());
        group.names.push_back(cat(name, ".", item.key()));
      }
      return group;
    };
    const auto one = std::make_shared<SGD>(SGD::Options{.lr = 0.001, .momentum = 0.9});
    one->attach({of(*first, "first"), of(*norm, "norm")});
    const auto other = std::make_shared<AdamW>(AdamW::Options{});
    other->attach({of(*second, "second")});
    return OptimizerPlan::several({{one, {}}, {other, {}}});
  }
};

// Forward writes a weight, from a step on.
template <int64_t from>
struct Renormed : Wide {
  StepOutput training_step(const Batch& batch, int64_t index) override {
    if (batches >= from) {
      const at::NoGradGuard no_grad;
      first->weight.copy_(first->weight.renorm(2, 0, 0.3));
    }
    return Wide::training_step(batch, index);
  }
};

void request(RunContext& run, const std::filesystem::path& name) {
  run.request_checkpoint({.name = name,
                          .reason = "test",
                          .best = false,
                          .keep = true,
                          .weights_only = false,
                          .owner = "test",
                          .score = std::nullopt});
}

// Saves after every other step. The writer waits for its copies only once the step after has been launched.
struct Saving : Callback {
  void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
    const bool saves = ++batches % 2 == 1;
    if (saves) request(run, cat("step-", run.progress().batches_total.ready));
    hold_event_waits_of_others(saves);
    at_end = host_waits_of_this_thread();
    stream_waits = counts().stream_waits;
  }
  void on_train_batch_start(RunContext&, const Batch&, int64_t) override {
    (batches % 2 == 1 ? waits_of_saves : other_waits).push_back(host_waits_of_this_thread() - at_end);
    stream_waits = counts().stream_waits;
  }
  void on_after_backward(RunContext&) override {
    (batches % 2 == 1 ? until_backward : other_until_backward).push_back(counts().stream_waits - stream_waits);
    stream_waits = counts().stream_waits;
  }
  void on_before_optimizer_step(RunContext&, Optimizer&) override {
    (batches % 2 == 1 ? until_step : other_until_step).push_back(counts().stream_waits - stream_waits);
  }
  void on_train_end(RunContext&) override { hold_event_waits_of_others(false); }
  void on_exception(RunContext&, const std::exception&) override { hold_event_waits_of_others(false); }
  void on_checkpoint_failed(RunContext&, const CheckpointInfo& info, const std::exception& error) override {
    failed.push_back(info.path.filename().string());
    why = error.what();
  }
  static DeviceCounts counts() { return device_counts().value_or(DeviceCounts{}); }
  int64_t batches = 0, at_end = 0, stream_waits = 0;
  std::vector<int64_t> waits_of_saves, other_waits, until_backward, other_until_backward, until_step, other_until_step;
  std::vector<std::string> failed;
  std::string why;
};

// The same without hooks that run inside a captured step.
struct SavingOutside : Callback {
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t index) override {
    inner.on_train_batch_end(run, output, batch, index);
  }
  void on_train_batch_start(RunContext& run, const Batch& batch, int64_t index) override {
    inner.on_train_batch_start(run, batch, index);
  }
  void on_train_end(RunContext& run) override { inner.on_train_end(run); }
  void on_exception(RunContext& run, const std::exception& error) override { inner.on_exception(run, error); }
  Saving inner;
};

// The simulator's batch norm has no bfloat16.
struct WithoutNorm : Wide {
  StepOutput training_step(const Batch& batch, int64_t) override {
    ++batches;
    return at::mse_loss(second->forward(first->forward(batch[0]).relu()), batch[1]);
  }
};

// Keeps an average of the weights, and has the module compute with it now and then.
struct Averaging : Callback {
  Phase phase() const override { return Phase::observe; }
  void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
    const at::NoGradGuard no_grad;
    for (const auto& [name, value] : unique_parameters(run.module())) {
      if (!average[name].defined())
        average[name] = value.detach().clone();
      else
        average[name].lerp_(value.detach(), 0.1);
    }
  }
  void on_train_batch_start(RunContext& run, const Batch&, int64_t index) override {
    const at::NoGradGuard no_grad;
    if (writes && index % 2 == 1)
      for (auto& [name, value] : unique_parameters(run.module())) value.copy_(average.at(name));
  }
  StateTree state() const override {
    StateTree state = StateTree::map({{"kept", true}});
    for (const auto& [name, value] : average) state[name] = value;
    return state;
  }
  std::map<std::string, Tensor> average;
  bool writes = false;
};

using Files = std::map<std::string, std::string>;  // what checkpoints hold, by checkpoint and file or field
using Change = std::function<void(TrainerOptions&, TrainerComponents&)>;

Files files_of(const fs::path& checkpoints) {
  Files files;
  for (const auto& summary : list_checkpoints(checkpoints)) {
    const std::string name = summary.path.filename().string();
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.safetensors"})
      if (fs::exists(summary.path / file)) files[cat(name, "/", file)] = read_text(summary.path / file);
    // One line a field.
    std::istringstream state(read_text(summary.path / "state.json"));
    for (std::string line; std::getline(state, line);)
      for (const char* field :
           {"\"precision\"", "\"nonfinite\"", "\"optimizer_steps\"", "\"logs\"", "\"metrics\"", "\"gradients\""})
        if (line.starts_with(field)) files[cat(name, "/", field)] = line;
  }
  return files;
}

template <class M, class Saver = Saving>
FitReport train(const TemporaryFolder& folder, bool async, const Change& change,
                const std::shared_ptr<Saver>& saving = std::make_shared<Saver>()) {
  at::manual_seed(11);
  const auto module = std::make_shared<M>();
  TrainerOptions options = quiet(folder);
  options.accelerator = "cuda";
  options.async_checkpoint = async;
  options.log_every_n_steps = 1000;
  TrainerComponents components;
  components.seed = 3;
  components.add(saving);
  if (change) change(options, components);
  return Trainer(options, components).fit(module, regression_data(4 * kSteps, 0));
}

// What is saved while the run trains is the same as when it is paused.
template <class M, class Saver = Saving>
void check_saves(const Change& change = {}) {
  const TemporaryFolder standing, training;
  const auto folder = [](const FitReport& report) { return report.run_dir / "checkpoints"; };
  const Files wanted = files_of(folder(train<M, Saver>(standing, false, change)));
  const Files found = files_of(folder(train<M, Saver>(training, true, change)));
  CHECK(wanted.size() >= (kSteps / 2) * 4);
  REQUIRE(wanted.size() == found.size());
  for (const auto& [name, bytes] : wanted) {
    CAPTURE(name);
    REQUIRE(found.contains(name));
    CHECK((found.at(name) == bytes));
  }
}

}  // namespace

TEST_CASE("on a GPU, a checkpoint written while the run trains has the bytes of one that it waits for", "[gpu]") {
  require_gpus(1);
  SECTION("batch norm and AdamW") { check_saves<Wide>(); }
  SECTION("16-mixed") {
    check_saves<Wide>([](TrainerOptions& o, TrainerComponents&) { o.precision = Spec<Precision>("16-mixed"); });
  }
  SECTION("master weights") {
    check_saves<WithoutNorm>([](TrainerOptions& o, TrainerComponents&) { o.precision = Spec<Precision>("bf16-true"); });
  }
  SECTION("in an accumulation window, whose gradients are saved") {
    check_saves<Wide>([](TrainerOptions& o, TrainerComponents&) { o.accumulate_grad_batches = 3; });
  }
  SECTION("manual optimization with two optimizers") { check_saves<Manual>(); }
  SECTION("a captured step") {
    check_saves<Wide, SavingOutside>([](TrainerOptions& o, TrainerComponents&) { o.capture = true; });
  }
  SECTION("a callback that averages weights") {
    check_saves<Wide>([](TrainerOptions&, TrainerComponents& p) { p.add(std::make_shared<Averaging>()); });
  }
  SECTION("skipped steps") {
    check_saves<Wide>([](TrainerOptions& o, TrainerComponents&) {
      o.on_nonfinite = OnNonFinite::skip;
      o.gradient_clip_val = 0.1;
    });
  }
  SECTION("a forward that writes weights") { check_saves<Renormed<0>>(); }
}

TEST_CASE(
    "on a GPU, a checkpoint costs the run no wait, and what follows runs while it is copied, up to the optimizer's "
    "step",
    "[gpu]") {
  require_gpus(1);
  const std::string precision = GENERATE("32-true", "bf16-mixed", "16-mixed");
  CAPTURE(precision);
  const auto saving = std::make_shared<Saving>();
  const TemporaryFolder folder;
  train<WithoutNorm>(
      folder, true, [&](TrainerOptions& o, TrainerComponents&) { o.precision = Spec<Precision>(precision); }, saving);
  REQUIRE(saving->waits_of_saves.size() >= kSteps / 2 - 1);
  CHECK(saving->failed.empty());
  for (const int64_t waits : saving->waits_of_saves) CHECK(waits == 0);
  for (size_t i = 1; i < saving->other_waits.size(); ++i) CHECK(saving->other_waits[i] == 0);
  if (!device_counts()) return;
  for (size_t i = 1; i + 1 < saving->until_backward.size(); ++i) {
    CAPTURE(i);
    CHECK(saving->until_backward[i] == saving->other_until_backward[i]);
    CHECK(saving->until_step[i] == 1);
    CHECK(saving->other_until_step[i] <= 1);  // copies may be under way still
  }
}

TEST_CASE("on a GPU, a checkpoint waits neither for rows on their way nor for running metrics, and has both", "[gpu]") {
  require_gpus(1);
  struct Logged : WithoutNorm {
    StepOutput training_step(const Batch& batch, int64_t index) override {
      StepOutput output = WithoutNorm::training_step(batch, index);
      log("loss", output.loss, {.on_epoch = true});
      log("least", output.loss, {.on_step = true, .reduce_fx = Reduce::min});
      return output;
    }
  };
  struct SavingSeldom : Callback {
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t index) override {
      if (index == 3) request(run, "a");
      before = host_waits_of_this_thread();
    }
    void on_train_batch_start(RunContext&, const Batch&, int64_t index) override {
      if (index > 0) waits.push_back(host_waits_of_this_thread() - before);
    }
    int64_t before = 0;
    std::vector<int64_t> waits;
  };
  const int64_t every = GENERATE(1, 3);
  CAPTURE(every);
  std::map<bool, Files> files;
  for (const bool async : {false, true}) {
    const TemporaryFolder folder;
    const auto saving = std::make_shared<SavingSeldom>();
    const FitReport report = train<Logged>(
        folder, async, [&](TrainerOptions& o, TrainerComponents&) { o.log_every_n_steps = every; }, saving);
    files[async] = files_of(report.run_dir / "checkpoints");
    if (!async) continue;
    CHECK(saving->waits == std::vector<int64_t>(saving->waits.size(), 0));
  }
  CHECK((files[true] == files[false]));
  CHECK(files[true].contains("a.ckpt/\"logs\""));
}

TEST_CASE(
    "on a GPU, a copy during which forward wrote a weight for the first time is not kept, and later saves are right",
    "[gpu]") {
  require_gpus(1);
  const TemporaryFolder standing, training;
  const auto saving = std::make_shared<Saving>();
  const FitReport wanted = train<Renormed<5>>(standing, false, {});
  const FitReport found = train<Renormed<5>>(training, true, {}, saving);
  REQUIRE(saving->failed == std::vector<std::string>{"step-5.ckpt"});
  CHECK(saving->why.find("'first.weight' was modified before the optimizer's step") != std::string::npos);
  Files expected = files_of(wanted.run_dir / "checkpoints"), files = files_of(found.run_dir / "checkpoints");
  std::erase_if(expected, [](const auto& file) { return file.first.starts_with("step-5.ckpt"); });
  CHECK((files == expected));
}

TEST_CASE("on a GPU, weights that are not finite are refused by the writer, once the run has continued", "[gpu]") {
  require_gpus(1);
  struct Broken : Wide {
    void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
      const at::NoGradGuard no_grad;
      if (batches == 4) kept = second->bias.clone();
      if (batches == 5) second->bias.fill_(std::numeric_limits<double>::quiet_NaN());
      if (batches == 6) second->bias.copy_(kept);
    }
    StepOutput training_step(const Batch& batch, int64_t index) override {
      if (batches == 5) return Tensor((++batches, Tensor()));  // a batch without a loss is not a step
      return Wide::training_step(batch, index);
    }
    Tensor kept;
  };
  for (const bool async : {true, false}) {
    CAPTURE(async);
    const TemporaryFolder folder;
    const auto saving = std::make_shared<Saving>();
    const FitReport report = train<Broken>(folder, async, {}, saving);
    CHECK(saving->failed == std::vector<std::string>{"step-5.ckpt"});
    CHECK(saving->why.find("is not written: 'second.bias' is not finite") != std::string::npos);
    const Files files = files_of(report.run_dir / "checkpoints");
    CHECK_FALSE(files.contains("step-5.ckpt/model.safetensors"));
    CHECK(files.contains("step-7.ckpt/model.safetensors"));
    REQUIRE(report.last_checkpoint);
    CHECK(verify_checkpoint(*report.last_checkpoint).ok());
  }
}

}  // namespace saves_gpu_test
