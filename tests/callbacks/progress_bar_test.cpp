// What the bar shows of time, of evaluation and of ends; its drawing itself is in
// tests/trainer/logging/progress_bar_test.cpp.
#include "fulgur/callbacks/progress_bar.h"

#include "callbacks/scored.h"

#include "callbacks/console.h"

#include <chrono>

namespace progress_bar_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

void wait(int64_t milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// Steps take no time to speak of, a validation does.
struct SlowValidation : SelfPlanned {
  int64_t milliseconds = 700;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    wait(2);
    return SelfPlanned::training_step(batch, batch_idx);
  }
  void on_validation_epoch_end() override { wait(milliseconds); }
  // What the machine takes for the batches of an epoch, whatever else it does.
  void on_train_epoch_start() override { epoch_began = Clock::now(), validated = {}; }
  void on_validation_start() override { validation_began = Clock::now(); }
  void on_validation_end() override { validated += Clock::now() - validation_began; }
  void on_train_epoch_end() override {
    batches_per_s = 20 / std::chrono::duration<double>(Clock::now() - epoch_began - validated).count();
  }
  using Clock = std::chrono::steady_clock;
  Clock::time_point epoch_began, validation_began;
  Clock::duration validated{};
  double batches_per_s = 0;  ///< of the last epoch, without its validations
};

// 20 batches an epoch.
template <class Module>
void run(std::shared_ptr<Module> module, const std::function<void(TrainerOptions&)>& change = {},
         DataSource data = regression_data(80, 8, 4),
         ProgressBar::Options options = {.refresh = {0.01, Interval::Unit::seconds}}) {
  TemporaryFolder folder;
  TrainerOptions trainer_options = quiet(folder);
  if (change) change(trainer_options);
  TrainerComponents components;
  components.add(std::make_shared<ProgressBar>(options));
  Trainer(trainer_options, components).fit(module, std::move(data));
}

// `00:01` and `350.2` of `Epoch 1: 50% |…| 10/20 [00:00<00:01, 350.2 it/s]`.
std::string time_left(const std::string& line) {
  const size_t start = line.find('<');
  return start == std::string::npos ? "" : line.substr(start + 1, line.find(',', start) - start - 1);
}
int64_t seconds_left(const std::string& line) {
  const std::string text = time_left(line);
  return 60 * std::stol(text.substr(0, text.find(':'))) + std::stol(text.substr(text.find(':') + 1));
}
double rate(const std::string& line) { return std::stod(line.substr(line.find(", ") + 2)); }

std::vector<std::string> of_epoch(const std::vector<std::string>& lines, int64_t epoch) {
  std::vector<std::string> found;
  for (const std::string& line : lines)
    if (line.starts_with(cat("Epoch ", epoch, ":"))) found.push_back(line);
  return found;
}

int64_t done(const std::string& line) {
  const size_t slash = line.find("/20");
  const size_t space = line.rfind(' ', slash);
  return std::stol(line.substr(space + 1, slash - space - 1));
}

}  // namespace

TEST_CASE("ProgressBar: the time left counts the validation to come, the rate leaves it out") {
  const auto module = std::make_shared<SlowValidation>();
  const auto lines = drawings(on_terminal(120, [&] { run(module, [](TrainerOptions& o) { o.max_epochs = 2; }); }));
  const auto first = of_epoch(lines, 0), second = of_epoch(lines, 1);
  REQUIRE(first.size() >= 3);
  REQUIRE(second.size() >= 3);
  CHECK(seconds_left(first[1]) < 2);  // how long a validation takes is not known yet
  for (size_t i = 0; i + 1 < second.size(); ++i) CHECK(seconds_left(second[i]) >= 1);
  CHECK(time_left(second.back()) == "00:00");
  CHECK(second.back().find("[00:00<") == std::string::npos);  // what has passed is what a clock says
  CHECK(rate(second.back()) > 0.6 * module->batches_per_s);
}

