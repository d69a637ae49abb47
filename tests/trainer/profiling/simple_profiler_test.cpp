// `profiler: simple`: how often each action ran, and how long it took. Also what applies to every profiler.
#include "trainer/boring.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "fulgur/strategies/single_device.h"
#include "fulgur/trainer/config.h"
#include "profiling/simple_profiler.h"
#include "support/fake_device.h"
#include "support/gpu.h"
#include "support/shown_lines.h"
#include "support/temporary_folder.h"

namespace simple_profiler_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using fulgur::detail::SimpleProfiler;
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
  options.profiler = Spec<Profiler>("simple");
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
  CHECK(profile(folder, [](TrainerOptions& options) { options.profiler = Spec<Profiler>("none"); }).is_null());
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
  options.profiler = Spec<Profiler>("simple");
  Trainer trainer(options);
  CHECK_THROWS_WITH(trainer.fit(std::make_shared<Failing>(), regression_data(16, 0, 4, false)),
                    ContainsSubstring("broken"));
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    if (entry.path().filename() == "profile.json") found.push_back(entry.path());
  REQUIRE(found.size() == 1);
  CHECK(action(Json::parse(read_text(found[0])), "training_step").at("calls") == 3);
}

TEST_CASE("only the steps after skip_first are measured, and as many as the options say") {
  const TemporaryFolder folder;
  auto slow = std::make_shared<Slow>();
  const Json all = profile(
      folder,
      [](TrainerOptions& options) {
        options.limit_val_batches = BatchLimit(0);
        options.profiler = Spec<Profiler>("simple");
        auto& chosen = static_cast<OptionsOf<SimpleProfiler::Options>&>(options.profiler.options()).value;
        chosen.skip_first = 2;
        chosen.steps = 3;
      },
      slow);
  CHECK(all.at("steps") == 3);
  CHECK(action(all, "training_batch").at("calls") == 3);
  CHECK(action(all, "next_batch").at("calls") == 3);
  CHECK(action(all, "optimizer_step").at("calls") == 1);  // a window is two batches: the fourth batch steps
  // The other five batches, of 5 ms each, do not count.
  CHECK(all.at("elapsed_s") >= 0.015);
  CHECK(action(all, "Slow.on_train_batch_end").at("calls") == 3);
}

TEST_CASE("the time of an action contains the actions inside it, and its own time does not") {
  SimpleProfiler profiler({.skip_first = 0, .steps = 0});
  profiler.start({});
  const ProfiledAction outer{.name = "outer", .index = 0}, inner{.name = "inner", .index = 1};
  profiler.begin(outer);
  for (int i = 0; i < 2; ++i) {
    profiler.begin(inner);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    profiler.end(inner);
  }
  profiler.end(outer);
  profiler.step_done();
  const auto rows = profiler.rows();
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].action == "outer");
  CHECK(rows[1].calls == 2);
  CHECK(rows[1].host_s >= 0.02);
  CHECK(rows[0].host_s >= rows[1].host_s);
  CHECK(std::abs(rows[0].own_s - (rows[0].host_s - rows[1].host_s)) < 1e-9);
  CHECK(rows[1].own_s == rows[1].host_s);
  CHECK(profiler.steps() == 1);
  CHECK(profiler.steps_s() >= rows[0].host_s);
}

TEST_CASE("the wait for an exchange is the end of the backward in which it began") {
  SimpleProfiler profiler({.skip_first = 0, .steps = 0});
  profiler.start({});
  const ProfiledAction backward{.name = "backward", .index = 0};
  profiler.begin(backward);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  profiler.exchange_is_awaited();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  profiler.end(backward);
  profiler.begin(backward);  // inside a window of accumulation there is no exchange
  profiler.end(backward);
  const auto rows = profiler.rows();
  REQUIRE(rows.size() == 2);
  CHECK(rows[1].action == "gradient_exchange");
  CHECK(rows[1].calls == 1);
  CHECK(rows[1].host_s >= 0.005);
  CHECK(rows[1].host_s <= rows[0].host_s - 0.01);
}

namespace {

// Writes down what it is told.
struct Scribe final : Profiler {
  std::vector<std::string> calls;
  ProfiledRun run;
  int64_t steps = 0, open = 0, stops = 0;
  void start(const ProfiledRun& started) override { run = started; }
  void begin(const ProfiledAction& action) override {
    calls.push_back(action.name);
    ++open;
  }
  void end(const ProfiledAction&) noexcept override { --open; }
  void step_done() override { ++steps; }
  std::optional<Profile> stop() override {
    ++stops;
    return Profile{.table = "my table\nof two lines\n", .json = R"({"mine": 1})"};
  }
};

}  // namespace

