// `trainer fit --profile N`: real runs, each slowed down in one part.
#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <thread>

#include "fulgur/optim/reduce_lr_on_plateau.h"
#include "support/gpu.h"
#include "support/shown_lines.h"
#include "trainer/boring.h"

namespace profile_run_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

void nap(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

struct SlowStream : RegressionStream {
  using RegressionStream::RegressionStream;
  std::optional<Batch> next(int64_t count, const SampleContext& context) override {
    nap(10);
    return RegressionStream::next(count, context);
  }
};

struct Sleepy : Callback {
  void on_train_batch_end(RunContext&, const StepOutput&, const Batch&, int64_t) override { nap(10); }
};

struct Heavy : SelfPlanned {
  Tensor matrix = at::rand({400, 400});
  StepOutput training_step(const Batch& batch, int64_t i) override {
    const at::NoGradGuard no_grad;
    Tensor product = matrix;
    for (int k = 0; k < 4; ++k) product = at::mm(product, matrix);
    const at::AutoGradMode with_grad(true);
    return SelfPlanned::training_step(batch, i);
  }
};

struct Parts {
  std::shared_ptr<LightningModule> module = std::make_shared<SelfPlanned>();
  DataSource data = regression_data(16, 4, 4, false);
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  int64_t steps = 10;
};

struct Profiled {
  FitReport report;
  std::string text;
};

Profiled profile_of(
    const TemporaryFolder& folder, const Parts& parts,
    const std::function<void(TrainerOptions&)>& change = [](TrainerOptions&) {}) {
  TrainerOptions options = quiet(folder);
  options.num_threads.value = 1;
  change(options);
  TrainerComponents components;
  components.callbacks = parts.callbacks;
  components.profile_steps = parts.steps;
  Profiled result;
  result.text = shown_lines([&] { result.report = Trainer(options, components).fit(parts.module, parts.data); });
  return result;
}

}  // namespace

TEST_CASE("a loader that sleeps: bound by data") {
  const TemporaryFolder folder;
  Parts parts;
  parts.data =
      std::make_shared<IterableLoader>(std::make_shared<SlowStream>(4000), IterableLoaderOptions{.batch_size = 4});
  const Profiled found = profile_of(folder, parts);
  CHECK_THAT(found.text, ContainsSubstring("bound by: data"));
  CHECK_THAT(found.text, ContainsSubstring("num_workers"));
}

TEST_CASE("a callback that sleeps: bound by the host, and the advice names it") {
  const TemporaryFolder folder;
  Parts parts;
  parts.callbacks = {std::make_shared<Sleepy>()};
  const Profiled found = profile_of(folder, parts);
  CHECK_THAT(found.text, ContainsSubstring("bound by: host"));
  CHECK_THAT(found.text, ContainsSubstring("Sleepy.on_train_batch_end takes 1"));
  CHECK_THAT(found.text, ContainsSubstring("every: 10st"));
}

TEST_CASE("large matrix products: bound by the device") {
  const TemporaryFolder folder;
  Parts parts;
  parts.module = std::make_shared<Heavy>();
  const Profiled found = profile_of(folder, parts);
  CHECK_THAT(found.text, ContainsSubstring("bound by: device"));
  CHECK_THAT(found.text, ContainsSubstring("precision: bf16-mixed"));
}

TEST_CASE("a profile measures the steps after a warm-up, over several epochs, and ends") {
  const TemporaryFolder folder;
  Parts parts;
  parts.steps = 10;  // an epoch has four
  const Profiled found = profile_of(folder, parts, [](TrainerOptions& options) {
    options.max_epochs = 1;
    options.min_steps = 100;
    options.gradient_clip_val = 1.0;
  });
  CHECK(found.report.global_step == 10 + kProfileWarmup);
  CHECK(found.report.stop_reason == "max_steps");
  CHECK_THAT(found.text, ContainsSubstring("profile of 10 training batches"));
  CHECK_THAT(found.text, ContainsSubstring("samples/s"));
  CHECK_THAT(found.text, ContainsSubstring("configure_gradient_clipping"));
  CHECK_THAT(found.text, ContainsSubstring("run folder: none (profile)"));
  CHECK_THAT(found.text, !ContainsSubstring("is not used"));
  // Each step may be several batches.
  const Profiled windows =
      profile_of(folder, parts, [](TrainerOptions& options) { options.accumulate_grad_batches = 2; });
  CHECK(windows.report.global_step == 10 + kProfileWarmup);
  CHECK_THAT(windows.text, ContainsSubstring("profile of 20 training batches"));
}

