#include "fulgur/core/text/log.h"

#include <catch2/catch_test_macros.hpp>

namespace log_test {

using namespace fulgur;

namespace {

struct Capture {
  std::vector<std::string> lines;
  Capture() {
    log::reset_warnings();
    log::set_sink(
        [](log::Level, const std::string& line, void* user) { static_cast<Capture*>(user)->lines.push_back(line); },
        this);
  }
  ~Capture() {
    log::set_sink(nullptr, nullptr);
    log::set_console_guard(nullptr);
    log::set_level(log::Level::info);
    log::reset_warnings();
  }
};

}  // namespace

TEST_CASE("a warning comes once, with its id, and not when it is silenced") {
  Capture capture;
  log::warn("test.id", "message");
  log::warn("test.id", "message again");
  CHECK(capture.lines == std::vector<std::string>{"warning: message [test.id]"});
  log::reset_warnings();
  log::silence({"test.id"});
  log::warn("test.id", "message");
  CHECK(capture.lines.size() == 1);
  log::warn("test.other", "message");
  CHECK(capture.lines.size() == 2);
}

TEST_CASE("F47 a log line is one line") {
  Capture capture;
  log::info("metric a\nerror: forged \x1b[31m");
  CHECK(capture.lines == std::vector<std::string>{"metric a\\nerror: forged \\x1b[31m"});
}

TEST_CASE("lines below the level are not shown") {
  Capture capture;
  log::debug("hidden");
  log::set_level(log::Level::error);
  log::info("hidden");
  log::error("shown");
  CHECK(capture.lines == std::vector<std::string>{"error: shown"});
}

TEST_CASE("format strings are text") {
  Capture capture;
  log::info("%n %s {} {0}");
  CHECK(capture.lines == std::vector<std::string>{"%n %s {} {0}"});
}

TEST_CASE("a progress bar is notified before and after each line") {
  struct Guard : log::ConsoleGuard {
    int before = 0, after = 0;
    void before_line() override { ++before; }
    void after_line() override { ++after; }
  } guard;
  Capture capture;
  log::set_console_guard(&guard);
  log::info("line");
  CHECK(guard.before == 1);
  CHECK(guard.after == 1);
}

}  // namespace log_test
