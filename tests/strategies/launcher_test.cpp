#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <cstdlib>
#include <deque>

#include "fulgur/core/text/errors.h"
#include "launch/launch_store.h"
#include "launch/listening_socket.h"
#include "launching.h"
#include "support/expect_error.h"

namespace launcher_test {

namespace {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using test::Launching;

void check_no_child_is_left() {
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
}

/// A variable of this process, set or taken away for a while.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before, had_ = true;
    value ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~Variable() { had_ ? ::setenv(name_, before_.c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::string before_;
  bool had_ = false;
};

}  // namespace

TEST_CASE("launcher: processes get their places and end in order") {
  const Launching launching(3);
  const LaunchReport report = launching.run({});
  CHECK(report.exit_code == 0);
  CHECK(report.restarts == 0);
  CHECK(report.message.empty());
  for (int64_t rank = 0; rank < 3; ++rank) {
    const Environment environment = launching.environment_of(rank);
    const ProcessPlace place = detect_cluster_environment(environment).value();
    CHECK(place.environment == "launcher");
    CHECK(place.rank == rank);
    CHECK(place.world_size == 3);
    CHECK(place.local_rank == rank);
    CHECK(place.local_world_size == 3);
    CHECK(place.node_rank == 0);
    CHECK(place.num_nodes == 1);
    CHECK(place.main_address == "127.0.0.1");
    CHECK(place.main_port == std::stoll(launching.environment_of(0).at("MASTER_PORT")));
    CHECK(place.store_is_hosted);
    CHECK(place.restarts == 0);
    CHECK(environment.at("pid") == environment.at("pgid"));
    // Those would be options of the config.
    for (const auto& [name, value] : environment)
      CHECK_FALSE((name.starts_with("FULGUR_") && name.find("__") != std::string::npos));
  }
  check_no_child_is_left();
}

TEST_CASE("launcher: threads are divided, unless set explicitly") {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  const Launching launching(2), crowded(CPU_COUNT(&set) + 1), told(2);
  {
    const Variable none("OMP_NUM_THREADS", nullptr);
    launching.run({});
    crowded.run({});
  }
  CHECK(launching.environment_of(1).at("OMP_NUM_THREADS") == std::to_string(std::max(1, CPU_COUNT(&set) / 2)));
  CHECK(crowded.environment_of(0).at("OMP_NUM_THREADS") == "1");
  const Variable some("OMP_NUM_THREADS", "7");
  told.run({});
  CHECK(told.environment_of(1).at("OMP_NUM_THREADS") == "7");
  // Those of a sweep's trial are for all its processes.
  const Launching trial(2);
  const Variable share("FULGUR_DIVIDE_THREADS", "1");
  trial.run({});
  CHECK(trial.environment_of(1).at("OMP_NUM_THREADS") == "3");
  CHECK_FALSE(trial.environment_of(1).contains("FULGUR_DIVIDE_THREADS"));
}

TEST_CASE("launcher: a failing rank's code and message are reported") {
  const Launching launching(3);
  const LaunchReport report =
      launching.run({"when=1", "say=[data.reader] row 7 is cut off.", "exit=3", "when=0", "hang", "when=2", "hang"});
  CHECK(report.exit_code == 3);
  CHECK_THAT(report.message,
             StartsWith("[strategies.launcher] rank 1 of 3 exited with code 3: [data.reader] row 7 is cut off.\n"));
  CHECK_THAT(report.message, ContainsSubstring("ranks 0, 2 were ended by signal 15 (Terminated) when asked to"));
  check_no_child_is_left();
}

TEST_CASE("launcher: what all ranks say is once in its report, one line of it") {
  const LaunchReport report =
      Launching(2).run({"when=0", "touch=ready", "say=[data.reader] row 7 is cut off.\nMore of rank 0.", "exit=3",
                        "when=1", "wait=ready", "say=[data.reader] row 7 is cut off.\nMore of rank 1.", "exit=3"});
  // On a machine under load, rank 1 may end first.
  const bool in_order = report.message.starts_with("[strategies.launcher] rank 0");
  const std::string first = in_order ? "0" : "1", second = in_order ? "1" : "0";
  CHECK_THAT(report.message,
             StartsWith(cat("[strategies.launcher] rank ", first, " of 2 exited with code 3: [data.reader] row 7 is ",
                            "cut off.\nThe others: rank ", second, " exited with code 3: the same.\n")));
  const LaunchReport other = Launching(2).run({"when=0", "touch=ready", "say=Row 7 is cut off.", "exit=3", "when=1",
                                               "wait=ready", "say=Another rank is gone.", "exit=5"});
  CHECK_THAT(other.message, ContainsSubstring("The others: rank 1 exited with code 5: Another rank is gone.\n"));
  // For a console that has the messages.
  CHECK(report.console == cat("[strategies.launcher] rank ", first, " of 2 exited with code 3\nThe others: rank ",
                              second, " exited with code 3: the same.\nThe output of each process is above."));
  CHECK_THAT(other.console, ContainsSubstring("The others: rank 1 exited with code 5.\n"));
}

TEST_CASE("launcher: ranks that ended in the same way are named together") {
  std::vector<std::string> actions{"when=0", "touch=first", "say=wrong", "exit=3"};
  for (const char* rank : {"1", "2", "3", "4"})
    actions.insert(actions.end(),
                   {cat("when=", rank), "wait=first", cat("say=", *rank == '3' ? "different" : "wrong"), "exit=3"});
  const LaunchReport report = Launching(5).run(actions);
  CHECK_THAT(report.message, ContainsSubstring("ranks 1-2, 4 exited with code 3: the same") &&
                                 ContainsSubstring("rank 3 exited with code 3: different"));
}

TEST_CASE("launcher: what a rank keeps for it is shown after its message, and compared with that of others") {
  Launching launching(4);
  std::vector<std::string> shown;
  launching.options.show = [&](int64_t rank, const std::string& message) { shown.push_back(cat(rank, ": ", message)); };
  std::vector<std::string> actions{"keep=at step 3", "when=3", "keep=at step 4"};
  for (const char* rank : {"0", "1", "2", "3"})
    actions.insert(actions.end(), {cat("when=", rank), "say=wrong", "exit=3"});
  launching.run(actions);
  CHECK(shown == std::vector<std::string>{"3: wrong\nat step 4"});
}

TEST_CASE("launcher: a rank that dies by a signal") {
  const Launching launching(4);
  const LaunchReport report = launching.run({"when=1", "kill=9", "when=0", "wait=never", "when=2", "exit=0"});
  CHECK(report.exit_code == 5);
  CHECK_THAT(report.message, StartsWith("[strategies.launcher] rank 1 of 4 was ended by signal 9 (Killed)") &&
                                 ContainsSubstring("dmesg"));
  const LaunchReport fault = Launching(2).run({"when=1", "kill=11"});
  CHECK_THAT(fault.message,
             StartsWith("[strategies.launcher] rank 1 of 2 was ended by signal 11 (Segmentation fault)"));
  CHECK(fault.exit_code == 5);
}

TEST_CASE("launcher: a rank that only noticed that a peer failed is not named first") {
  SECTION("a death comes later") {
    const LaunchReport report =
        Launching(3).run({"when=0", "exit=5", "when=2", "touch=ready", "exit=5", "when=1", "wait=ready", "kill=9"});
    CHECK(report.exit_code == 5);
    CHECK_THAT(report.message, StartsWith("[strategies.launcher] rank 1 of 3 was ended by signal 9"));
    CHECK_THAT(report.message, ContainsSubstring("ranks 0, 2 exited with code 5"));
  }
  SECTION("another code comes later") {
    const LaunchReport report = Launching(2).run(
        {"when=0", "touch=ready", "say=peer failed", "exit=5", "when=1", "wait=ready", "say=no loss", "exit=6"});
    CHECK(report.exit_code == 6);
    CHECK_THAT(report.message, StartsWith("[strategies.launcher] rank 1 of 2 exited with code 6: no loss"));
    CHECK_THAT(report.message, ContainsSubstring("rank 0 exited with code 5: peer failed"));
  }
  SECTION("a death counts before a code") {
    const LaunchReport report = Launching(2).run({"when=0", "touch=ready", "exit=1", "when=1", "wait=ready", "kill=6"});
    CHECK(report.exit_code == 5);
    CHECK_THAT(report.message, StartsWith("[strategies.launcher] rank 1 of 2 was ended by signal 6"));
  }
}

TEST_CASE("launcher: a rank that is stopped is killed and named") {
  const Launching launching(3);
  const LaunchReport report =
      launching.run({"when=1", "kill=19", "when=0", "say=timeout after 10 s", "exit=5", "when=2", "exit=5"});
  CHECK(report.exit_code == 5);
  CHECK_THAT(report.message, StartsWith("[strategies.launcher] rank 1 of 3 did not answer and was killed\n"));
  CHECK_THAT(report.message, ContainsSubstring("rank 0 exited with code 5: timeout after 10 s"));
  CHECK(test::is_gone(launching.pid_of(1)));
  check_no_child_is_left();
}

TEST_CASE("launcher: a rank that ignores SIGTERM is killed") {
  const Launching launching(2);
  const LaunchReport report =
      launching.run({"when=1", "ignore", "touch=ready", "hang", "when=0", "wait=ready", "exit=4"});
  CHECK(report.exit_code == 4);
  CHECK_THAT(report.message, StartsWith("[strategies.launcher] rank 0 of 2 exited with code 4") &&
                                 ContainsSubstring("rank 1 did not answer and was killed"));
  check_no_child_is_left();
}

TEST_CASE("launcher: processes started by a failed rank end with it") {
  const Launching launching(2);
  const LaunchReport report = launching.run({"when=0", "child", "exit=3", "when=1", "child", "hang"});
  CHECK(report.exit_code == 3);
  for (const char* name : {"child.0", "child.1"}) {
    const pid_t child = std::stoi(test::read_text(launching / name));
    CHECK(test::comes_true([&] { return test::is_gone(child); }, 2));
  }
}

TEST_CASE("launcher: codes of orderly ends are passed on and never cause a restart") {
  const int code = GENERATE(75, 130, 143);
  Launching launching(2);
  launching.options.max_restarts = 3;
  const LaunchReport report = launching.run({cat("exit=", code)});
  CHECK(report.exit_code == code);
  CHECK(report.restarts == 0);
  CHECK(report.message.empty());
  CHECK_FALSE(launching.has("started.0.1"));
  // Rank 0 knows whether there is a checkpoint.
  CHECK(Launching(2).run({"when=0", "exit=75", "when=1", cat("exit=", code)}).exit_code == 75);
  CHECK(Launching(2).run({"when=0", "exit=0", "when=1", cat("exit=", code)}).exit_code == code);
}

TEST_CASE("launcher: a group is restarted until it succeeds") {
  Launching launching(2);
  launching.options.max_restarts = 3;
  const bool fixed = GENERATE(false, true);
  if (fixed) launching.options.main_port = test::free_port();
  const LaunchReport report = launching.run({"when=1@0", "kill=9", "when=0@1", "exit=3", "when=1@1", "hang"});
  CHECK(report.exit_code == 0);
  CHECK(report.restarts == 2);
  CHECK(report.message.empty());
  for (int64_t restart = 0; restart <= 2; ++restart) {
    CHECK(launching.environment_of(0, restart).at("FULGUR_RESTARTS") == std::to_string(restart));
    if (fixed)
      CHECK(launching.environment_of(1, restart).at("MASTER_PORT") == std::to_string(launching.options.main_port));
  }
  CHECK_FALSE(launching.has("started.0.3"));
  check_no_child_is_left();
}

TEST_CASE("launcher: the number of restarts is limited") {
  Launching launching(2);
  launching.options.max_restarts = 3;
  const LaunchReport report = launching.run({"when=1", "kill=9"});
  CHECK(report.exit_code == 5);
  CHECK(report.restarts == 3);
  CHECK_THAT(report.message, StartsWith("[strategies.launcher] rank 1 of 2 was ended by signal 9") &&
                                 ContainsSubstring("restarted 3 times (max_restarts 3)"));
  CHECK(launching.has("started.1.3"));
  CHECK_FALSE(launching.has("started.1.4"));
}

TEST_CASE("launcher: a wrong config is not tried twice") {
  Launching launching(2);
  launching.options.max_restarts = 3;
  const LaunchReport report = launching.run({"exit=2"});
  CHECK(report.exit_code == 2);
  CHECK(report.restarts == 0);
  CHECK_FALSE(launching.has("started.0.1"));
}

TEST_CASE("launcher: the store exists while the processes run, reports a failure, and ends with them") {
  Launching launching(2);
  launching.options.grace_s = 20;
  const pid_t pid =
      launching.run_apart({"when=1", "wait=fail", "say=broken", "exit=1", "when=0", "wait=end", "exit=5"});
  REQUIRE(launching.wait_for_start(2));
  LaunchOptions client;
  client.num_nodes = 2;
  client.node_rank = 1;
  client.main_port = std::stoll(launching.environment_of(0).at("MASTER_PORT"));
  client.start_timeout_s = 5;
  {
    fulgur::detail::LaunchStore store(client);
    CHECK(store.get(launcher_failure_key(0)) == std::nullopt);
    test::write_text(launching / "fail", "");
    CHECK(test::comes_true([&] { return store.get(launcher_failure_key(0)).has_value(); }));
    CHECK(store.get(launcher_failure_key(0)) == "rank 1 of 2 exited with code 1: broken");
  }
  test::write_text(launching / "end", "");
  CHECK(test::code_of(pid) == 1);
  ::close(fulgur::detail::listen_on("127.0.0.1", client.main_port, true).fd);
}

TEST_CASE("launcher: a port in use is an error at once") {
  Launching launching(2);
  const fulgur::detail::ListeningSocket taken = fulgur::detail::listen_on("127.0.0.1", 0, true);
  launching.options.main_port = taken.port;
  const std::string message = test::message_of<DistributedError>([&] { launching.run({}); });
  ::close(taken.fd);
  CHECK_THAT(message, ContainsSubstring(cat("port ", taken.port, " of 127.0.0.1")) &&
                          ContainsSubstring("Address already in use") && ContainsSubstring("MASTER_PORT"));
  CHECK_FALSE(launching.has("started.0.0"));
}

TEST_CASE("launcher: a port below 1024 needs privileges") {
  if (std::stoi(test::read_text("/proc/sys/net/ipv4/ip_unprivileged_port_start")) <= 81)
    SKIP("this machine gives low ports to everybody");
  const Launching launching(1);
  // In a process without those privileges.
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::string message = "no error";
    if (::geteuid() == 0 && ::setuid(65534) != 0) message = "cannot give up rights";
    try {
      ::close(fulgur::detail::listen_on("127.0.0.1", 81, true).fd);
    } catch (const DistributedError& error) {
      message = error.what();
    }
    [[maybe_unused]] const ssize_t written = ::write(ends[1], message.data(), message.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  char text[1024];
  const ssize_t size = ::read(ends[0], text, sizeof text);
  ::close(ends[0]);
  CHECK(test::code_of(pid) == 0);
  CHECK_THAT(std::string(text, static_cast<size_t>(std::max<ssize_t>(size, 0))),
             ContainsSubstring("port 81") && ContainsSubstring("Permission denied") && ContainsSubstring("below 1024"));
}

TEST_CASE("launcher: a program that cannot be started is named") {
  Launching launching(2);
  launching.options.program = launching / "missing";
  const std::string message = test::message_of<DistributedError>([&] { launching.run({}); });
  CHECK_THAT(message, ContainsSubstring("missing") && ContainsSubstring("No such file"));
  check_no_child_is_left();
  CHECK_THAT(test::message_of<ConfigError>([] { launch({.processes = 0}, {"x"}); }),
             ContainsSubstring("processes is 0"));
  CHECK_THAT(test::message_of<ConfigError>([] { launch({.num_nodes = 2}, {"x"}); }), ContainsSubstring("MASTER_PORT"));
  CHECK_THAT(test::message_of<ConfigError>([] { launch({.main_port = 65536}, {"x"}); }), ContainsSubstring("65536"));
}

TEST_CASE("launcher: 20 at once find different ports") {
  std::deque<Launching> launchings;
  for (int i = 0; i < 20; ++i) launchings.emplace_back(2);
  std::vector<pid_t> pids;
  for (const Launching& launching : launchings) pids.push_back(launching.run_apart({"wait=all"}));
  std::vector<std::string> ports;
  for (const Launching& launching : launchings) {
    CHECK(launching.wait_for_start(2));
    ports.push_back(launching.environment_of(0).at("MASTER_PORT"));
  }
  for (const Launching& launching : launchings) test::write_text(launching / "all", "");
  for (const pid_t pid : pids) CHECK(test::code_of(pid) == 0);
  std::sort(ports.begin(), ports.end());
  CHECK(std::unique(ports.begin(), ports.end()) == ports.end());
}

// Not listed: what the test below starts.
TEST_CASE("program launched by a test", "[.launched]") {
  if (!std::getenv("FULGUR_TEST_FOLDER")) SKIP("started by another test only");
  test::write_text(std::filesystem::path(std::getenv("FULGUR_TEST_FOLDER")) / std::getenv("RANK"),
                   std::getenv("WORLD_SIZE"));
}

TEST_CASE("launcher: without a program it starts its own once more") {
  const test::TemporaryFolder folder;
  const Variable where("FULGUR_TEST_FOLDER", folder.path().c_str());
  const LaunchReport report = launch({.processes = 2}, {"test_strategies", "program launched by a test"});
  CHECK(report.exit_code == 0);
  CHECK(test::read_text(folder / "0") == "2");
  CHECK(test::read_text(folder / "1") == "2");
}

TEST_CASE("tell_launcher does nothing without a listener") {
  const Variable stale("FULGUR_FAILURE_PIPE", "1:1");
  CHECK_FALSE(tell_launcher("not to be printed"));
  const Variable odd("FULGUR_FAILURE_PIPE", "x");
  CHECK_FALSE(tell_launcher("not to be printed"));
}

}  // namespace launcher_test
