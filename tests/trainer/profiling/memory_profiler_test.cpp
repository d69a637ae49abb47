// `profiler: memory`: the peaks of each action and each layer.
#include "profiling/memory_profiler.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>

#include "support/gpu.h"
#include "trainer/boring.h"

namespace memory_profiler_test {

using namespace fulgur;
using namespace fulgur::test;
using fulgur::detail::MemoryProfiler;
using fulgur::detail::MemoryWatch;
using Json = nlohmann::json;

namespace {

constexpr int64_t kMiB = 1024 * 1024;

Tensor bytes(int64_t count) { return at::empty({count}, at::kByte); }

// Takes memory of known sizes in each phase of a step.
struct Hungry : SelfPlanned {
  Tensor kept;
  StepOutput training_step(const Batch& batch, int64_t i) override {
    { const Tensor gone = bytes(8 * kMiB); }
    return SelfPlanned::training_step(batch, i);
  }
  void on_after_backward() override { kept = bytes(2 * kMiB); }
  Outputs validation_step(const Batch& batch, int64_t i, int64_t loader) override {
    const Tensor gone = bytes(5 * kMiB);
    return SelfPlanned::validation_step(batch, i, loader);
  }
};

Json memory_of(
    const std::shared_ptr<LightningModule>& module, const std::shared_ptr<DataModule>& data,
    MemoryProfiler::Options options = {}, const std::function<void(TrainerOptions&)>& change = [](TrainerOptions&) {}) {
  const TemporaryFolder folder;
  TrainerOptions written = quiet(folder);
  change(written);
  TrainerComponents components;
  components.profiler = std::make_shared<MemoryProfiler>(options);
  const FitReport report = Trainer(written, components).fit(module, data);
  CHECK_FALSE(c10::memoryProfilingEnabled());  // nothing is left in this thread
  return Json::parse(read_text(report.run_dir / "profile.json"));
}

Json memory_row(const Json& all, const char* list, const char* key, const std::string& name) {
  for (const Json& each : all.at(list))
    if (each.at(key) == name) return each;
  FAIL("no " << name << " in " << all.dump(2));
  return {};
}

int64_t peak_of(const Json& all, const std::string& action) {
  return memory_row(all, "actions", "action", action).at("peak_allocated_bytes").get<int64_t>();
}

// Two layers of known sizes: what they keep for backward can be computed.
struct TwoLayers : LightningModule {
  torch::nn::Linear wide{nullptr}, narrow{nullptr};
  TwoLayers() {
    wide = register_module("wide", torch::nn::Linear(4, 1024));
    narrow = register_module("narrow", torch::nn::Linear(1024, 2));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return at::mse_loss(narrow->forward(wide->forward(batch[0]).relu()), batch[1]);
  }
  OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 0.01}); }
};

}  // namespace

TEST_CASE("each action has its peak, and an action contains those inside it") {
  const Json all = memory_of(std::make_shared<Hungry>(), regression_data(16, 4, 4, false));
  CHECK(peak_of(all, "training_step") >= 8 * kMiB);
  CHECK(peak_of(all, "training_batch") >= peak_of(all, "training_step"));
  // The module keeps 2 MiB, and holds the old ones while it takes the new ones. 5 MiB come with the validation.
  CHECK(peak_of(all, "training_step") < 11 * kMiB);
  CHECK(peak_of(all, "validation_step") >= 7 * kMiB);
  CHECK(peak_of(all, "validation_step") < 8 * kMiB);
  CHECK(peak_of(all, "backward") < 4 * kMiB);
  CHECK(peak_of(all, "optimizer_step") < 4 * kMiB);
  const Json step = memory_row(all, "actions", "action", "training_batch");
  CHECK(step.at("calls") == 4);
  CHECK(step.at("device") == "cpu");
  CHECK(step.at("peak_reserved_bytes") == 0);
  // Only the first step leaves more than it found: 2 MiB and the momentum.
  CHECK(step.at("kept_bytes") >= 3 * kMiB / 2);
  CHECK(step.at("kept_bytes") < 3 * kMiB);
}

TEST_CASE("a layer is charged with what its operations keep and with its peaks") {
  constexpr int64_t kSamples = 256;
  const Json all = memory_of(std::make_shared<TwoLayers>(), regression_data(kSamples, 0, kSamples, false));
  const Json wide = memory_row(all, "layers", "layer", "wide"), narrow = memory_row(all, "layers", "layer", "narrow");
  const int64_t activation = kSamples * 1024 * 4;
  // The output of `wide` is released after the rectifier, whose own output is kept and belongs to the layer before it.
  CHECK(wide.at("kept_bytes") >= activation);
  CHECK(wide.at("kept_bytes") <= 2 * activation + 4096);
  CHECK(narrow.at("kept_bytes") < activation);
  CHECK(wide.at("forward_peak_bytes") >= 2 * activation);
  // The gradient of the rectifier's output, in the backward of `narrow`.
  CHECK(narrow.at("backward_peak_bytes") >= 2 * activation);
  CHECK(wide.at("backward_peak_bytes") >= activation);
}

TEST_CASE("without layers only actions are measured") {
  const Json all = memory_of(std::make_shared<TwoLayers>(), regression_data(8, 0, 4, false), {.layers = false});
  CHECK(all.at("layers").empty());
  CHECK(peak_of(all, "training_step") > 0);
}

