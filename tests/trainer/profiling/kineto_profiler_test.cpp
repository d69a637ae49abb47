#include "fulgur/callbacks/chrome_trace.h"

#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

namespace chrome_trace_test {

using namespace fulgur;
using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

// How often each name is in the trace that a run of ten batches wrote; nullopt if it wrote none.
std::optional<std::map<std::string, int64_t>> recorded(const TemporaryFolder& folder,
                                                       const ChromeTrace::Options& options, bool fails = false) {
  struct Failing : SelfPlanned {
    bool fails = false;
    void on_train_batch_end(const StepOutput&, const Batch&, int64_t i) override {
      if (fails && i == 4) throw Error("on purpose");
    }
  };
  auto module = std::make_shared<Failing>();
  module->fails = fails;
  TrainerComponents components;
  components.add(std::make_shared<ChromeTrace>(options));
  Trainer trainer(quiet(folder), components);
  if (fails)
    CHECK_THROWS(trainer.fit(module, regression_data()));
  else
    trainer.fit(module, regression_data());
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    if (entry.path().filename() != "trace_rank0.json") continue;
    std::ifstream file(entry.path());
    std::map<std::string, int64_t> counts;
    const auto trace = nlohmann::json::parse(file);
    for (const auto& event : trace.at("traceEvents"))
      if (event.value("ph", "") == "X") ++counts[event.at("name").get<std::string>()];
    return counts;
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("ChromeTrace records the configured number of batches, and nothing of the others") {
  TemporaryFolder three, one, none;
  const auto counts = recorded(three, {.first_batch = 2, .batches = 3});
  REQUIRE(counts);
  CHECK(counts->at("aten::mse_loss") == 3);
  CHECK(counts->at("aten::_fused_sgd_") == 3);
  CHECK(counts->contains("autograd::engine::evaluate_function: MseLossBackward0"));
  CHECK(recorded(one, {.first_batch = 0, .batches = 1})->at("aten::mse_loss") == 1);
  CHECK_FALSE(recorded(none, {.first_batch = 10, .batches = 1}));
}

TEST_CASE("ChromeTrace writes what it has if the run ends inside its batches, also with an exception") {
  TemporaryFolder early, failed;
  CHECK(recorded(early, {.first_batch = 8, .batches = 50})->at("aten::_fused_sgd_") == 2);
  CHECK(recorded(failed, {.first_batch = 3, .batches = 50}, true)->at("aten::_fused_sgd_") == 2);
}

}  // namespace chrome_trace_test
