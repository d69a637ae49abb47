// Rows of metrics travel from a GPU without a wait: when they are written, what callbacks see meanwhile, and what a
// loss that is not finite does.
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/record_function.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/text.h"
#include "logging/log_store.h"
#include "run/step_rows.h"
#include "support/gpu.h"
#include "trainer/boring.h"

namespace step_rows_gpu_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using fulgur::detail::LogScope;
using fulgur::detail::LogStore;
using fulgur::detail::StepRows;

namespace {

TrainerOptions on_gpu(const TemporaryFolder& folder) {
  TrainerOptions options = quiet(folder);
  options.accelerator = "cuda";
  return options;
}

// Which steps' rows the logger has at the end of each batch.
struct Watching : Callback {
  explicit Watching(std::shared_ptr<MemoryLogger> logger_) : logger(std::move(logger_)) {}
  void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) override {
    if (asks) asked.push_back(run.metric("train_loss"));
    newest.push_back(newest_row());
  }
  void on_validation_start(RunContext&) override { at_validation.push_back(newest_row()); }
  void on_train_epoch_end(RunContext&) override { at_epoch_end.push_back(newest_row()); }
  void on_exception(RunContext&, const std::exception&) override { at_exception = newest_row(); }
  int64_t newest_row() const { return logger->rows.empty() ? 0 : logger->rows.back().step; }
  std::shared_ptr<MemoryLogger> logger;
  bool asks = false;
  std::vector<int64_t> newest, at_validation, at_epoch_end;
  int64_t at_exception = -1;
  std::vector<std::optional<double>> asked;
};

struct Fitted {
  std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
  std::shared_ptr<Watching> watching = std::make_shared<Watching>(logger);
  FitReport report;
};

template <class M = SelfPlanned>
Fitted fit(TrainerOptions options, bool asks = false, const std::function<void(TrainerComponents&)>& add = {}) {
  Fitted fitted;
  fitted.watching->asks = asks;
  TrainerComponents components;
  components.seed = 3;
  components.loggers = {fitted.logger};
  components.add(fitted.watching);
  if (add) add(components);
  at::manual_seed(3);
  try {
    fitted.report =
        Trainer(std::move(options), components).fit(std::make_shared<M>(), regression_data(40, 12, 4, false));
  } catch (const std::runtime_error& error) {
    if (std::string(error.what()) != "the user's") throw;
  }
  return fitted;
}

struct Throwing : SelfPlanned {
  StepOutput training_step(const Batch& batch, int64_t index) override {
    if (index == 6) throw std::runtime_error("the user's");
    return SelfPlanned::training_step(batch, index);
  }
};

struct FaultyAtFour : SelfPlanned {
  StepOutput training_step(const Batch& batch, int64_t index) override {
    StepOutput output = SelfPlanned::training_step(batch, index);
    seen.insert(index);
    if (index == 3) output.loss = output.loss * std::numeric_limits<double>::quiet_NaN();
    return output;
  }
  static inline std::set<int64_t> seen;
};

// Additions on a device while it lives.
class CountedAdditions {
 public:
  CountedAdditions()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
              const std::string_view name = function.name();
              if (name == "aten::add_" || name == "aten::copy_") ++count;
              return nullptr;
            }))) {
    count = 0;
  }
  ~CountedAdditions() { at::removeCallback(handle_); }
  CountedAdditions(const CountedAdditions&) = delete;
  CountedAdditions& operator=(const CountedAdditions&) = delete;
  static inline int64_t count = 0;

 private:
  at::CallbackHandle handle_;
};

double watch_of(LogStore& store) { return store.close_step_window(RunningStage::train).finite() ? 1 : 0; }

}  // namespace

