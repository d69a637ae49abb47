#include "console_line.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "callbacks/console.h"

namespace console_line_test {

using namespace fulgur;
using namespace fulgur::test;
using fulgur::detail::ConsoleLine;
using Lines = std::vector<std::string>;

namespace {

template <class Body>
Lines shown(Body body) {
  return screen_lines(on_terminal(80, [&] {
    ConsoleLine line;
    line.install();
    body(line);
  }));
}

}  // namespace

TEST_CASE("ConsoleLine: a line of the log is above the line, which is drawn again") {
  CHECK(shown([](ConsoleLine& line) {
          line.show("first");
          log::info("logged");
          line.show("second");
        }) == Lines{"logged", "second"});
}

TEST_CASE("ConsoleLine: a line is ended, left or removed") {
  CHECK(shown([](ConsoleLine& line) {
          line.leave();  // nothing to leave or to remove
          line.clear();
          line.show("a");
          line.finish("b");
          log::info("logged");
          line.show("c");
          line.leave();
          line.show("d");
          line.clear();
          line.print("e");
          log::info("logged");
        }) == Lines{"b", "logged", "c", "e", "logged", ""});
}

TEST_CASE("ConsoleLine: one that is gone does not draw itself") {
  CHECK(shown([](ConsoleLine& line) {
          line.show("a");
          line.uninstall();
          CHECK_FALSE(line.is_installed());
          log::info(" logged");
        }) == Lines{"a logged", ""});
}

TEST_CASE("ConsoleLine: lines that other threads log and drawings stay whole") {
  constexpr int kDrawings = 2000;
  std::atomic<int64_t> logged = 0;
  const Lines lines = shown([&](ConsoleLine& line) {
    const std::jthread other([&](const std::stop_token& stop) {
      for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::microseconds(20))) {
        log::info("a line of the log");
        ++logged;
      }
    });
    for (int i = 0; i < kDrawings || logged < 100; ++i) {
      if (i % 10 == 9)
        line.finish("the bar's end");
      else
        line.show("the bar " + std::string(static_cast<size_t>(i % 50), '='));
      if (i % 7 == 0) line.clear();
    }
  });
  CHECK(std::count(lines.begin(), lines.end(), "a line of the log") == logged);
  CHECK(std::count(lines.begin(), lines.end(), "the bar's end") >= kDrawings / 10);
  CHECK(std::all_of(lines.begin(), lines.end() - 1,
                    [](const std::string& line) { return line == "a line of the log" || line == "the bar's end"; }));
}

}  // namespace console_line_test