TEST_CASE("ProgressBar: several validations in an epoch") {
  const auto module = std::make_shared<SlowValidation>();
  const auto lines = drawings(on_terminal(120, [&] {
    run(module, [](TrainerOptions& o) {
      o.max_epochs = 2;
      o.val_check_interval = 0.5;
    });
  }));
  const auto second = of_epoch(lines, 1);
  REQUIRE(second.size() >= 3);
  for (size_t i = 0; i < second.size(); ++i) {
    CAPTURE(second[i]);
    if (i + 1 < second.size())
      CHECK(seconds_left(second[i]) >= 1);
    else
      CHECK(seconds_left(second[i]) == 0);
  }
  CHECK(rate(second.back()) > 0.6 * module->batches_per_s);
  // Every second epoch: the ones between have none to come.
  const auto slower = std::make_shared<SlowValidation>();
  slower->milliseconds = 1500;
  const auto rarely = drawings(on_terminal(120, [&] {
    run(slower, [](TrainerOptions& o) {
      o.max_epochs = 4;
      o.check_val_every_n_epoch = 2;
    });
  }));
  for (const std::string& line : of_epoch(rarely, 2)) CHECK(seconds_left(line) < 2);
  const auto fourth = of_epoch(rarely, 3);
  REQUIRE(fourth.size() >= 3);
  CHECK(seconds_left(fourth.front()) >= 2);
}

TEST_CASE("ProgressBar: an unfinished bar is finished if a fit ends inside an epoch or fails") {
  struct Failing : SelfPlanned {
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      if (batch_idx == 7) throw Error("on purpose");
      return SelfPlanned::training_step(batch, batch_idx);
    }
  };
  const std::string stopped =
      on_terminal(100, [] { run(std::make_shared<SelfPlanned>(), [](TrainerOptions& o) { o.max_steps = 7; }); });
  const std::string line = drawings(stopped).back();
  CHECK(done(line) == 7);
  const size_t after = stopped.rfind("it/s]") + 5;
  CHECK(stopped.compare(after, 2, "\r\n") == 0);
  CHECK(stopped.find("stopped: max_steps", after) != std::string::npos);
  CHECK(stopped.find("\x1b[2K", after) == std::string::npos);

  const std::string failed = on_terminal(100, [] {
    try {
      run(std::make_shared<Failing>());
    } catch (const Error&) {
    }
  });
  const size_t end = failed.rfind("it/s]") + 5;
  CHECK(failed.compare(end, 2, "\r\n") == 0);
  CHECK(failed.find("\x1b[2K", end) == std::string::npos);
  // If stderr is not a terminal the last state is printed too.
  CHECK(count(in_file([] { run(std::make_shared<SelfPlanned>(), [](TrainerOptions& o) { o.max_steps = 7; }); }),
              "Epoch 0: 7/20") == 1);
}

TEST_CASE("ProgressBar: lines that other threads log while the bar is drawn stay whole") {
  const std::string text = on_terminal(100, [] {
    const std::jthread other([](const std::stop_token& stop) {
      for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::microseconds(20)))
        log::info("a line of another thread");
    });
    const auto module = std::make_shared<SlowValidation>();
    module->milliseconds = 5;
    run(module, [](TrainerOptions& o) { o.max_epochs = 5; }, regression_data(80, 8, 4),
        {.refresh = {0.0001, Interval::Unit::seconds}});
  });
  size_t logged = 0;
  for (const std::string& line : screen_lines(text)) {
    if (line.find("a line of another thread") == std::string::npos) continue;
    ++logged;
    CHECK(line == "a line of another thread");
  }
  CHECK(logged > 100);
}

TEST_CASE("ProgressBar: no line fills a terminal, however narrow, also with wide characters") {
  struct Wide : SelfPlanned {
    StepOutput training_step(const Batch& batch, int64_t) override {
      const Tensor loss = at::mse_loss(forward(batch[0]), batch[1]);
      log("訓練の損失", loss, {.prog_bar = true});
      return loss;
    }
  };
  for (const unsigned short columns : {1, 2, 3, 8, 15, 40, 47, 48, 49, 50, 60, 70}) {
    CAPTURE(columns);
    const std::string text = on_terminal(columns, [] {
      run(std::make_shared<Wide>(), {}, regression_data(80, 8, 4), {.refresh = {0.001, Interval::Unit::seconds}});
    });
    CHECK(count(text, "\r\x1b[2K") >= 3);
    for (const std::string& line : drawings(text)) CHECK(width(line) < columns);
  }
}

