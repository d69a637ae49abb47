// `profiler: kineto`: a Chrome trace of some steps for each cycle of its schedule.
#include "profiling/kineto_profiler.h"

#include <torch/csrc/profiler/orchestration/observer.h>

#include <catch2/catch_test_macros.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "profiling/step_schedule.h"
#include "support/shown_lines.h"
#include "trainer/boring.h"

namespace kineto_profiler_test {

using namespace fulgur;
using namespace fulgur::test;
using fulgur::detail::KinetoProfiler;
using fulgur::detail::StepSchedule;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

struct Watching : Callback {
  bool fails = false;
  void on_train_batch_end(RunContext&, const StepOutput&, const Batch&, int64_t batch_idx) override {
    if (fails && batch_idx == 4) throw Error("on purpose");
  }
};

struct Traces {
  std::map<std::string, Json> files;  // by name
  // How often each name is in a file.
  std::map<std::string, int64_t> counts(const std::string& name) const {
    std::map<std::string, int64_t> all;
    for (const Json& event : files.at(name).at("traceEvents"))
      if (event.value("ph", "") == "X") ++all[event.at("name").get<std::string>()];
    return all;
  }
};

// What a run of ten batches writes.
Traces traces(const KinetoProfiler::Options& options, bool fails = false) {
  const TemporaryFolder folder;
  auto watching = std::make_shared<Watching>();
  watching->fails = fails;
  TrainerComponents components;
  components.add(watching);
  components.profiler = std::make_shared<KinetoProfiler>(options);
  Trainer trainer(quiet(folder), components);
  if (fails)
    CHECK_THROWS(trainer.fit(std::make_shared<SelfPlanned>(), regression_data()));
  else
    trainer.fit(std::make_shared<SelfPlanned>(), regression_data());
  // The recorder of this thread is free again.
  CHECK(torch::profiler::impl::profilerType() == torch::profiler::impl::ActiveProfilerType::NONE);
  Traces found;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    const std::string name = entry.path().filename().string();
    if (name.find("trace_") != std::string::npos) found.files.emplace(name, Json::parse(read_text(entry.path())));
  }
  return found;
}

std::vector<std::string> names_of(const Traces& traces) {
  std::vector<std::string> names;
  for (const auto& [name, trace] : traces.files) names.push_back(name);
  return names;
}

}  // namespace

TEST_CASE("the schedule is that of torch.profiler") {
  using Phase = StepSchedule::Phase;
  const auto phases = [](const StepSchedule& schedule, int64_t steps) {
    std::string text;
    for (int64_t i = 0; i < steps; ++i) {
      const Phase phase = schedule.at(i);
      text += phase == Phase::wait ? '.' : phase == Phase::warmup ? 'w' : phase == Phase::record ? 'r' : 'R';
    }
    return text;
  };
  CHECK(phases({.skip_first = 2, .wait = 1, .warmup = 1, .active = 3, .repeat = 2}, 16) == "...wrrR.wrrR....");
  CHECK(phases({.skip_first = 0, .wait = 0, .warmup = 0, .active = 1, .repeat = 0}, 3) == "RRR");
  CHECK(phases({.skip_first = 0, .wait = 0, .warmup = 2, .active = 2, .repeat = 1}, 6) == "wwrR..");
  const StepSchedule schedule{.skip_first = 2, .wait = 1, .warmup = 1, .active = 3, .repeat = 2};
  CHECK(schedule.cycle_of(6) == 0);
  CHECK(schedule.cycle_of(7) == 1);
}

TEST_CASE("kineto records the active steps and nothing of the others") {
  const Traces found = traces({.wait = 1, .warmup = 1, .active = 3, .repeat = 1});
  REQUIRE(names_of(found) == std::vector<std::string>{"trace_rank0_cycle0.json"});
  const auto counts = found.counts("trace_rank0_cycle0.json");
  CHECK(counts.at("aten::mse_loss") == 3);
  CHECK(counts.at("aten::_fused_sgd_") == 3);
  CHECK(counts.contains("autograd::engine::evaluate_function: MseLossBackward0"));
  CHECK(counts.contains("ProfilerStep#2"));
  CHECK(counts.contains("ProfilerStep#4"));
  CHECK_FALSE(counts.contains("ProfilerStep#5"));
}

TEST_CASE("the actions of the run, the callbacks and the wait for data are in the trace by name") {
  const Traces found = traces({.wait = 1, .warmup = 0, .active = 2, .repeat = 1});
  const auto counts = found.counts("trace_rank0_cycle0.json");
  for (const char* name : {"training_batch", "next_batch", "batch_to_device", "training_step", "backward",
                           "optimizer_step", "optimizer_zero_grad"}) {
    CAPTURE(name);
    CHECK(counts.at(name) == 2);
  }
  const auto hooks = [&](const std::string& end) {
    int64_t all = 0;
    for (const auto& [name, count] : counts) all += name.ends_with(end) ? count : 0;
    return all;
  };
  CHECK(hooks("Watching.on_train_batch_end") == 2);
}