TEST_CASE(
    "a window that is longer than an epoch ends with it: the profile counts steps, not batches of whole windows") {
  const TemporaryFolder folder;
  Parts parts;
  parts.steps = 10;
  const Profiled found =
      profile_of(folder, parts, [](TrainerOptions& options) { options.accumulate_grad_batches = 8; });
  CHECK(found.report.global_step == 10 + kProfileWarmup);
  CHECK_THAT(found.text, ContainsSubstring("profile of 40 training batches"));  // an epoch of four for each step
}

TEST_CASE("a profile of a config that stops and continues later runs to its end") {
  const TemporaryFolder folder;
  const Profiled found =
      profile_of(folder, {}, [](TrainerOptions& options) { options.stop_after = *Interval::parse("3st"); });
  CHECK(found.report.global_step == 10 + kProfileWarmup);
  CHECK(found.report.stop_reason == "max_steps");
}

TEST_CASE("profile_steps change a fit and no other verb") {
  struct Counting : SelfPlanned {
    int64_t validated = 0;
    Outputs validation_step(const Batch& batch, int64_t i, int64_t loader) override {
      ++validated;
      return SelfPlanned::validation_step(batch, i, loader);
    }
  };
  const TemporaryFolder folder;
  TrainerComponents components;
  components.profile_steps = 2;
  const auto module = std::make_shared<Counting>();
  const EvalReport report = Trainer(quiet(folder), components).validate(module, regression_data(8, 80, 4));
  CHECK(module->validated == 20);  // more than two and the warm-up
  CHECK_FALSE(report.run_dir.empty());
}

TEST_CASE("a profile leaves nothing behind, touches no other run and does not validate") {
  struct NoValidation : SelfPlanned {
    Outputs validation_step(const Batch&, int64_t, int64_t) override {
      FAIL("a validation");
      return {};
    }
  };
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  const FitReport before = Trainer(options).fit(std::make_shared<SelfPlanned>(), regression_data(16, 4, 4, false));
  const auto files = [&] {
    std::map<std::string, std::string> all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
      all.emplace(entry.path().string(), entry.is_regular_file() ? read_text(entry.path()) : "");
    return all;
  };
  const auto kept = files();
  REQUIRE_FALSE(kept.empty());
  Parts parts;
  parts.module = std::make_shared<NoValidation>();
  const Profiled found = profile_of(folder, parts, [](TrainerOptions& changed) {
    changed.num_sanity_val_steps = 2;
    changed.validate_first = true;
    changed.enable_checkpointing = true;
    // What the options name does not matter here.
    changed.profiler = Spec<Profiler>("kineto");
  });
  CHECK_THAT(found.text, ContainsSubstring("trainer.profiler is not used"));
  CHECK(found.report.run_dir.empty());
  CHECK_FALSE(found.report.last_checkpoint);
  CHECK(files() == kept);
}

TEST_CASE("a schedule that follows a validation metric does not end a profile") {
  struct Plateau : BoringModule {
    OptimizerPlan configure_optimizers() override {
      return {std::make_shared<SGD>(SGD::Options{.lr = 0.05}),
              SchedulerConfig{.scheduler = std::make_shared<ReduceLROnPlateau>(ReduceLROnPlateau::Options{}),
                              .monitor = "val_loss"}};
    }
  };
  const TemporaryFolder folder;
  Parts parts;
  parts.module = std::make_shared<Plateau>();
  CHECK(profile_of(folder, parts).report.global_step == 10 + kProfileWarmup);
}

TEST_CASE("a profile of a GPU has the launches, and the host's waits for the GPU", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  const auto on_gpu = [](TrainerOptions& options) {
    options.accelerator = "cuda";
    options.devices = 1;
  };
  const Profiled found = profile_of(folder, {}, on_gpu);
  CHECK_THAT(found.text, ContainsSubstring("profile of 10 training batches"));
  CHECK_THAT(found.text, ContainsSubstring("host: launches of forward, backward, optimizer"));
  CHECK_THAT(found.text, ContainsSubstring("device: the host waits for it"));
  CHECK_THAT(found.text, ContainsSubstring("device mean ms"));
  Parts slow;
  slow.callbacks = {std::make_shared<Sleepy>()};
  CHECK_THAT(profile_of(folder, slow, on_gpu).text, ContainsSubstring("bound by: host"));
}

}  // namespace profile_run_test
