#include "fulgur/callbacks/throughput_monitor.h"

#include "support/fake_device_strategy.h"
#include "trainer/boring.h"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <thread>

#include "callbacks/scored.h"
#include "fulgur/core/device/device_clock.h"
#include "fulgur/core/text/log.h"
#include "peak_flops.h"
#include "support/expect_error.h"

namespace throughput_monitor_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
using fulgur::detail::MatmulKind;

namespace {

using Values = std::vector<std::pair<int64_t, double>>;

void sleep_ms(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

/// Steps and validation take a defined time.
struct Timed : SelfPlanned {
  int64_t step_ms = 0, validation_ms = 0;
  double device_ms = 0;
  bool tells_tokens = false;
  StepOutput training_step(const Batch& batch, int64_t i) override {
    sleep_ms(step_ms);
    FakeDevice::get().now_ms += device_ms;
    return SelfPlanned::training_step(batch, i);
  }
  Outputs validation_step(const Batch& batch, int64_t i, int64_t l) override {
    sleep_ms(validation_ms);
    return SelfPlanned::validation_step(batch, i, l);
  }
  Batch transfer_batch_to_device(Batch batch, const at::Device&, int64_t) override { return batch; }
  std::optional<int64_t> num_tokens(const Batch& batch) const override {
    return tells_tokens ? std::optional(7 * batch.size()) : std::nullopt;
  }
};

/// Regression data that come slowly.
struct SlowLoader : DataLoader {
  using DataLoader::DataLoader;
  int64_t batch_ms = 0;
  bool next(Batch& out) override {
    sleep_ms(batch_ms);
    return DataLoader::next(out);
  }
};

struct Logged {
  std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
  Values values(const std::string& name) const { return logger->values(name); }
  bool has(const std::string& name) const { return !values(name).empty(); }
};

// Ten batches of four samples.
Logged train(ThroughputMonitor::Options options, const std::shared_ptr<Timed>& module, int64_t batch_ms = 0,
             bool on_fake_device = false, int64_t every = 1) {
  TemporaryFolder folder;
  TrainerOptions trainer_options = quiet(folder);
  trainer_options.enable_checkpointing = false;
  trainer_options.log_every_n_steps = every;
  if (on_fake_device)
    trainer_options.limit_val_batches = 0;
  else
    trainer_options.val_check_interval = 5;
  Logged logged;
  TrainerComponents components;
  components.loggers = {logged.logger};
  components.add(std::make_shared<ThroughputMonitor>(std::move(options)));
  if (on_fake_device) components.strategy = std::make_shared<OnFakeDevice>();
  const auto slow =
      std::make_shared<SlowLoader>(std::make_shared<TensorDataset>(regression(40)), DataLoaderOptions{.batch_size = 4});
  slow->batch_ms = batch_ms;
  const auto validation =
      std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(4)), DataLoaderOptions{.batch_size = 4});
  Trainer(trainer_options, components).fit(module, DataSource(slow, {validation}));
  return logged;
}

}  // namespace

TEST_CASE(
    "throughput on the CPU: batches and samples a second of each window, without validation and the first batch") {
  const auto module = std::make_shared<Timed>();
  module->step_ms = 10;
  module->validation_ms = 800;
  const Logged logged = train({.window_size = 3}, module);
  const Values batches = logged.values("device/batches_per_sec"), samples = logged.values("device/samples_per_sec");
  // The first batch opens the first window: batches 2 to 4, 5 to 7 and 8 to 10.
  REQUIRE(batches.size() == 3);
  REQUIRE(samples.size() == 3);
  const int64_t steps[] = {4, 7, 10};
  for (size_t i = 0; i < 3; ++i) {
    CHECK(batches[i].first == steps[i]);
    CHECK(batches[i].second <= 100);
    CHECK(batches[i].second > 4);  // with the 800 ms of validation in the second window it would be at most 3.75
    CHECK(samples[i].second == Approx(4 * batches[i].second));
  }
  CHECK_FALSE(logged.has("device/tokens_per_sec"));
  CHECK_FALSE(logged.has("device/flops_per_sec"));
  CHECK_FALSE(logged.has("global/batches_per_sec"));
}

TEST_CASE("throughput: a fit that ends before its first window does says so") {
  const auto reports = [](int64_t window) {
    const LogLines lines;
    train({.window_size = window}, std::make_shared<Timed>());
    return lines.count("[throughput_monitor.no_window]");
  };
  CHECK(reports(100) == 1);
  CHECK(reports(3) == 0);
}

TEST_CASE("throughput: a row has the mean of the windows that ended since the last one") {
  const auto module = std::make_shared<Timed>();
  module->device_ms = 500;
  const Logged each = train({.window_size = 1}, module, 0, true),
               every_fifth = train({.window_size = 1}, module, 0, true, 5);
  // The first batch opens the first window, and each is logged when the next one ends.
  CHECK(each.values("device/batches_per_sec").size() == 8);
  CHECK(every_fifth.values("device/batches_per_sec") == Values{{5, 2.0}, {10, 2.0}});
}

