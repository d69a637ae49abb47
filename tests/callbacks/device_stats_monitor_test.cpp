#include "fulgur/callbacks/device_stats_monitor.h"

#include "support/fake_device_strategy.h"
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>

#include "fulgur/core/device/memory_stats.h"
#include "support/expect_error.h"

namespace device_stats_monitor_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

const std::string kPrefix = "DeviceStatsMonitor.on_train_batch_end/";
const std::vector<std::string> kOfDevice{"allocated_bytes",     "peak_allocated_bytes", "reserved_bytes",
                                         "peak_reserved_bytes", "alloc_retries",        "ooms"};
const std::vector<std::string> kOfCpu{"cpu_percent", "resident_bytes", "memory_percent"};

struct Staying : SelfPlanned {
  Batch transfer_batch_to_device(Batch batch, const at::Device&, int64_t) override { return batch; }
};

// Ten steps, of which every fifth is logged.
std::shared_ptr<MemoryLogger> train(DeviceStatsMonitor::Options options, bool on_fake_device = false,
                                    const CallbackFilter& filter = {}) {
  TemporaryFolder folder;
  TrainerOptions trainer_options = quiet(folder);
  trainer_options.enable_checkpointing = false;
  trainer_options.limit_val_batches = 0;
  trainer_options.log_every_n_steps = 5;
  const auto logger = std::make_shared<MemoryLogger>();
  TrainerComponents components;
  components.loggers = {logger};
  const auto monitor = std::make_shared<DeviceStatsMonitor>(std::move(options));
  monitor->set_common_options(filter);
  components.add(monitor);
  if (on_fake_device) components.strategy = std::make_shared<OnFakeDevice>();
  Trainer(trainer_options, components).fit(std::make_shared<Staying>(), regression_data());
  return logger;
}

bool has(const MemoryLogger& logger, const std::string& key) { return !logger.values(kPrefix + key).empty(); }

}  // namespace

TEST_CASE("device stats: steps that a filter selects are measured, although no row is due, and are in the next row") {
  const auto steps = [](const char* every, const char* once, const char* from) {
    CallbackFilter filter;
    if (every) filter.every = Interval::parse(every);
    if (once) filter.once = Interval::parse(once);
    if (from) filter.from = Interval::parse(from);
    std::vector<int64_t> all;
    for (const auto& [step, value] : train({}, false, filter)->values(kPrefix + "resident_bytes")) all.push_back(step);
    return all;
  };
  CHECK(steps("3st", nullptr, nullptr) == std::vector<int64_t>{5, 10});
  CHECK(steps(nullptr, "7st", nullptr) == std::vector<int64_t>{10});
  CHECK(steps(nullptr, "3st", nullptr) == std::vector<int64_t>{5});
  // Other filters leave the steps to the rows.
  CHECK(steps(nullptr, nullptr, "6st") == std::vector<int64_t>{10});
}

TEST_CASE("device stats on the CPU: load and memory of the process in each row that is written") {
  const auto logger = train({});
  for (const std::string& key : kOfCpu) {
    CAPTURE(key);
    const auto values = logger->values(kPrefix + key);
    REQUIRE(values.size() == 2);
    CHECK(values[0].first == 5);
    CHECK(values[1].first == 10);
  }
  for (const std::string& key : kOfDevice) CHECK_FALSE(has(*logger, key));
  const double resident = logger->values(kPrefix + "resident_bytes")[1].second,
               now = static_cast<double>(process_usage().resident);
  CHECK(resident > 0.5 * now);
  CHECK(resident < 2 * now);
  for (const auto& [step, percent] : logger->values(kPrefix + "cpu_percent")) CHECK(percent > 0);
  const double machine = logger->values(kPrefix + "memory_percent")[0].second;
  CHECK(machine > 0);
  CHECK(machine < 100);
}

TEST_CASE("device stats of a device are its allocator's; those of the CPU are logged on request") {
  auto& stats = FakeDevice::get().stats;
  stats = {};
  stats.allocated_bytes[0].current = 100;
  stats.allocated_bytes[0].peak = 300;
  stats.reserved_bytes[0].current = 400;
  stats.reserved_bytes[0].peak = 500;
  stats.num_alloc_retries = 2;
  stats.num_ooms = 1;
  const auto own = train({}, true), both = train({.cpu_stats = true}, true), neither = train({.cpu_stats = false});
  const double expected[] = {100, 300, 400, 500, 2, 1};
  for (size_t i = 0; i < kOfDevice.size(); ++i) {
    const auto values = own->values(kPrefix + kOfDevice[i]);
    REQUIRE(values.size() == 2);
    CHECK(values[1].second == expected[i]);
  }
  for (const std::string& key : kOfCpu) {
    CHECK_FALSE(has(*own, key));
    CHECK(has(*both, key));
    CHECK_FALSE(has(*neither, key));
  }
}

TEST_CASE("device stats: filter_keys keeps those keys only") {
  const auto logger = train({.filter_keys = {"resident_bytes"}});
  CHECK(has(*logger, "resident_bytes"));
  CHECK_FALSE(has(*logger, "cpu_percent"));
  const std::string message =
      message_of<ConfigError>([] { DeviceStatsMonitor monitor({.filter_keys = {"resident"}}); });
  CHECK_THAT(message,
             Catch::Matchers::ContainsSubstring("'resident'") && Catch::Matchers::ContainsSubstring("resident_bytes"));
}

}  // namespace device_stats_monitor_test