TEST_CASE("the watch counts what lives, by device, and forgets it when it is gone") {
  auto watch = std::make_shared<MemoryWatch>();
  const Tensor before = bytes(kMiB);
  {
    const fulgur::detail::InstalledMemoryWatch installed(watch, false);
    Tensor first = bytes(kMiB);
    REQUIRE(watch->devices().size() == 1);
    CHECK(watch->now(0).allocated == kMiB);
    { const Tensor second = bytes(3 * kMiB); }
    CHECK(watch->now(0).allocated == kMiB);
    CHECK(watch->take_peak(0).allocated == 4 * kMiB);
    CHECK(watch->take_peak(0).allocated == kMiB);  // a new peak begins at what lives
    first.reset();
    CHECK(watch->now(0).allocated == 0);
  }
  const Tensor after = bytes(kMiB);
  CHECK(watch->now(0).allocated == 0);
  CHECK(watch->profilerType() == torch::profiler::impl::ActiveProfilerType::NONE);
}

TEST_CASE("what another thread has released stops counting when its address is allocated again") {
  MemoryWatch watch;
  std::array<char, 2> memory{};
  const at::Device cpu(at::kCPU);
  watch.reportMemoryUsage(&memory[0], 100, 0, 0, cpu);
  watch.reportMemoryUsage(&memory[1], 10, 0, 0, cpu);
  // The release of the first was reported to another thread.
  watch.reportMemoryUsage(&memory[0], 60, 0, 0, cpu);
  CHECK(watch.now(0).allocated == 70);
  CHECK(watch.take_peak(0).allocated == 110);
  watch.reportMemoryUsage(&memory[0], -60, 0, 0, cpu);
  CHECK(watch.now(0).allocated == 10);
}

TEST_CASE("with manual optimization, what a backward has released is not kept for the next one") {
  struct Twice : TwoLayers {
    int64_t rounds = 1;
    bool automatic_optimization() const override { return false; }
    Tensor loss_of(const Batch& batch) {
      return at::mse_loss(narrow->forward(wide->forward(batch[0]).relu()), batch[1]);
    }
    StepOutput training_step(const Batch& batch, int64_t) override {
      for (int64_t round = 0; round < rounds; ++round) {
        manual_backward(loss_of(batch));  // only the graph holds the activation
        optimizers(0).step();
        optimizers(0).zero_grad();
      }
      return {};
    }
    OptimizerPlan configure_optimizers() override {
      return std::make_shared<SGD>(SGD::Options{.lr = 0.01, .momentum = 0.9});
    }
  };
  constexpr int64_t kSamples = 256;
  const auto kept = [&](int64_t rounds) {
    const auto module = std::make_shared<Twice>();
    module->rounds = rounds;
    const Json all = memory_of(module, regression_data(kSamples, 0, kSamples, false));
    return memory_row(all, "layers", "layer", "wide").at("kept_bytes").get<int64_t>();
  };
  const int64_t activation = kSamples * 1024 * 4, once = kept(1);
  CHECK(once >= activation);
  CHECK(kept(4) < once + activation / 2);
}

TEST_CASE("one memory profiler measures the runs of its Trainer one after another") {
  const TemporaryFolder folder;
  TrainerComponents components;
  components.profiler = std::make_shared<MemoryProfiler>(MemoryProfiler::Options{});
  Trainer trainer(quiet(folder), components);
  const auto module = std::make_shared<Hungry>();
  trainer.fit(module, regression_data(16, 4, 4, false));
  const EvalReport report = trainer.validate(module, regression_data(16, 12, 4, false));
  const Json all = Json::parse(read_text(report.run_dir / "profile.json"));
  CHECK(memory_row(all, "actions", "action", "validation_step").at("calls") == 3);
  for (const Json& row : all.at("actions")) CHECK(row.at("action") != "training_step");
  CHECK(all.at("layers").empty());
}

TEST_CASE("the tables have MiB, and a column for reserved memory if there is any") {
  const auto table = fulgur::detail::memory_table(
      {{.action = "backward", .device = "cuda:0", .calls = 3, .peak = {3 * kMiB, 4 * kMiB}, .kept = -kMiB}},
      {{.name = "fc", .kept = kMiB, .forward_peak = 2 * kMiB, .backward_peak = kMiB / 2}});
  CHECK(table ==
        "action    calls  device  peak MiB  kept MiB  peak reserved MiB\n"
        "backward  3      cuda:0  3.00      -1.00     4.00\n"
        "layer  kept for backward MiB  peak in forward MiB  peak in backward MiB\n"
        "fc     1.00                   2.00                 0.50\n");
  CHECK(fulgur::detail::memory_table({}, {}) == "action  calls  device  peak MiB  kept MiB\n");
}

TEST_CASE("a GPU's memory is that of its allocator, also what it reserves", "[gpu]") {
  require_gpus(1);
  const Json all =
      memory_of(std::make_shared<TwoLayers>(), regression_data(256, 0, 256, false), {}, [](TrainerOptions& options) {
        options.accelerator = "cuda";
        options.devices = 1;
      });
  for (const Json& row : all.at("actions")) {
    if (row.at("action") != "backward" || row.at("device") == "cpu") continue;
    CHECK(row.at("peak_allocated_bytes") >= 256 * 1024 * 4);
    CHECK(row.at("peak_reserved_bytes") >= row.at("peak_allocated_bytes"));
  }
  CHECK(memory_row(all, "layers", "layer", "wide").at("kept_bytes") >= 256 * 1024 * 4);
}

}  // namespace memory_profiler_test