TEST_CASE("throughput: the share of time that training waited for the loader") {
  const auto module = std::make_shared<Timed>();
  module->step_ms = 20;
  const auto waiting = [&](int64_t batch_ms) {
    const Values shares = train({.window_size = 9}, module, batch_ms).values("data_wait_share");
    REQUIRE(shares.size() == 1);
    return shares[0].second;
  };
  const double none = waiting(0), much = waiting(80);
  CHECK(none >= 0);
  CHECK(none < 0.4);
  CHECK(much > 0.5);
  CHECK(much < 1);
}

TEST_CASE(
    "throughput: tokens if the module counts them, FLOP/s and mfu if they are given, names with another separator") {
  const auto module = std::make_shared<Timed>();
  module->device_ms = 250;
  module->tells_tokens = true;
  const Logged logged =
      train({.window_size = 3, .separator = ".", .flops_per_sample = 5e9, .peak_flops = 1e12}, module, 0, true);
  // Four batches a second, by the device's clock: 16 samples, 112 tokens, 80 GFLOP.
  CHECK(logged.values("device.batches_per_sec") == Values{{7, 4.0}, {10, 4.0}});
  CHECK(logged.values("device.samples_per_sec") == Values{{7, 16.0}, {10, 16.0}});
  CHECK(logged.values("device.tokens_per_sec") == Values{{7, 112.0}, {10, 112.0}});
  CHECK(logged.values("device.flops_per_sec") == Values{{7, 80e9}, {10, 80e9}});
  CHECK(logged.values("device.mfu") == Values{{7, 0.08}, {10, 0.08}});
}

TEST_CASE("throughput on a device: no wait for it, unless it is a whole window behind") {
  FakeDevice& fake = FakeDevice::get();
  const auto module = std::make_shared<Timed>();
  module->device_ms = 100;
  const auto waits = [&](double behind_ms) {
    fake.behind_ms = behind_ms;
    const int64_t before = fake.waits;
    CHECK(train({.window_size = 3}, module, 0, true).values("device/batches_per_sec") == Values{{7, 10.0}, {10, 10.0}});
    fake.behind_ms = 0;
    return fake.waits - before;
  };
  CHECK(waits(0) == 0);
  CHECK(waits(250) == 0);
  CHECK(waits(350) == 2);
  CHECK(fake.events == 0);
}

TEST_CASE("throughput: peak_flops alone is refused, an unknown peak is reported once and leaves mfu out") {
  CHECK_THAT(message_of<ConfigError>([] { ThroughputMonitor monitor({.peak_flops = 1e12}); }),
             ContainsSubstring("peak_flops has no effect without flops_per_sample"));
  std::string lines;
  log::reset_warnings();
  log::set_sink([](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line; },
                &lines);
  const Logged logged = train({.window_size = 3, .flops_per_sample = 1e6}, std::make_shared<Timed>());
  log::set_sink({}, nullptr);
  CHECK(logged.has("device/flops_per_sec"));
  CHECK_FALSE(logged.has("device/mfu"));
  CHECK_THAT(lines, ContainsSubstring("the peak FLOP/s of 'cpu' in 32-true are not known") &&
                        ContainsSubstring("Set peak_flops"));
}

TEST_CASE("peak FLOP/s of GPUs by the names that drivers give") {
  using fulgur::detail::peak_flops;
  CHECK(peak_flops("NVIDIA H200", MatmulKind::half) == 989e12);
  CHECK(peak_flops("NVIDIA H200", MatmulKind::tf32) == 494.5e12);
  CHECK(peak_flops("NVIDIA H200 NVL", MatmulKind::half) == 836e12);
  CHECK(peak_flops("NVIDIA H100 80GB HBM3", MatmulKind::float32) == 67e12);
  CHECK(peak_flops("NVIDIA H100 PCIe", MatmulKind::half) == 756e12);
  CHECK(peak_flops("NVIDIA A100-SXM4-80GB", MatmulKind::half) == 312e12);
  CHECK(peak_flops("NVIDIA A10", MatmulKind::half) == 125e12);
  CHECK(peak_flops("NVIDIA L4", MatmulKind::half) == 121e12);
  CHECK(peak_flops("NVIDIA L40S", MatmulKind::half) == 362e12);
  CHECK(peak_flops("Tesla V100-SXM2-16GB", MatmulKind::half) == 125e12);
  CHECK(peak_flops("Tesla T4", MatmulKind::float32) == 8.1e12);
  // Unsupported formats, parts of a GPU, and unknown devices.
  CHECK_FALSE(peak_flops("Tesla T4", MatmulKind::tf32));
  CHECK_FALSE(peak_flops("NVIDIA A100-SXM4-40GB MIG 1g.5gb", MatmulKind::half));
  CHECK_FALSE(peak_flops("NVIDIA A10G", MatmulKind::half));
  CHECK_FALSE(peak_flops("NVIDIA H20", MatmulKind::half));
  CHECK_FALSE(peak_flops("", MatmulKind::half));
}

TEST_CASE("products of a precision") {
  using fulgur::detail::matmul_kind;
  for (const char* half : {"bf16-mixed", "bf16-true", "16-mixed", "16-true"})
    CHECK(matmul_kind(half, false) == MatmulKind::half);
  CHECK(matmul_kind("32-true", false) == MatmulKind::float32);
  CHECK(matmul_kind("32-true", true) == MatmulKind::tf32);
  CHECK_FALSE(matmul_kind("64-true", true));
}

}  // namespace throughput_monitor_test
