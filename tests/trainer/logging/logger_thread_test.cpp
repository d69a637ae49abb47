// Loggers that may block: their thread, what they lose, and that the run does not wait for them.
#include "logging/logger_thread.h"

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "fulgur/core/text/log.h"
#include "trainer/boring.h"

namespace logger_thread_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using fulgur::detail::LoggerThread;
using Clock = std::chrono::steady_clock;

namespace {

/// Errors and warnings of its lifetime.
class Lines {
 public:
  Lines() {
    log::reset_warnings();
    log::set_sink(
        [](log::Level level, const std::string& line, void* self) {
          auto& lines = *static_cast<Lines*>(self);
          const std::lock_guard lock(lines.mutex_);
          (level == log::Level::warning ? lines.warnings_
           : level == log::Level::error ? lines.errors_
                                        : lines.others_)
              .push_back(line);
        },
        this);
  }
  ~Lines() { log::set_sink(nullptr, nullptr); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  std::vector<std::string> warnings() const { return copy(warnings_); }
  std::vector<std::string> errors() const { return copy(errors_); }

 private:
  std::vector<std::string> copy(const std::vector<std::string>& lines) const {
    const std::lock_guard lock(mutex_);
    return lines;
  }
  mutable std::mutex mutex_;
  std::vector<std::string> warnings_, errors_, others_;
};

/// Takes part in a run like a logger of a service; tests say when it fails or does not return.
struct Service : Logger {
  std::string state_key() const override { return "Service"; }
  bool may_block() const override { return true; }
  void start(const std::filesystem::path&, std::optional<int64_t> step) override {
    enter();
    resume_step = step;
    const std::lock_guard lock(mutex);
    calls.push_back("start");
  }
  void log_metrics(const Metrics& metrics, int64_t step) override {
    enter();
    calls.push_back("row " + std::to_string(step));
    times.push_back(logged_at());
    for (const auto& [name, value] : metrics)
      if (name != "epoch") values.emplace_back(step, value);
  }
  void log_media(const MediaRecord& record, int64_t step) override {
    enter();
    calls.push_back(media_name(record) + " " + std::to_string(step));
  }
  void log_artifact(const std::filesystem::path& path) override {
    enter();
    if (path.filename() == "refused") throw std::runtime_error("refused");
    calls.push_back(path.filename().string());
  }
  void flush() override {
    enter();
    ++flushes;
  }
  StateTree state() override { return StateTree::map({{"rows", static_cast<int64_t>(values.size())}}); }
  void load_state(const StateTree& state) override { loaded = state; }
  void finalize(RunStatus end) noexcept override { status = end; }

  void enter() {
    overlaps = overlaps || inside.exchange(true);
    thread = std::this_thread::get_id();
    std::unique_lock lock(mutex);
    entered = true;
    changed.notify_all();
    while (stuck) {
      changed.wait_for(lock, std::chrono::milliseconds(5));
      if (asks && must_return()) {
        inside = false;
        throw std::runtime_error("ended");
      }
    }
    inside = false;
    if (failures > 0) {
      --failures;
      throw std::runtime_error("no answer");
    }
  }
  std::vector<std::string> calls_so_far() {
    const std::lock_guard lock(mutex);
    return calls;
  }
  void set_stuck(bool on) {
    const std::lock_guard lock(mutex);
    stuck = on;
    changed.notify_all();
  }
  void wait_until_entered() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return entered; });
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool stuck = false, entered = false;
  bool asks = false;  ///< whether it must return
  std::atomic<bool> inside = false, overlaps = false;
  std::atomic<int64_t> failures = 0;
  std::thread::id thread;
  std::optional<int64_t> resume_step;
  std::vector<std::string> calls;
  std::vector<std::pair<int64_t, double>> values;
  std::vector<std::chrono::system_clock::time_point> times;
  std::atomic<int64_t> flushes = 0;
  std::optional<StateTree> loaded;
  std::optional<RunStatus> status;
};

LoggerThread::Limits quick() {
  return {.first_pause_s = 0.01,
          .longest_pause_s = 0.02,
          .end_wait_s = 20,
          .failing_end_wait_s = 0.2,
          .first_wait_s = 0.1,
          .last_call_s = 20,
          .return_s = 0.1};
}

}  // namespace