TEST_CASE("on a GPU, a row is written a fixed number of batches later, and before whatever could miss it", "[gpu]") {
  require_gpus(1);
  TemporaryFolder folder;
  TrainerOptions options = on_gpu(folder);
  options.log_every_n_steps = 2;
  options.max_epochs = 2;
  const Fitted fitted = fit(options);
  // Rows of steps 2, 4 … 20; ten batches an epoch. At the end of batch n the row of step n itself is not begun yet.
  std::vector<int64_t> expected;
  for (int64_t epoch = 0; epoch < 2; ++epoch)
    for (int64_t batch = 1; batch <= 10; ++batch) {
      int64_t newest = epoch == 0 ? 0 : 10;
      // The row of step s is written after batch s + kLater.
      for (int64_t s = 2; s <= 10; s += 2)
        if (batch > s + StepRows::kLater) newest = 10 * epoch + s;
      expected.push_back(newest);
    }
  CHECK(fitted.watching->newest == expected);
  CHECK(fitted.watching->at_validation == std::vector<int64_t>{10, 20});
  CHECK(fitted.watching->at_epoch_end == std::vector<int64_t>{10, 20});
}

TEST_CASE("on a GPU, a callback that asks for a metric gets the newest one, as on the CPU", "[gpu]") {
  require_gpus(1);
  TemporaryFolder folder;
  for (const int64_t every : {1, 3}) {
    TrainerOptions options = on_gpu(folder);
    options.log_every_n_steps = every;
    const Fitted gpu = fit(options, /*asks=*/true);
    options.accelerator = "cpu";
    const Fitted cpu = fit(options, /*asks=*/true);
    REQUIRE(gpu.watching->asked.size() == 10);
    for (size_t i = 0; i < 10; ++i) {
      CAPTURE(every, i);
      REQUIRE(gpu.watching->asked[i].has_value());
      CHECK(std::abs(*gpu.watching->asked[i] - *cpu.watching->asked[i]) < 1e-6);
    }
  }
}

TEST_CASE("on a GPU, an exception loses no row, and a checkpoint has the rows before it", "[gpu]") {
  require_gpus(1);
  TemporaryFolder folder;
  TrainerOptions options = on_gpu(folder);
  const Fitted failed = fit<Throwing>(options);
  CHECK(failed.watching->at_exception == 6);
  struct Saved : Callback {
    void on_checkpoint_published(RunContext&, const CheckpointInfo& info) override {
      steps.push_back(info.global_step);
      const CheckpointContent content = read_checkpoint(info.path);
      newest.push_back(content.state.at("metrics").at("train_loss").as_double());
    }
    std::vector<int64_t> steps;
    std::vector<double> newest;
  };
  const auto saved = std::make_shared<Saved>();
  ModelCheckpoint::Options save;
  save.every_n_train_steps = 3;
  save.save_top_k = -1;
  const Fitted fitted = fit(options, false, [&](TrainerComponents& components) {
    components.add(std::make_shared<ModelCheckpoint>(save));
    components.add(saved);
  });
  const auto losses = fitted.logger->values("train_loss");
  REQUIRE(saved->steps.size() >= 3);
  for (size_t i = 0; i < saved->steps.size(); ++i)
    CHECK(saved->newest[i] == losses.at(static_cast<size_t>(saved->steps[i]) - 1).second);
}

TEST_CASE("on a GPU, a loss that is not finite ends the run a fixed number of batches after its row", "[gpu]") {
  require_gpus(1);
  TemporaryFolder folder;
  TrainerOptions options = on_gpu(folder);
  options.on_nonfinite = OnNonFinite::raise;
  FaultyAtFour::seen.clear();
  CHECK_THROWS_WITH(
      fit<FaultyAtFour>(options),
      ContainsSubstring("a loss or the norm of the gradients is not finite") && ContainsSubstring("batch 3)"));
  // The row of batch 3 is judged after batch 3 + kLater.
  CHECK(*FaultyAtFour::seen.rbegin() == 3 + StepRows::kLater);
}