TEST_CASE("each cycle has its file, until `repeat` cycles or the run have ended") {
  using Names = std::vector<std::string>;
  const KinetoProfiler::Options twice{.wait = 1, .warmup = 0, .active = 2, .repeat = 2};
  const Traces two = traces(twice);
  CHECK(names_of(two) == Names{"trace_rank0_cycle0.json", "trace_rank0_cycle1.json"});
  CHECK(two.counts("trace_rank0_cycle1.json").at("aten::mse_loss") == 2);
  CHECK(two.counts("trace_rank0_cycle1.json").contains("ProfilerStep#4"));
  KinetoProfiler::Options endless = twice;
  endless.repeat = 0;
  CHECK(traces(endless).files.size() == 3);  // steps 1-2, 4-5 and 7-8 of ten
  KinetoProfiler::Options later = twice;
  later.skip_first = 4;
  later.repeat = 1;
  CHECK(traces(later).counts("trace_rank0_cycle0.json").contains("ProfilerStep#5"));
}

TEST_CASE("what was recorded is written if the run ends inside a cycle, also with an exception") {
  const Traces early = traces({.wait = 8, .warmup = 0, .active = 50});
  CHECK(early.counts("trace_rank0_cycle0.json").at("aten::_fused_sgd_") == 2);
  const Traces failed = traces({.wait = 3, .warmup = 0, .active = 50}, true);
  CHECK(failed.counts("trace_rank0_cycle0.json").at("aten::_fused_sgd_") == 2);
  // The run ends before the first active step, in or after the warm-up.
  CHECK(traces({.wait = 9, .warmup = 1, .active = 1}).files.empty());
  CHECK(traces({.wait = 9, .warmup = 2, .active = 1}).files.empty());
}

TEST_CASE("shapes and memory are in the trace if the options say so") {
  const auto with = [](bool shapes, bool memory) {
    const Traces found =
        traces({.wait = 1, .warmup = 0, .active = 1, .record_shapes = shapes, .profile_memory = memory});
    std::pair<bool, bool> seen{false, false};
    for (const Json& event : found.files.at("trace_rank0_cycle0.json").at("traceEvents")) {
      seen.first |= event.contains("args") && event["args"].contains("Input Dims");
      seen.second |= event.value("name", "") == "[memory]";
    }
    return seen;
  };
  CHECK(with(true, false) == std::pair{true, false});
  CHECK(with(false, true) == std::pair{false, true});
}

TEST_CASE("an evaluation is recorded by batches as well") {
  const TemporaryFolder folder;
  TrainerComponents components;
  components.profiler =
      std::make_shared<KinetoProfiler>(KinetoProfiler::Options{.wait = 1, .warmup = 0, .active = 2, .repeat = 1});
  Trainer trainer(quiet(folder), components);
  const EvalReport report = trainer.validate(std::make_shared<SelfPlanned>(), regression_data(8, 20, 4));
  Traces found;
  found.files.emplace("trace", Json::parse(read_text(report.run_dir / "trace_rank0_cycle0.json")));
  CHECK(found.counts("trace").at("aten::mse_loss") == 2);
  CHECK(found.counts("trace").at("validation_step") == 2);
}

TEST_CASE("a trace that cannot be written is reported, and the run goes to its end") {
  struct Blocking : Callback {
    void on_train_start(RunContext& run) override {
      fs::create_directories(run.log_dir() / ".tmp_trace_rank0_cycle0.json" / "x");
    }
  };
  const TemporaryFolder folder;
  TrainerComponents components;
  components.add(std::make_shared<Blocking>());
  components.profiler = std::make_shared<KinetoProfiler>(KinetoProfiler::Options{.wait = 1, .warmup = 0, .active = 1});
  FitReport report;
  const std::string shown = shown_lines(
      [&] { report = Trainer(quiet(folder), components).fit(std::make_shared<SelfPlanned>(), regression_data()); });
  CHECK(report.stop_reason == "max_epochs");
  CHECK(shown.find("error: kineto: the trace could not be written to ") != std::string::npos);
  CHECK_FALSE(fs::exists(report.run_dir / "trace_rank0_cycle0.json"));
}

TEST_CASE("a run that resumes in its folder keeps the traces of the run before") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  TrainerComponents components;  // one object for both runs
  components.profiler =
      std::make_shared<KinetoProfiler>(KinetoProfiler::Options{.wait = 1, .warmup = 0, .active = 2, .repeat = 1});
  const FitReport first = Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data());
  REQUIRE(first.last_checkpoint);
  const std::string kept = read_text(first.run_dir / "trace_rank0_cycle0.json");
  options.max_epochs = 2;
  Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data(), first.last_checkpoint->string());
  CHECK(read_text(first.run_dir / "trace_rank0_cycle0.json") == kept);
  Traces found;
  found.files.emplace("next", Json::parse(read_text(first.run_dir / "trace_rank0_cycle0-v1.json")));
  CHECK(found.counts("next").at("aten::mse_loss") == 2);
  CHECK(found.counts("next").contains("ProfilerStep#1"));
}

TEST_CASE("a run without a folder writes no trace") {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.fast_dev_run.batches = 3;
  TrainerComponents components;
  components.profiler = std::make_shared<KinetoProfiler>(KinetoProfiler::Options{.wait = 0, .warmup = 0, .active = 1});
  Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data());
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("kineto: a run that ends before the first recorded step says so") {
  const auto lines_of = [](int64_t wait) {
    KinetoProfiler::Options options;
    options.wait = wait;
    std::vector<std::string> files;
    const std::string lines = shown_lines([&] { files = names_of(traces(options)); });
    CHECK(files.empty() == (wait == 300));
    return lines;
  };
  CHECK(
      lines_of(300).find("kineto wrote no trace: it records from step 302 on (after skip_first, wait and warmup), and "
                         "this process made only 10 steps") != std::string::npos);
  CHECK(lines_of(2).find("wrote no trace") == std::string::npos);
}

}  // namespace kineto_profiler_test