TEST_CASE("calls reach a logger that may block in their order, on one thread that is not the run's") {
  const auto service = std::make_shared<Service>();
  LoggerThread logger(service, quick());
  CHECK(logger.state_key() == "Service");
  CHECK(logger.state().is_null());
  logger.start("run", 3);
  logger.log_metrics({{"a", 1}}, 4);
  logger.log_media(TextRecord{"note", "text"}, 5);
  logger.log_artifact("file");
  logger.log_metrics({{"a", 2}}, 6);
  logger.flush();
  CHECK(logger.state().at("rows").as_int() == 2);
  logger.finalize(RunStatus::success);
  CHECK(service->calls == std::vector<std::string>{"start", "row 4", "note 5", "file", "row 6"});
  CHECK(service->resume_step == 3);
  CHECK(service->thread != std::this_thread::get_id());
  CHECK(service->flushes > 0);
  CHECK_FALSE(service->overlaps);
  CHECK(service->status == RunStatus::success);
}

TEST_CASE("what a logger cannot take is sent later, once, in order and with its time, after one warning") {
  const Lines lines;
  const auto service = std::make_shared<Service>();
  service->failures = 7;
  LoggerThread logger(service, quick());
  logger.start("run", std::nullopt);
  const auto before = std::chrono::system_clock::now();
  for (int64_t step = 1; step <= 20; ++step) logger.log_metrics({{"a", static_cast<double>(step)}}, step);
  const auto after = std::chrono::system_clock::now();
  logger.flush();
  logger.finalize(RunStatus::success);
  REQUIRE(service->values.size() == 20);
  for (size_t i = 0; i < 20; ++i) {
    CHECK(service->values[i].first == static_cast<int64_t>(i) + 1);
    CHECK(service->times[i] >= before);
    CHECK(service->times[i] <= after);
  }
  REQUIRE(lines.warnings().size() == 1);
  CHECK_THAT(lines.warnings()[0], ContainsSubstring("logger.unreachable") && ContainsSubstring("no answer"));
  CHECK(lines.errors().empty());
}