TEST_CASE("on a GPU, a logger that throws at a row for which a save is held ends the run with its error", "[gpu]") {
  require_gpus(1);
  struct Broken : MemoryLogger {
    void log_metrics(const Metrics&, int64_t step) override {
      if (step == 4) throw std::runtime_error("the tracking server is gone");
    }
  };
  TemporaryFolder folder;
  ModelCheckpoint::Options save;
  save.every_n_train_steps = 4;
  save.save_top_k = -1;
  CHECK_THROWS_WITH(fit(on_gpu(folder), false,
                        [&](TrainerComponents& components) {
                          components.loggers.push_back(std::make_shared<Broken>());
                          components.add(std::make_shared<ModelCheckpoint>(save));
                        }),
                    ContainsSubstring("the tracking server is gone"));
}

TEST_CASE("on a GPU, an exception in an evaluation leaves its rows as on the CPU", "[gpu]") {
  require_gpus(1);
  struct InValidation : SelfPlanned {
    Outputs validation_step(const Batch& batch, int64_t index, int64_t) override {
      if (index == 2) throw std::runtime_error("the user's");
      log("val_loss", at::mse_loss(forward(batch[0]), batch[1]), {.on_step = true});
      return {};
    }
  };
  TemporaryFolder folder;
  std::map<std::string, std::vector<std::pair<int64_t, double>>> values;
  for (const char* accelerator : {"cpu", "cuda"}) {
    TrainerOptions options = on_gpu(folder);
    options.accelerator = accelerator;
    const Fitted fitted = fit<InValidation>(options);
    CHECK(fitted.watching->at_exception == 10);
    values[accelerator] = fitted.logger->values("val_loss_step");
  }
  REQUIRE(values["cpu"].size() == 2);
  REQUIRE(values["cuda"].size() == 2);
  for (size_t i = 0; i < 2; ++i) CHECK(std::abs(values["cpu"][i].second - values["cuda"][i].second) < 1e-6);
}