TEST_CASE("a program's own profiler gets the actions, the steps and the run, and its result is written") {
  const TemporaryFolder folder;
  auto scribe = std::make_shared<Scribe>();
  TrainerComponents components;
  components.profiler = scribe;
  Trainer trainer(quiet(folder), components);
  FitReport report;
  const std::string shown =
      shown_lines([&] { report = trainer.fit(std::make_shared<SelfPlanned>(), regression_data(16, 4, 4, false)); });
  CHECK_THAT(shown, ContainsSubstring("profile of fit: my table\nof two lines\n"));
  CHECK(scribe->steps == 4);
  CHECK(scribe->open == 0);
  CHECK(scribe->stops == 1);
  CHECK(scribe->run.run_dir == report.run_dir);
  CHECK(scribe->run.device.is_cpu());
  CHECK(std::ranges::count(scribe->calls, "training_step") == 4);
  CHECK(std::ranges::count(scribe->calls, "validation") == 1);
  CHECK(Json::parse(read_text(report.run_dir / "profile.json")).at("mine") == 1);
  trainer.validate(std::make_shared<SelfPlanned>(), regression_data(16, 12, 4, false));
  CHECK(scribe->run.fn == TrainerFn::validate);
  CHECK(scribe->steps == 4 + 3);  // batches of the evaluation
}

TEST_CASE("one profiler measures the runs of its Trainer one after another") {
  const TemporaryFolder folder;
  TrainerComponents components;
  components.profiler = std::make_shared<SimpleProfiler>(SimpleProfiler::Options{});
  Trainer trainer(quiet(folder), components);
  const auto module = std::make_shared<SelfPlanned>();
  trainer.fit(module, regression_data(16, 4, 4, false));
  const EvalReport report = trainer.test(module, regression_data(16, 12, 4, false));
  const Json all = Json::parse(read_text(report.run_dir / "profile.json"));
  CHECK(all.at("steps") == 3);
  CHECK(action(all, "test_step").at("calls") == 3);
  for (const Json& each : all.at("actions")) CHECK(each.at("action") != "training_step");
}

TEST_CASE("a run that resumes in its folder keeps the profile of the run before") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.profiler = Spec<Profiler>("simple");
  const auto data = regression_data(16, 0, 4, false);
  const FitReport first = Trainer(options).fit(std::make_shared<SelfPlanned>(), data);
  REQUIRE(first.last_checkpoint);
  const std::string kept = read_text(first.run_dir / "profile.json");
  FitReport last = first;
  for (const char* name : {"profile-v1.json", "profile-v2.json"}) {
    CAPTURE(name);
    *options.max_epochs += 1;
    last = Trainer(options).fit(std::make_shared<SelfPlanned>(), data, last.last_checkpoint->string());
    REQUIRE(last.run_dir == first.run_dir);
    REQUIRE(last.last_checkpoint);
    CHECK(Json::parse(read_text(first.run_dir / name)).at("actions").size() > 3);
  }
  CHECK(read_text(first.run_dir / "profile.json") == kept);
  for (const auto& entry : std::filesystem::directory_iterator(first.run_dir))
    CHECK(entry.path().filename().string().find("profile.json.tmp") == std::string::npos);
}

TEST_CASE("a run that ends before skip_first says that nothing was measured, and writes no file") {
  const TemporaryFolder folder;
  TrainerComponents components;
  components.profiler = std::make_shared<SimpleProfiler>(SimpleProfiler::Options{.skip_first = 5, .steps = 0});
  FitReport report;
  const std::string shown = shown_lines([&] {
    report = Trainer(quiet(folder), components).fit(std::make_shared<SelfPlanned>(), regression_data(16, 0, 4, false));
  });
  CHECK_THAT(shown, ContainsSubstring(
                        "profile of fit: nothing was measured: the run ended after 4 steps, and skip_first is 5"));
  CHECK_FALSE(std::filesystem::exists(report.run_dir / "profile.json"));
}

