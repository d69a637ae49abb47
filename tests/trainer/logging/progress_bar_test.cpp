#include "callbacks/console.h"
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>
#include <thread>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/callbacks/progress_bar.h"

namespace progress_bar_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

struct Slow : SelfPlanned {
  StepOutput training_step(const Batch& batch, int64_t) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    const Tensor loss = at::mse_loss(forward(batch[0]), batch[1]);
    log("train_loss", loss, {.prog_bar = true});
    log("hidden", loss);
    return loss;
  }
  void on_train_epoch_start() override { run().print("a line of the log"); }
};

void run(ProgressBar::Options options, bool enable = true) {
  TemporaryFolder folder;
  TrainerOptions trainer_options = quiet(folder);
  TrainerComponents components;
  trainer_options.enable_progress_bar = enable;
  if (enable) components.callbacks = {std::make_shared<ProgressBar>(options)};
  Trainer(trainer_options, components).fit(std::make_shared<Slow>(), regression_data(80, 8, 4));  // 20 batches
}

}  // namespace

TEST_CASE("ProgressBar if stderr is not a terminal: plain lines, as often as line_every says") {
  const std::string often = in_file([] { run({.line_every = {0.01, Interval::Unit::seconds}}); });
  const std::string rarely = in_file([] { run({.line_every = {1000, Interval::Unit::seconds}}); });
  CHECK(count(often, "Epoch 0: ") >= 3);
  CHECK(count(rarely, "Epoch 0: ") == 1);  // the epoch's end is always reported
  CHECK(count(rarely, "20/20") == 1);
  CHECK(count(rarely, "train_loss=") == 1);
  CHECK(count(often, "hidden") == 0);
  CHECK(count(often, "\x1b") == 0);
  CHECK(count(in_file([] { run({}, false); }), "Epoch 0") == 0);
}

TEST_CASE("ProgressBar on a terminal: one line that is redrawn as refresh says, and log lines stay whole") {
  const std::string often = on_terminal(100, [] { run({.refresh = {0.01, Interval::Unit::seconds}}); });
  const std::string rarely = on_terminal(100, [] { run({.refresh = {1000, Interval::Unit::seconds}}); });
  CHECK(count(often, "\r\x1b[2KEpoch 0:") >= 3);
  CHECK(count(rarely, "\r\x1b[2KEpoch 0:") <= 3);
  CHECK(count(often, "█") > 0);
  CHECK(count(often, "a line of the log") == 1);
  CHECK(count(often, "it/s]") >= 3);
}

TEST_CASE("ProgressBar never fills a narrow terminal's line") {
  const auto lines = drawings(on_terminal(30, [] { run({.refresh = {0.01, Interval::Unit::seconds}}); }));
  CHECK(lines.size() >= 3);
  for (const std::string& line : lines) CHECK(width(line) < 30);
}

TEST_CASE("verbose of ModelCheckpoint prints a line for each checkpoint") {
  const auto lines = [](bool verbose) {
    ModelCheckpoint::Options options;
    options.verbose = verbose;
    return in_file([&] {
      TemporaryFolder folder;
      TrainerComponents components;
      components.callbacks = {std::make_shared<ModelCheckpoint>(options)};
      Trainer(quiet(folder), components).fit(std::make_shared<SelfPlanned>(), regression_data());
    });
  };
  CHECK(count(lines(true), "checkpoints/epoch=0-step=10.ckpt") == 1);
  CHECK(count(lines(false), "checkpoints/epoch=0-step=10.ckpt") == 0);
  // The end of a fit is always reported.
  CHECK(count(lines(false), "stopped: max_epochs · 1 epoch, 10 steps · last checkpoint: epoch=0-step=10.ckpt") == 1);
}

}  // namespace progress_bar_test