namespace {

// Makes one batch of the whole run give a loss that is not a number.
struct Poisoning : Callback {
  explicit Poisoning(int64_t batch) : at(batch) {}
  void on_train_batch_start(RunContext&, const Batch& batch, int64_t) override {
    if (batches++ == at) batch["y"].fill_(std::numeric_limits<float>::quiet_NaN());
  }
  int64_t at, batches = 0;
};

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::istringstream text(read_text(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("on a GPU, a logged loss that is not finite is found, also if the metric is read in between", "[gpu]") {
  require_gpus(1);
  for (const bool asks : {false, true})
    for (const int64_t every : {1, 4, 50}) {
      CAPTURE(asks, every);
      TemporaryFolder folder;
      TrainerOptions options = on_gpu(folder);
      options.log_every_n_steps = every;
      CHECK_THROWS_AS(
          fit(options, asks, [](TrainerComponents& components) { components.add(std::make_shared<Poisoning>(2)); }),
          NonFiniteError);
    }
}

TEST_CASE("on a GPU, one loss that is not finite is rolled back once, eager or captured, and its window is named",
          "[gpu]") {
  require_gpus(1);
  for (const bool captures : {false, true})
    for (const int64_t every : {4, 100}) {
      CAPTURE(captures, every);
      TemporaryFolder folder;
      TrainerOptions options = on_gpu(folder);
      options.max_epochs = 6;
      options.log_every_n_steps = every;
      options.on_nonfinite = OnNonFinite::rollback;
      options.capture = captures;
      const Fitted fitted = fit(options, false, [](TrainerComponents& components) {
        ModelCheckpoint::Options save;
        save.every_n_train_steps = 15;
        components.add(std::make_shared<ModelCheckpoint>(save));
        components.add(std::make_shared<Poisoning>(26));
      });
      const auto lines = lines_of(fitted.report.run_dir / "nonfinite.jsonl");
      REQUIRE(lines.size() == 1);
      CHECK_THAT(lines[0], ContainsSubstring("\"epoch\":2"));
      // Rows of 4 end after batches 3, 7 and 11 of all 10 · 6; else the epoch's end judges all of its batches.
      CHECK_THAT(lines[0], ContainsSubstring(every == 4 ? "\"first_batch\":4,\"last_batch\":7"
                                                        : "\"first_batch\":0,\"last_batch\":9"));
    }
}

TEST_CASE("a loss that was logged is watched without an addition; whatever else is logged does not hide it", "[gpu]") {
  require_gpus(1);
  const auto cuda = at::TensorOptions().device(at::kCUDA);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto good = [&] { return at::full({}, 1.5, cuda); };
  const auto bad = [&] { return at::full({}, nan, cuda); };
  LogStore store;
  const auto log = [&](std::string_view name, const Tensor& value, Reduce reduce = Reduce::mean) {
    store.log(name, LogScope::train_step, RunningStage::train, value, 4, {.reduce_fx = reduce});
  };
  for (const Reduce reduce : {Reduce::mean, Reduce::sum})
    for (const bool is_bad : {false, true}) {
      CAPTURE(static_cast<int>(reduce), is_bad);
      const std::string name = cat("l", static_cast<int>(reduce));
      for (int i = 0; i < 3; ++i) {
        store.start_batch();
        const Tensor loss = is_bad && i == 1 ? bad() : good();
        log(name, loss.detach(), reduce);
        const CountedAdditions counted;
        store.watch(loss);
        CHECK(CountedAdditions::count == 0);
      }
      CHECK(watch_of(store) == !is_bad);
    }
  // Values that say less than the loss, or of another moment.
  for (const Reduce reduce : {Reduce::last, Reduce::min, Reduce::max}) {
    store.start_batch();
    const Tensor loss = bad();
    log(cat("l", static_cast<int>(reduce)), loss, reduce);
    store.watch(loss);
    store.start_batch();
    const Tensor next = good();
    log(cat("l", static_cast<int>(reduce)), next, reduce);
    store.watch(next);
    CHECK(watch_of(store) == 0);
  }
  store.start_batch();
  Tensor changed = good();
  log("changed", changed);
  changed.fill_(nan);
  store.watch(changed);
  CHECK(watch_of(store) == 0);
  // A temporary value whose memory the loss would get, if it were not kept.
  store.start_batch();
  log("temporary", good());
  store.watch(bad());
  CHECK(watch_of(store) == 0);
  // Another value of the same name, before and in the same batch.
  store.start_batch();
  log("mixed", bad());
  const Tensor loss = good();
  log("mixed", loss);
  store.watch(loss);
  CHECK(watch_of(store) == 1);
  // A metric that is not a loss may be NaN.
  store.start_batch();
  log("metric", bad());
  store.watch(good());
  CHECK(watch_of(store) == 1);
}

TEST_CASE("sums on a device have the same bits however often they are read or restored in between", "[gpu]") {
  require_gpus(1);
  const auto cuda = at::TensorOptions().device(at::kCUDA);
  at::manual_seed(8);
  const Tensor values = at::randn({40});
  const auto sums = [&](int64_t read_every, int64_t restore_every) {
    auto store = std::make_unique<LogStore>();
    for (int64_t i = 0; i < 40; ++i) {
      store->log("v", LogScope::train_step, RunningStage::train, values[i].to(cuda.device()), 1 + i % 5,
                 {.on_epoch = true});
      if (read_every > 0 && i % read_every == 0) (void)store->newest("v");
      if (restore_every > 0 && i % restore_every == 0) {
        auto other = std::make_unique<LogStore>();
        other->load_state(store->state());
        store = std::move(other);
      }
    }
    SingleProcessCollectives one;
    const Metrics epoch = store->take(store->close_epoch(RunningStage::train), &one);
    const Metrics step = store->take(store->close_step_window(RunningStage::train), &one);
    return std::pair{step.at(0).second, epoch.at(0).second};
  };
  const auto quiet_sums = sums(0, 0);
  CHECK(sums(3, 0) == quiet_sums);
  CHECK(sums(0, 7) == quiet_sums);
  CHECK(sums(2, 5) == quiet_sums);
}

}  // namespace step_rows_gpu_test