TEST_CASE("ProgressBar: a little colour, on a terminal that supports it") {
  const auto shown = [](const std::string& term, std::optional<std::string> no_color) {
    return on_terminal(
        100, [] { run(std::make_shared<SelfPlanned>()); }, term, std::move(no_color));
  };
  const std::string coloured = shown("xterm", {});
  CHECK(count(coloured, "\x1b[35m█") > 0);
  CHECK(count(coloured, "\x1b[35m") == count(coloured, "█\x1b[0m"));
  CHECK(count(shown("xterm", ""), "\x1b[35m") > 0);  // empty is as good as unset
  const std::string plain = shown("xterm", "1");
  CHECK(count(plain, "\x1b[35m") == 0);
  CHECK(count(plain, "█") > 0);
  // A terminal that cannot clear a line gets lines.
  const std::string dumb = shown("dumb", {});
  CHECK(count(dumb, "\x1b") == 0);
  CHECK(count(dumb, "Epoch 0: 20/20") == 1);
}

TEST_CASE("ProgressBar: the sanity check shows how many batches it has") {
  struct Slow : SelfPlanned {
    Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override {
      wait(15);
      return SelfPlanned::validation_step(batch, batch_idx, loader_idx);
    }
  };
  const std::string text = on_terminal(100, [] {
    run(
        std::make_shared<Slow>(), [](TrainerOptions& o) { o.num_sanity_val_steps = 2; }, regression_data(80, 20, 4));
  });
  CHECK(count(text, "Sanity check: 50%") > 0);
  CHECK(count(text, " 1/2 [") > 0);
  CHECK(count(text, "Sanity check: 20%") == 0);
  CHECK(count(text, "Validation: 20%") > 0);
}

TEST_CASE("ProgressBar: several validation loaders are distinguished") {
  struct Slow : SelfPlanned {
    Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override {
      wait(15);
      return SelfPlanned::validation_step(batch, batch_idx, loader_idx);
    }
  };
  const auto loader = [](int64_t samples) -> std::shared_ptr<Loader> {
    return std::make_shared<DataLoader>(std::make_shared<TensorDataset>(regression(samples)),
                                        DataLoaderOptions{.batch_size = 4});
  };
  const std::string text = on_terminal(100, [&] {
    run(
        std::make_shared<Slow>(), [](TrainerOptions& o) { o.max_epochs = 2; },
        DataSource(loader(80), {loader(8), loader(12)}));
  });
  CHECK(count(text, "Validation: 20%") == 1);  // the first validation does not know yet that there are more
  CHECK(count(text, "Validation DataLoader 0: 20%") == 1);
  CHECK(count(text, "Validation DataLoader 1: 60%") == 2);
  CHECK(count(text, "Validation DataLoader 1: 100%") == 2);
}

TEST_CASE("ProgressBar: a fit that continues inside an epoch shows it from there") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_steps = 12;
  const FitReport first = Trainer(options).fit(std::make_shared<SelfPlanned>(), regression_data(80, 8, 4));
  options.max_steps = -1;
  TrainerComponents components;
  components.add(std::make_shared<ProgressBar>(ProgressBar::Options{.refresh = {0.01, Interval::Unit::seconds}}));
  const auto lines = drawings(on_terminal(100, [&] {
    Trainer(options, components)
        .fit(std::make_shared<SelfPlanned>(), regression_data(80, 8, 4), first.last_checkpoint->string());
  }));
  const auto epoch = of_epoch(lines, 0);
  REQUIRE_FALSE(epoch.empty());
  CHECK(done(epoch.front()) == 13);
  CHECK(done(epoch.back()) == 20);
}

}  // namespace progress_bar_test