TEST_CASE("the queue is bounded by entries and by bytes; the end of the run says what is lost") {
  const bool by_bytes = GENERATE(false, true);
  const Lines lines;
  const auto service = std::make_shared<Service>();
  service->failures = 1 << 30;
  LoggerThread::Limits limits = quick();
  if (by_bytes)
    limits.bytes = 100 << 10;
  else
    limits.entries = 4;
  LoggerThread logger(service, limits);
  logger.start("run", std::nullopt);
  for (int64_t step = 1; step <= 10; ++step) logger.log_media(TextRecord{"t", std::string(30 << 10, 'x')}, step);
  while (lines.warnings().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  service->failures = 0;
  logger.flush();
  // Three of 30 KiB fit into 100 KiB, and three besides the start into four entries.
  CHECK(service->calls == std::vector<std::string>{"start", "t 1", "t 2", "t 3"});
  logger.log_metrics({{"a", 1}}, 11);
  logger.finalize(RunStatus::success);
  CHECK(service->values.size() == 1);
  REQUIRE(lines.errors().size() == 1);
  CHECK_THAT(
      lines.errors()[0],
      ContainsSubstring("[loggers.Service] 7 entries of steps 4 to 10 were not sent and are lost; the last error: "
                        "no answer."));
}

TEST_CASE("a logger that fails to the end is given up after a short time, and finalized") {
  const Lines lines;
  const auto service = std::make_shared<Service>();
  service->failures = 1 << 30;
  LoggerThread logger(service, quick());
  logger.start("run", std::nullopt);
  logger.log_metrics({{"a", 1}}, 8);
  while (lines.warnings().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto began = Clock::now();
  logger.finalize(RunStatus::failed);
  CHECK(Clock::now() - began < std::chrono::seconds(10));
  CHECK(service->status == RunStatus::failed);
  REQUIRE(lines.errors().size() == 1);
  CHECK_THAT(lines.errors()[0], ContainsSubstring("2 entries of step 8 were not sent and are lost"));
}

TEST_CASE("what a logger has taken is sent at the end, even if a later entry fails") {
  const Lines lines;
  const auto service = std::make_shared<Service>();
  service->set_stuck(true);
  LoggerThread logger(service, quick());
  logger.start("run", std::nullopt);
  logger.log_metrics({{"a", 1}}, 1);
  logger.log_artifact("refused");
  logger.log_metrics({{"a", 3}}, 3);
  service->set_stuck(false);
  while (lines.warnings().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(service->flushes == 0);
  logger.finalize(RunStatus::success);
  CHECK(service->flushes == 1);
  REQUIRE(lines.errors().size() == 1);
  CHECK_THAT(lines.errors()[0], ContainsSubstring("2 entries of step 3 were not sent and are lost"));
}

TEST_CASE("a call that does not return holds up neither rows nor, for long, the end of the run") {
  const Lines lines;
  const auto service = std::make_shared<Service>();
  service->set_stuck(true);
  LoggerThread::Limits limits = quick();
  limits.end_wait_s = limits.last_call_s = 0.1;
  {
    LoggerThread logger(service, limits);
    logger.start("run", std::nullopt);
    service->wait_until_entered();
    logger.log_metrics({{"a", 1}}, 1);
    CHECK(logger.state().is_null());
    logger.finalize(RunStatus::success);
  }
  REQUIRE(lines.errors().size() == 2);
  CHECK_THAT(lines.errors()[0], ContainsSubstring("2 entries of step 1"));
  CHECK_THAT(lines.errors()[1], ContainsSubstring("the logger is abandoned"));
  CHECK_FALSE(service->status);
  service->set_stuck(false);  // its thread ends
  while (service.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_CASE("a call that asks whether it must return is ended, and the logger is finalized") {
  const Lines lines;
  const auto service = std::make_shared<Service>();
  service->asks = true;
  service->set_stuck(true);
  LoggerThread::Limits limits = quick();
  limits.end_wait_s = limits.last_call_s = 0.1;
  limits.return_s = 60;
  LoggerThread logger(service, limits);
  logger.start("run", std::nullopt);
  service->wait_until_entered();
  const auto began = Clock::now();
  logger.finalize(RunStatus::failed);
  CHECK(Clock::now() - began < std::chrono::seconds(30));
  CHECK(service->status == RunStatus::failed);
  REQUIRE(lines.errors().size() == 1);
  CHECK_THAT(lines.errors()[0], ContainsSubstring("1 entry was not sent and is lost"));
}

TEST_CASE("a logger with an abandoned thread gets nothing from the next run before its call returns") {
  const Lines lines;
  const auto service = std::make_shared<Service>();
  service->set_stuck(true);
  LoggerThread::Limits limits = quick();
  limits.end_wait_s = limits.last_call_s = 0.1;
  const auto run = [&](int64_t step) {
    LoggerThread logger(service, limits);
    logger.load_state(StateTree::map({{"rows", step}}));
    logger.start("run", std::nullopt);
    logger.log_metrics({{"a", 1}}, step);
    if (step == 1) service->wait_until_entered();
    logger.flush();
    CHECK(logger.state().at("rows").as_int() == (step == 3 ? 1 : step));
    logger.finalize(RunStatus::success);
  };
  run(1);
  REQUIRE(lines.errors().size() == 2);
  run(2);
  REQUIRE(lines.errors().size() == 3);
  CHECK_THAT(lines.errors()[2],
             ContainsSubstring("[loggers.Service] a call of an earlier run has not returned; nothing of this run"));
  CHECK(service->loaded->at("rows").as_int() == 1);
  service->set_stuck(false);
  while (service.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(service->calls_so_far() == std::vector<std::string>{"start"});  // the call that did not return
  CHECK_FALSE(service->status);
  limits.first_wait_s = limits.end_wait_s = limits.last_call_s = 60;
  run(3);
  CHECK(service->calls == std::vector<std::string>{"start", "start", "row 3"});
  CHECK(service->status == RunStatus::success);
  CHECK_FALSE(service->overlaps);
  CHECK(lines.errors().size() == 3);
}

TEST_CASE("several loggers end at the same time, and those of a failed group within seconds") {
  const Lines lines;
  const bool hurries = GENERATE(false, true);
  LoggerThread::Limits limits = quick();
  limits.end_wait_s = hurries ? 60 : 2;
  limits.last_call_s = hurries ? 60 : 0.1;
  std::vector<std::shared_ptr<Service>> services;
  std::vector<std::unique_ptr<LoggerThread>> loggers;
  for (int i = 0; i < 10; ++i) {
    services.push_back(std::make_shared<Service>());
    services.back()->set_stuck(true);
    loggers.push_back(std::make_unique<LoggerThread>(services.back(), limits));
    loggers.back()->start("run", std::nullopt);
    services.back()->wait_until_entered();
  }
  const auto began = Clock::now();
  for (const auto& logger : loggers) logger->begin_end(RunStatus::failed, hurries);
  for (const auto& logger : loggers) logger->finalize(RunStatus::failed);
  CHECK(Clock::now() - began < std::chrono::seconds(15));
  loggers.clear();
  for (const auto& service : services) {
    service->set_stuck(false);
    while (service.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_CASE("the first checkpoint waits for the state of a logger that starts slowly, and not for one that fails") {
  const Lines lines;
  LoggerThread::Limits limits = quick();
  limits.first_wait_s = 60;
  const auto slow = std::make_shared<Service>(), failing = std::make_shared<Service>();
  slow->set_stuck(true);
  LoggerThread slow_thread(slow, limits);
  slow_thread.start("run", std::nullopt);
  slow->wait_until_entered();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    slow->set_stuck(false);
  });
  CHECK_FALSE(slow_thread.state().is_null());
  later.join();
  failing->failures = 1 << 30;
  LoggerThread failing_thread(failing, limits);
  failing_thread.start("run", std::nullopt);
  const auto began = Clock::now();
  CHECK(failing_thread.state().is_null());
  CHECK(Clock::now() - began < std::chrono::seconds(30));
}

TEST_CASE("checkpoints of a run that resumes while the destination is unreachable keep the logger's state") {
  const Lines lines;
  const auto service = std::make_shared<Service>();
  service->failures = 1 << 30;
  LoggerThread logger(service, quick());
  logger.load_state(StateTree::map({{"rows", 7}}));
  logger.start("run", 3);
  logger.log_metrics({{"a", 1}}, 4);
  while (lines.warnings().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(logger.state().at("rows").as_int() == 7);
  REQUIRE(service->loaded);
  CHECK(service->loaded->at("rows").as_int() == 7);
  service->failures = 0;
  logger.flush();
  CHECK(logger.state().at("rows").as_int() == 1);
  logger.finalize(RunStatus::success);
}

TEST_CASE("a run with a logger that may block: the same rows, the user's object, and its state in checkpoints") {
  struct Asking : Callback {
    std::shared_ptr<Logger> first;
    std::shared_ptr<Service> known;  // whose state the checkpoints must have
    void on_train_start(RunContext& run) override {
      first = run.loggers().front();
      while (known && known->flushes == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  const auto fit = [&](const TemporaryFolder& folder, int64_t epochs, int64_t failures) {
    auto service = std::make_shared<Service>();
    service->failures = failures;
    auto memory = std::make_shared<MemoryLogger>();
    auto asking = std::make_shared<Asking>();
    if (failures == 0) asking->known = service;
    TrainerOptions options = quiet(folder);
    options.max_epochs = epochs;
    TrainerComponents components;
    components.seed = 5;
    components.loggers = {service, memory};
    components.add(asking);
    const CheckpointChoice from = epochs > 1 ? CheckpointChoice("auto") : CheckpointChoice();
    const FitReport report = Trainer(options, components).fit(std::make_shared<SelfPlanned>(), regression_data(), from);
    CHECK(report.exit_code == ExitCode::ok);
    CHECK(asking->first == service);
    CHECK(service->status == RunStatus::success);
    std::vector<std::pair<int64_t, double>> rows;
    for (const auto& row : memory->rows)
      for (const auto& [name, value] : row.metrics)
        if (name != "epoch") rows.emplace_back(row.step, value);
    CHECK(service->values == rows);
    return service;
  };
  const TemporaryFolder alone, folder;
  fit(alone, 1, /*failures=*/1);
  CHECK_FALSE(fit(folder, 1, 0)->loaded);
  const auto resumed = fit(folder, 2, 0);
  REQUIRE(resumed->loaded);
  CHECK(resumed->loaded->at("rows").as_int() >= 0);
  CHECK(resumed->resume_step == 10);
}

}  // namespace logger_thread_test
