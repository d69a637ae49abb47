// `profiler: nvtx` and `itt`: ranges for external tools. A stand-in for the tool's library records them.
#include "profiling/range_profilers.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "support/expect_error.h"
#include "trainer/boring.h"

namespace range_profilers_test {

using namespace fulgur;
using namespace fulgur::test;
using fulgur::detail::IttProfiler;
using fulgur::detail::NvtxProfiler;
using fulgur::detail::RangeProfiler;
using torch::profiler::impl::ProfilerStubs;

namespace {

struct Tool final : ProfilerStubs {
  bool there = true;
  mutable std::vector<std::string> begun, open;
  mutable bool balanced = true;
  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*, int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void mark(const char*) const override {}
  void rangePush(const char* name) const override {
    begun.emplace_back(name);
    open.emplace_back(name);
  }
  void rangePop() const override {
    balanced &= !open.empty();
    if (!open.empty()) open.pop_back();
  }
  bool enabled() const override { return there; }
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}

  int64_t count(const std::string& name) const {
    return std::ranges::count_if(begun, [&](const std::string& each) { return each.starts_with(name); });
  }
};

using Register = void (*)(ProfilerStubs*);

// Takes the place of the tool's library during its lifetime.
class StandIn {
 public:
  StandIn(Tool& tool, Register install, const ProfilerStubs* before)
      : install_(install), before_(const_cast<ProfilerStubs*>(before)) {
    install_(&tool);
  }
  ~StandIn() { install_(before_); }
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

 private:
  Register install_;
  ProfilerStubs* before_;
};

StandIn stand_in_for_nvtx(Tool& tool) {
  return StandIn(tool, &torch::profiler::impl::registerCUDAMethods, torch::profiler::impl::cudaStubs());
}
StandIn stand_in_for_itt(Tool& tool) {
  return StandIn(tool, &torch::profiler::impl::registerITTMethods, torch::profiler::impl::ittStubs());
}

// Fits three batches.
void fit_with(const std::shared_ptr<Profiler>& profiler, bool fails = false) {
  struct Failing : SelfPlanned {
    bool fails = false;
    StepOutput training_step(const Batch& batch, int64_t i) override {
      if (fails && i == 1) throw std::runtime_error("broken");
      return SelfPlanned::training_step(batch, i);
    }
  };
  const TemporaryFolder folder;
  auto module = std::make_shared<Failing>();
  module->fails = fails;
  TrainerComponents components;
  components.profiler = profiler;
  Trainer trainer(quiet(folder), components);
  if (fails)
    CHECK_THROWS(trainer.fit(module, regression_data(12, 0, 4, false)));
  else
    trainer.fit(module, regression_data(12, 0, 4, false));
  CHECK(torch::profiler::impl::profilerType() == torch::profiler::impl::ActiveProfilerType::NONE);
}

void check_ranges(const Tool& tool, bool operators) {
  CHECK(tool.count("training_step") == 3);
  CHECK(tool.count("backward") == 3);
  CHECK(tool.count("next_batch") >= 3);
  CHECK((tool.count("aten::mse_loss") > 0) == operators);
  CHECK(tool.balanced);
  CHECK(tool.open.empty());
}

}  // namespace

TEST_CASE("nvtx marks each action, and each operation unless the options say otherwise") {
  for (const bool operators : {true, false}) {
    CAPTURE(operators);
    Tool tool;
    const StandIn there = stand_in_for_nvtx(tool);
    fit_with(std::make_shared<NvtxProfiler>(RangeProfiler::Options{.operators = operators}));
    check_ranges(tool, operators);
  }
}

TEST_CASE("itt marks each action, and each operation unless the options say otherwise") {
  for (const bool operators : {true, false}) {
    CAPTURE(operators);
    Tool tool;
    const StandIn there = stand_in_for_itt(tool);
    fit_with(std::make_shared<IttProfiler>(RangeProfiler::Options{.operators = operators}));
    check_ranges(tool, operators);
  }
}

TEST_CASE("ranges are closed if the run fails") {
  Tool tool;
  const StandIn there = stand_in_for_itt(tool);
  fit_with(std::make_shared<IttProfiler>(RangeProfiler::Options{}), /*fails=*/true);
  CHECK(tool.count("training_step") == 2);
  CHECK(tool.balanced);
  CHECK(tool.open.empty());
}

TEST_CASE("a LibTorch without the hooks is an error that says what to do") {
  Tool none;
  none.there = false;
  const auto message = [](const std::shared_ptr<Profiler>& profiler) {
    const TemporaryFolder folder;
    TrainerComponents components;
    components.profiler = profiler;
    Trainer trainer(quiet(folder), components);
    return message_of<ConfigError>([&] { trainer.fit(std::make_shared<SelfPlanned>(), regression_data()); });
  };
  using Catch::Matchers::ContainsSubstring;
  {
    const StandIn there = stand_in_for_nvtx(none);
    CHECK_THAT(message(std::make_shared<NvtxProfiler>(RangeProfiler::Options{})),
               ContainsSubstring("[trainer.profiler] nvtx needs LibTorch's CUDA library"));
  }
  {
    const StandIn there = stand_in_for_itt(none);
    CHECK_THAT(message(std::make_shared<IttProfiler>(RangeProfiler::Options{})),
               ContainsSubstring("[trainer.profiler] itt needs a LibTorch that was built with ITT"));
  }
  CHECK(none.begun.empty());
}

}  // namespace range_profilers_test
