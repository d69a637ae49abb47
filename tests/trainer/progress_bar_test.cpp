#include "boring.h"

#include <fcntl.h>
#include <pty.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <thread>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/callbacks/progress_bar.h"
#include "fulgur/core/log.h"

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

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

void run(ProgressBar::Options options, bool enable = true) {
  TemporaryFolder folder;
  TrainerOptions trainer_options = quiet(folder);
  Parts parts;
  trainer_options.enable_progress_bar = enable;
  if (enable) parts.callbacks = {std::make_shared<ProgressBar>(options)};
  Trainer(trainer_options, parts).fit(std::make_shared<Slow>(), regression_data(80, 8, 4));  // 20 batches
}

// What `body` writes to stderr while that is a file.
template <class Body>
std::string in_file(Body body) {
  TemporaryFolder folder;
  const int before = dup(STDERR_FILENO);
  const int file = open((folder / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(file, STDERR_FILENO);
  close(file);
  body();
  dup2(before, STDERR_FILENO);
  close(before);
  return read_text(folder / "err");
}

// The same while it is a terminal of that many columns.
template <class Body>
std::string on_terminal(unsigned short columns, Body body) {
  int master = -1, slave = -1;
  winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  REQUIRE(openpty(&master, &slave, nullptr, nullptr, &size) == 0);
  std::string text;
  std::thread reader([&] {
    char buffer[4096];
    for (ssize_t got = read(master, buffer, sizeof buffer); got > 0; got = read(master, buffer, sizeof buffer))
      text.append(buffer, static_cast<size_t>(got));
  });
  const int before = dup(STDERR_FILENO);
  dup2(slave, STDERR_FILENO);
  close(slave);
  body();
  dup2(before, STDERR_FILENO);  // closes the last end of the terminal: the reader ends
  close(before);
  reader.join();
  close(master);
  return text;
}

}  // namespace

TEST_CASE("ProgressBar where stderr is no terminal: plain lines, as often as line_every_s says") {
  const std::string often = in_file([] { run({.line_every_s = 0.01}); });
  const std::string rarely = in_file([] { run({.line_every_s = 1000}); });
  CHECK(count(often, "Epoch 0: ") >= 3);
  CHECK(count(rarely, "Epoch 0: ") == 1);  // the epoch's end is always told
  CHECK(count(rarely, "20/20") == 1);
  CHECK(count(rarely, "train_loss=") == 1);
  CHECK(count(often, "hidden") == 0);
  CHECK(count(often, "\x1b") == 0);
  CHECK(count(in_file([] { run({}, false); }), "Epoch 0") == 0);
}

TEST_CASE("ProgressBar on a terminal: one line that is redrawn as refresh_s says, and log lines stay whole") {
  const std::string often = on_terminal(100, [] { run({.refresh_s = 0.01}); });
  const std::string rarely = on_terminal(100, [] { run({.refresh_s = 1000}); });
  CHECK(count(often, "\r\x1b[2KEpoch 0:") >= 3);
  CHECK(count(rarely, "\r\x1b[2KEpoch 0:") <= 3);
  CHECK(count(often, "█") > 0);
  CHECK(count(often, "a line of the log") == 1);
  CHECK(count(often, "it/s]") >= 3);
}

TEST_CASE("ProgressBar never fills a narrow terminal's line") {
  const std::string text = on_terminal(30, [] { run({.refresh_s = 0.01}); });
  size_t start = text.find("\x1b[2KEpoch 0");
  REQUIRE(start != std::string::npos);
  for (; start != std::string::npos; start = text.find("\x1b[2KEpoch 0", start + 1)) {
    size_t columns = 0;
    for (size_t i = start + 4; i < text.size() && text[i] != '\r' && text[i] != '\n' && text[i] != '\x1b'; ++i)
      if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) ++columns;
    CHECK(columns < 30);
  }
}

TEST_CASE("verbose of ModelCheckpoint prints a line for each checkpoint") {
  const auto lines = [](bool verbose) {
    ModelCheckpoint::Options options;
    options.verbose = verbose;
    return in_file([&] {
      TemporaryFolder folder;
      Parts parts;
      parts.callbacks = {std::make_shared<ModelCheckpoint>(options)};
      Trainer(quiet(folder), parts).fit(std::make_shared<SelfPlanned>(), regression_data());
    });
  };
  CHECK(count(lines(true), "checkpoints/epoch=0-step=10.ckpt") == 1);
  CHECK(count(lines(false), "checkpoints/epoch=0-step=10.ckpt") == 0);
  // The end of a fit is always told.
  CHECK(count(lines(false), "stopped: max_epochs · 1 epochs, 10 steps · last checkpoint: epoch=0-step=10.ckpt") == 1);
}
