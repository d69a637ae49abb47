// Saves that fail one after the other.
#include "checkpointing/failed_saves.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/core/text/log.h"
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

}  // namespace failed_saves_test
