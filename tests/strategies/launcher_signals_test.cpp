#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "launching.h"

namespace launcher_signals_test {

namespace {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::Launching;

}  // namespace

TEST_CASE("launcher: signals are forwarded to every process, once") {
  const int signal = GENERATE(SIGTERM, SIGINT, SIGHUP);
  Launching launching(3);
  launching.options.max_restarts = 3;
  const int code = signal == SIGINT ? 130 : 75;
  const pid_t pid = launching.run_apart({cat("term=", code), "hang"});
  REQUIRE(launching.wait_for_start(3));
  ::kill(pid, SIGUSR1);
  // Written, not only opened: the next signal would end the process in between.
  const auto got = [&](int rank) {
    const std::string name = cat("got.", rank, ".", SIGUSR1);
    return launching.has(name) && test::read_text(launching / name) == "got";
  };
  CHECK(test::comes_true([&] { return got(0) && got(1) && got(2); }));
  ::kill(pid, signal);
  CHECK(test::code_of(pid) == code);
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(test::read_text(launching / cat("got.", rank, ".", SIGUSR1)) == "got");
    CHECK(test::read_text(launching / cat("got.", rank, ".", signal)) == "got");
  }
  CHECK(launching.report_of() == "restarts=0\n");
}

TEST_CASE("launcher: a signal before the processes listen ends them as asked") {
  const Launching launching(2);
  const pid_t pid = launching.run_apart({"hang"});
  REQUIRE(launching.wait_for_start(2));
  ::kill(pid, SIGTERM);
  CHECK(test::code_of(pid) == 143);
  CHECK(launching.report_of() == "restarts=0\n");
}

TEST_CASE("launcher: a launcher that was asked to stop does not restart") {
  Launching launching(2);
  launching.options.max_restarts = 3;
  const pid_t pid = launching.run_apart({"term=1", "hang"});
  REQUIRE(launching.wait_for_start(2));
  ::kill(pid, SIGTERM);
  CHECK(test::code_of(pid) == 1);
  CHECK_THAT(launching.report_of(), ContainsSubstring("restarts=0") && ContainsSubstring("exited with code 1"));
}

TEST_CASE("launcher: a launcher that is killed leaves no orphan") {
  const Launching launching(4);
  const pid_t pid = launching.run_apart({"ignore", "hang"});
  REQUIRE(launching.wait_for_start(4));
  std::vector<pid_t> ranks;
  for (int64_t rank = 0; rank < 4; ++rank) ranks.push_back(launching.pid_of(rank));
  for (const pid_t rank : ranks) CHECK_FALSE(test::is_gone(rank));
  ::kill(pid, SIGKILL);
  CHECK(test::code_of(pid) == -SIGKILL);
  for (const pid_t rank : ranks) CHECK(test::comes_true([&] { return test::is_gone(rank); }, 2));
}

TEST_CASE("launcher: handlers and mask are restored afterwards, and for the processes") {
  struct sigaction ignore {};
  struct sigaction before {};
  struct sigaction term_before {};
  struct sigaction after {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGHUP, &ignore, &before);
  sigaction(SIGTERM, nullptr, &term_before);
  const Launching launching(1);
  // As under nohup: the process continues ignoring it.
  CHECK(launching.run({"when=0", "kill=1", "exit=7"}).exit_code == 7);
  sigaction(SIGHUP, &before, &after);
  CHECK(after.sa_handler == SIG_IGN);
  sigaction(SIGTERM, nullptr, &after);
  CHECK(after.sa_handler == term_before.sa_handler);
  sigset_t mask;
  sigprocmask(SIG_SETMASK, nullptr, &mask);
  CHECK(sigismember(&mask, SIGCHLD) == 0);
}

}  // namespace launcher_signals_test
