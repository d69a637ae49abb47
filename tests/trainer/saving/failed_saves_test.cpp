// Saves that fail one after the other.
#include "saving/failed_saves.h"

#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/core/text/log.h"
#include "support/scarce_memory.h"
#include "trainer/boring.h"

namespace failed_saves_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

TEST_CASE("failed saves are reported at growing intervals, and once when a save succeeds") {
  fulgur::detail::FailedSaves saves;
  CHECK_FALSE(saves.succeeded());
  std::vector<int> reported;
  for (int i = 1; i <= 600; ++i)
    if (const auto message = saves.failed("disk full")) {
      reported.push_back(i);
      CHECK_THAT(*message, ContainsSubstring("disk full"));
      if (i > 1) CHECK_THAT(*message, ContainsSubstring(std::to_string(i) + " checkpoints in a row"));
    }
  CHECK(reported == std::vector<int>{1, 2, 4, 8, 16, 32, 64, 128, 256, 512});
  CHECK_THAT(saves.succeeded().value_or(""), ContainsSubstring("after 600 attempts in a row"));
  CHECK_FALSE(saves.succeeded());
  CHECK(saves.failed("again").has_value());
}

TEST_CASE("F6 with on_save_error: continue, a folder that stays unwritable does not flood the log") {
  // The folder of checkpoints is a file from step 2 to 31.
  struct Blocking : Callback {
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
      const fs::path folder = run.checkpoint_dir(), aside = folder.string() + ".aside";
      if (run.progress().global_step == 2) {
        fs::rename(folder, aside);
        write_text(folder, "");
      } else if (run.progress().global_step == 32) {
        fs::remove(folder);
        fs::rename(aside, folder);
      }
    }
  };
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.on_save_error = OnSaveError::proceed;
  options.async_checkpoint = false;
  ModelCheckpoint::Options saves;
  saves.every_n_train_steps = 1;
  TrainerComponents components;
  components.callbacks = {std::make_shared<Blocking>(), std::make_shared<ModelCheckpoint>(saves)};
  std::vector<std::string> lines;
  log::set_sink([](log::Level, const std::string& line,
                   void* all) { static_cast<std::vector<std::string>*>(all)->push_back(line); },
                &lines);
  const FitReport report = Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data(160));
  log::set_sink(nullptr, nullptr);
  CHECK(report.exit_code == ExitCode::ok);
  const auto count = [&](const std::string& text) {
    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string& line) { return line.find(text) != std::string::npos; });
  };
  CHECK(count("could not be saved") == 5);  // the 1st, 2nd, 4th, 8th and 16th of 30
  CHECK(count("checkpoints can be saved again, after 30 attempts in a row that failed") == 1);
  REQUIRE(report.last_checkpoint);
  CHECK(fs::exists(*report.last_checkpoint));
}

TEST_CASE("memory that ends while the state is copied is a failed save") {
  // A tensor of a size that nothing else has: only the copy of a save allocates as much.
  struct Large : SelfPlanned {
    Large() { register_parameter("table", at::zeros({1 << 20}), /*requires_grad=*/false); }
  };
  struct NoMemory : Callback {
    std::optional<ScarceMemory> scarce = std::nullopt;
    int refused = 0;
    void on_train_batch_start(RunContext& run, const Batch&, int64_t) override {
      if (run.progress().global_step == 0) scarce.emplace(size_t{4} << 20);
      if (run.progress().global_step == 3) end();
    }
    void on_exception(RunContext&, const std::exception&) override { end(); }
    void end() {
      if (scarce) refused = scarce->refused();
      scarce.reset();
    }
  };
  const bool continues = GENERATE(false, true);
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.on_save_error = continues ? OnSaveError::proceed : OnSaveError::stop;
  ModelCheckpoint::Options saves;
  saves.every_n_train_steps = 1;
  saves.save_top_k = -1;
  const auto no_memory = std::make_shared<NoMemory>();
  TrainerComponents components;
  components.callbacks = {no_memory, std::make_shared<ModelCheckpoint>(saves)};
  std::vector<std::string> lines;
  log::set_sink([](log::Level, const std::string& line,
                   void* all) { static_cast<std::vector<std::string>*>(all)->push_back(line); },
                &lines);
  Trainer trainer(options, components);
  std::optional<FitReport> report;
  std::string message;
  try {
    report = trainer.fit(std::make_shared<Large>(), regression_data(40));
  } catch (const CheckpointError& error) {
    message = error.what();
  }
  log::set_sink(nullptr, nullptr);
  if (!continues) {
    CHECK_FALSE(report.has_value());
    CHECK_THAT(message, ContainsSubstring("there is not enough memory"));
    CHECK(no_memory->refused == 1);
    return;
  }
  REQUIRE(report.has_value());
  CHECK(report->exit_code == ExitCode::ok);
  CHECK(no_memory->refused == 3);  // the saves of steps 1, 2 and 3
  REQUIRE(report->last_checkpoint);
  const CheckpointContent last = read_checkpoint(*report->last_checkpoint);
  CHECK(last.state.at("progress").at("global_step").as_int() == 10);
}

}  // namespace failed_saves_test
