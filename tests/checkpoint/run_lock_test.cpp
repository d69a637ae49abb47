#include "fulgur/checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "checkpoint/fault_calls.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace run_lock_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

std::string host() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::string holder(int64_t pid, const std::string& at) { return cat("pid ", pid, "\nhost ", at, "\n"); }

// What is logged while it lives.
class Logged {
 public:
  Logged() {
    log::reset_warnings();
    log::set_sink([](log::Level, const std::string& line, void* self) { static_cast<Logged*>(self)->text += line; },
                  this);
  }
  ~Logged() { log::set_sink(nullptr, nullptr); }
  Logged(const Logged&) = delete;
  Logged& operator=(const Logged&) = delete;
  std::string text;
};

// A pid that belonged to a process which is gone.
pid_t dead_pid() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  return child;
}

// A process that runs `body` and then waits to be killed.
class Sleeper {
 public:
  explicit Sleeper(const std::function<void()>& body) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      body();
      [[maybe_unused]] const auto told = ::write(ends[1], "x", 1);
      pause();
      _exit(0);
    }
    char byte;
    REQUIRE(::read(ends[0], &byte, 1) == 1);
    close(ends[0]);
    close(ends[1]);
  }
  ~Sleeper() { end(); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  pid_t pid() const { return pid_; }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

}  // namespace

TEST_CASE("F18 a run folder has one holder, and is free again afterwards") {
  TemporaryFolder folder;
  const Logged logged;
  {
    const RunLock lock(folder.path());
    CHECK(read_text(lock.path()) == holder(getpid(), host()));
    try {
      const RunLock second(folder.path());
      FAIL("a second lock was given");
    } catch (const ConfigError& error) {
      CHECK(error.code() == ExitCode::usage);
      CHECK_THAT(error.what(),
                 ContainsSubstring(cat("locked by pid ", static_cast<int64_t>(getpid()), " on host ", host())));
    }
    CHECK(fs::exists(lock.path()));
  }
  CHECK(fs::is_empty(folder.path()));
  RunLock moved = [&] { return RunLock(folder.path()); }();
  RunLock last = std::move(moved);
  CHECK(fs::exists(last.path()));
  CHECK_THROWS_AS(RunLock(folder.path()), ConfigError);
  CHECK(logged.text.empty());
}

TEST_CASE(
    "F18 another process that holds the folder is named; when it was killed the lock is taken over with a warning") {
  TemporaryFolder folder;
  Sleeper other([&] { new RunLock(folder.path()); });
  CHECK_THROWS_WITH(RunLock(folder.path()),
                    ContainsSubstring(cat("locked by pid ", static_cast<int64_t>(other.pid()))));
  const std::string left = cat("was left by pid ", static_cast<int64_t>(other.pid()), " on host ", host());
  other.end();
  const Logged logged;
  const RunLock lock(folder.path());
  CHECK_THAT(logged.text, ContainsSubstring(left) && ContainsSubstring("taken over") &&
                              ContainsSubstring("[checkpoint.stale_lock]"));
  CHECK(read_text(lock.path()) == holder(getpid(), host()));
}

TEST_CASE("F18 a lock that only a child of its dead holder still has is taken over") {
  TemporaryFolder folder;
  // The sleeper inherits the open file of a process that ends at once.
  const fs::path file = folder / "run.lock";
  write_text(file, holder(dead_pid(), host()));
  const Sleeper child([&] { flock(open(file.c_str(), O_RDWR), LOCK_EX); });
  const Logged logged;
  {
    const RunLock lock(folder.path());
    CHECK_THAT(logged.text, ContainsSubstring("taken over"));
    CHECK(read_text(file) == holder(getpid(), host()));
    CHECK_THROWS_WITH(RunLock(folder.path()), ContainsSubstring(cat("pid ", static_cast<int64_t>(getpid()))));
  }
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("F18 a locked file without a holder's name, or of another host, is respected") {
  TemporaryFolder folder;
  const fs::path file = folder / "run.lock";
  for (const std::string& text : {std::string(), std::string("garbage\n"), holder(dead_pid(), "another-host")}) {
    write_text(file, text);
    const Sleeper other([&] { flock(open(file.c_str(), O_RDWR), LOCK_EX); });
    CHECK_THROWS_AS(RunLock(folder.path()), ConfigError);
    CHECK(read_text(file) == text);
  }
}

TEST_CASE("F18 without flock the holder's name decides") {
  TemporaryFolder folder;
  const fs::path file = folder / "run.lock";
  const FaultCalls no_flock([](std::string_view call_name, const auto& call) -> long {
    return call_name == "flock" ? (errno = ENOLCK, -1) : call();
  });
  for (const std::string& text : {holder(getppid(), host()), holder(dead_pid(), "another-host")}) {
    write_text(file, text);
    CHECK_THROWS_AS(RunLock(folder.path()), ConfigError);
  }
  write_text(file, holder(dead_pid(), host()));
  const Logged logged;
  const RunLock lock(folder.path());
  CHECK_THAT(logged.text, ContainsSubstring("taken over"));
  CHECK(read_text(file) == holder(getpid(), host()));
}

TEST_CASE("F18 processes that ask whether a folder is held do not hold it") {
  const TemporaryFolder folder;
  CHECK_FALSE(RunLock::is_held(folder.path()));
  CHECK_FALSE(RunLock::is_held(folder / "absent"));
  {
    const RunLock lock(folder.path());
    CHECK(RunLock::is_held(folder.path()));
  }
  CHECK_FALSE(RunLock::is_held(folder.path()));
  // What a dead process left is not held, and many that ask at once agree.
  write_text(folder / "run.lock", holder(dead_pid(), host()));
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    bool held = false;
    for (int k = 0; k < 500; ++k) held = held || RunLock::is_held(folder.path());
    _exit(held ? 1 : 0);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  CHECK(fs::exists(folder / "run.lock"));
}

TEST_CASE("F18 many processes that request one folder at once get it one by one") {
  TemporaryFolder folder;
  TemporaryFolder marks;
  std::vector<pid_t> children;
  for (int child = 0; child < 4; ++child) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    int held = 0;
    while (held < 50) {
      try {
        const RunLock lock(folder.path());
        const int fd = open((marks / "inside").c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644);
        if (fd < 0) _exit(1);
        close(fd);
        ++held;
        unlink((marks / "inside").c_str());
      } catch (const ConfigError&) {
      } catch (...) {
        _exit(2);
      }
    }
    _exit(42);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(exited(status, 42));
  }
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("F18 a folder that is absent, or a lock that cannot be made, is an error of checkpoints") {
  TemporaryFolder folder;
  CHECK_THROWS_AS(RunLock(folder / "absent"), CheckpointError);
  fs::create_directory(folder / "run.lock");
  CHECK_THROWS_WITH(RunLock(folder.path()), ContainsSubstring("run.lock"));
}

}  // namespace run_lock_test
