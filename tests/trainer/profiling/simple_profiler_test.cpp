// `profiler: simple`: how often each action ran, and how long it took.
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <nlohmann/json.hpp>
#include <thread>

#include "services/action_times.h"
#include "support/gpu.h"
#include "support/temporary_folder.h"

namespace action_times_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using fulgur::detail::ActionTimes;
using Json = nlohmann::json;

namespace {

struct Slow : Callback {
  void on_train_batch_end(RunContext&, const StepOutput&, const Batch&, int64_t) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  void on_validation_end(RunContext&) override {}
};

// Two epochs of 4 batches and 2 steps, with a validation of one batch after each.
Json profile(const TemporaryFolder& folder, const std::function<void(TrainerOptions&)>& change,
             const std::shared_ptr<Slow>& slow = std::make_shared<Slow>()) {
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.accumulate_grad_batches = 2;
  options.gradient_clip_val = 1.0;
  options.profiler = ProfilerKind::simple;
  change(options);
  TrainerComponents components;
  components.add(slow);
  components.loggers = {std::make_shared<MemoryLogger>()};
  const FitReport report =
      Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data(16, 4, 4, false));
  const std::filesystem::path path = report.run_dir / "profile.json";
  return std::filesystem::exists(path) ? Json::parse(read_text(path)) : Json();
}

Json action(const Json& all, const std::string& name) {
  for (const Json& each : all.at("actions"))
    if (each.at("action") == name) return each;
  FAIL("no action " << name << " in " << all.dump(2));
  return {};
}

}  // namespace

TEST_CASE("the profile counts each action of a fit") {
  const TemporaryFolder folder;
  const Json all = profile(folder, [](TrainerOptions&) {});
  const std::vector<std::pair<std::string, int>> expected = {{"training_batch", 8},
                                                             {"training_step", 8},
                                                             {"backward", 8},
                                                             {"optimizer_step", 4},
                                                             {"optimizer_zero_grad", 4},
                                                             {"configure_gradient_clipping", 4},
                                                             {"validation", 2},
                                                             {"validation_step", 2},
                                                             {"batch_to_device", 8},
                                                             {"Slow.on_train_batch_end", 8},
                                                             {"Slow.on_validation_end", 2},
                                                             {"Slow.on_train_start", 1},
                                                             {"MemoryLogger.log_metrics", 6}};
  for (const auto& [name, calls] : expected) {
    CAPTURE(name);
    CHECK(action(all, name).at("calls") == calls);
    CHECK(action(all, name).at("host_s") >= 0.0);
    CHECK_FALSE(action(all, name).contains("device_s"));
  }
  CHECK(action(all, "Slow.on_train_batch_end").at("host_s") >= 0.04);
  CHECK(action(all, "training_batch").at("host_s") >= action(all, "Slow.on_train_batch_end").at("host_s"));
  CHECK(all.at("elapsed_s") >= action(all, "training_batch").at("host_s"));
}

TEST_CASE("a call that a filter prevents is not counted") {
  const TemporaryFolder folder;
  auto slow = std::make_shared<Slow>();
  slow->set_common_options({.every = {}, .from = {}, .until = {}, .once = *Interval::parse("2ep")});
  const Json all = profile(
      folder, [](TrainerOptions&) {}, slow);
  CHECK(action(all, "Slow.on_train_batch_end").at("calls") == 4);
  CHECK(action(all, "Slow.on_validation_end").at("calls") == 1);
  CHECK(action(all, "Slow.on_train_epoch_end").at("calls") == 1);
}

TEST_CASE("nothing is measured without the option") {
  const TemporaryFolder folder;
  CHECK(profile(folder, [](TrainerOptions& options) { options.profiler = ProfilerKind::none; }).is_null());
}

TEST_CASE("a run that fails prints what it has measured") {
  struct Failing : SelfPlanned {
    StepOutput training_step(const Batch& batch, int64_t i) override {
      if (i == 2) throw std::runtime_error("broken");
      return SelfPlanned::training_step(batch, i);
    }
  };
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.profiler = ProfilerKind::simple;
  Trainer trainer(options);
  CHECK_THROWS_WITH(trainer.fit(std::make_shared<Failing>(), regression_data(16, 0, 4, false)),
                    ContainsSubstring("broken"));
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    if (entry.path().filename() == "profile.json") found.push_back(entry.path());
  REQUIRE(found.size() == 1);
  CHECK(action(Json::parse(read_text(found[0])), "training_step").at("calls") == 3);
}

TEST_CASE("the table has a row for each action, with its share of the time") {
  const std::string table =
      fulgur::detail::action_table({{.action = "backward", .calls = 4, .host_s = 2, .device_s = 1.5},
                                    {.action = "next_batch", .calls = 1, .host_s = 0.5, .device_s = {}}},
                                   4);
  CHECK(table ==
        "action      calls  mean ms  total s  share %  device s\n"
        "backward    4      500.000  2.000    50.0     1.500\n"
        "next_batch  1      500.000  0.500    12.5     \n");
}

TEST_CASE("a GPU's time is that of its stream", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  const auto on_gpu = [](TrainerOptions& options) {
    options.accelerator = "cuda";
    options.devices = 1;
  };
  const Json all = profile(folder, on_gpu);
  for (const char* name : {"training_step", "backward", "optimizer_step"}) {
    CAPTURE(name);
    CHECK(action(all, name).at("device_s") >= 0.0);
  }
  const Json captured = profile(TemporaryFolder(), [&](TrainerOptions& options) {
    on_gpu(options);
    options.cuda_graph = true;
    options.accumulate_grad_batches = 1;
  });
  CHECK(action(captured, "captured_step").at("calls") == 8);
}

}  // namespace action_times_test
