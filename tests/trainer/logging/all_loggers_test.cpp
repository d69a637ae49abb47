// A logger that fails ends the run, but the loggers after it have what was logged.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "support/expect_error.h"
#include "trainer/boring.h"

namespace all_loggers_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

struct Failing : Logger {
  std::string function;
  void start(const std::filesystem::path&, std::optional<int64_t>) override {}
  void log_metrics(const Metrics&, int64_t step) override {
    if (step == 3) fail("log_metrics");
  }
  void log_media(const MediaRecord&, int64_t) override { fail("log_media"); }
  void log_artifact(const std::filesystem::path&) override { fail("log_artifact"); }
  void finalize(RunStatus) noexcept override {}
  void fail(const std::string& called) const {
    if (called == function) throw std::runtime_error(called + " failed");
  }
};

struct Logging : Callback {
  std::filesystem::path file;
  void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t batch_idx) override {
    if (batch_idx != 1) return;
    run.log_media(TextRecord{"note", "text"});
    run.log_artifact(file);
  }
};

}  // namespace

TEST_CASE("an exception of a logger does not cost the other loggers a row, media or an artifact") {
  const TemporaryFolder folder;
  const std::string function = GENERATE("log_metrics", "log_media", "log_artifact");
  CAPTURE(function);
  const auto failing = std::make_shared<Failing>();
  failing->function = function;
  const auto memory = std::make_shared<MemoryLogger>();
  const auto callback = std::make_shared<Logging>();
  callback->file = folder / "file";
  write_text(folder / "file", "text");
  TrainerOptions options = quiet(folder);
  options.max_epochs = 1;
  TrainerComponents components;
  components.loggers = {failing, memory};
  components.add(callback);
  const std::string message = message_of<std::runtime_error>(
      [&] { Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data()); });
  CHECK(message == function + " failed");
  if (function == "log_metrics") {
    const auto values = memory->values("train_loss");
    CHECK(std::ranges::any_of(values, [](const auto& value) { return value.first == 3; }));
  } else if (function == "log_media") {
    CHECK_FALSE(memory->media.empty());
  } else {
    CHECK_FALSE(memory->artifacts.empty());
  }
}

}  // namespace all_loggers_test