TEST_CASE("an abandoned profiler counts what the device has reached, and does not wait for it") {
  auto& device = FakeDevice::get();
  device.behind_ms = 0;
  SimpleProfiler profiler({.skip_first = 0, .steps = 0});
  ProfiledRun run;
  run.device = FakeDevice::device();
  profiler.start(run);
  const ProfiledAction step{.name = "training_step", .index = 0};
  for (const double behind : {0.0, 1000.0}) {  // the device hangs in the second
    profiler.begin(step);
    device.now_ms += 5;
    device.behind_ms = behind;
    profiler.end(step);
    profiler.step_done();
  }
  const int64_t waits = device.waits;
  profiler.abandon();
  const auto result = profiler.stop();
  REQUIRE(result);
  CHECK(device.waits == waits);
  const auto rows = profiler.rows();
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].calls == 2);
  CHECK(std::abs(rows[0].device_s.value_or(0) - 0.005) < 1e-9);
  profiler.steps_s();
  CHECK(device.waits == waits);
}

TEST_CASE("a rank that fails alone leaves the other ranks before its profiler ends") {
  struct Group : Strategy {  // seems to have another rank from the failure on
    SingleDeviceStrategy inner;
    int64_t ranks = 1;
    std::vector<std::string>* order = nullptr;
    std::string name() const override { return "group"; }
    void configure(StrategySetup setup) override { inner.configure(std::move(setup)); }
    at::Device device() const override { return inner.device(); }
    int64_t rank() const override { return 0; }
    int64_t world_size() const override { return ranks; }
    Collectives& collectives() override { return inner.collectives(); }
    Precision& precision() override { return inner.precision(); }
    void attach(LightningModule& m) override { inner.attach(m); }
    void backward(LightningModule& m, const Tensor& loss, GradSync sync, const BackwardOptions& o) override {
      inner.backward(m, loss, sync, o);
    }
    void abandon() noexcept override { order->emplace_back("strategy"); }
  };
  struct Ending : Profiler {
    std::vector<std::string>* order = nullptr;
    void begin(const ProfiledAction&) override {}
    void end(const ProfiledAction&) noexcept override {}
    void abandon() override { order->emplace_back("profiler"); }
    std::optional<Profile> stop() override {
      order->emplace_back("stop");
      return std::nullopt;
    }
  };
  struct Fails : SelfPlanned {
    std::shared_ptr<Group> group;
    StepOutput training_step(const Batch&, int64_t) override {
      group->ranks = 2;
      throw std::runtime_error("alone");
    }
  };
  const TemporaryFolder folder;
  std::vector<std::string> order;
  const auto group = std::make_shared<Group>();
  const auto ending = std::make_shared<Ending>();
  group->order = ending->order = &order;
  const auto module = std::make_shared<Fails>();
  module->group = group;
  TrainerComponents components;
  components.strategy = group;
  components.profiler = ending;
  CHECK_THROWS_WITH(Trainer(quiet(folder), components).fit(module, regression_data(16, 0, 4, false)),
                    ContainsSubstring("alone"));
  CHECK(order == std::vector<std::string>{"strategy", "profiler", "stop"});
}

TEST_CASE("a profiler is written as a name, with its options, or not at all") {
  const auto chosen = [](const char* text) {
    Problems problems;
    const ConfigNode node = parse_yaml(std::string("trainer:\n  profiler: ") + text + "\n", "here.yaml", problems);
    return config_from_node(node).trainer.profiler;
  };
  CHECK(chosen("kineto").class_path() == "kineto");
  CHECK(chosen("none").class_path() == "none");
  CHECK_THROWS_WITH(chosen("null"), ContainsSubstring("leave the key out"));
  const auto simple = chosen("{class_path: simple, init_args: {skip_first: 7}}");
  CHECK(static_cast<const OptionsOf<SimpleProfiler::Options>&>(simple.options()).value.skip_first == 7);
  CHECK_THROWS_WITH(chosen("simpel"), ContainsSubstring("did you mean 'simple'"));
  CHECK_THROWS_WITH(chosen("{class_path: simple, init_args: {skip: 7}}"), ContainsSubstring("skip_first"));
  CHECK(TrainerOptions().profiler.class_path() == "none");
}

TEST_CASE("the table has a row for each action, with its share of the time") {
  const std::string table =
      fulgur::detail::action_table({{.action = "backward", .calls = 4, .host_s = 2, .own_s = 2, .device_s = 1},
                                    {.action = "next_batch", .calls = 1, .host_s = 0.5, .own_s = 0.5, .device_s = {}}},
                                   4);
  CHECK(table ==
        "action      calls  mean ms  total s  share %  device mean ms  device s  device share %\n"
        "backward    4      500.000  2.000    50.0     250.000         1.000     25.0\n"
        "next_batch  1      500.000  0.500    12.5\n");
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
    options.capture = true;
    options.accumulate_grad_batches = 1;
  });
  CHECK(action(captured, "captured_step").at("calls") == 8);
}

}  // namespace simple_profiler_test
