#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>
#include <string_view>

#include "fulgur/core/system/system_calls.h"

namespace fulgur::test {

/// The real system calls, as changed by `around`. fsync does nothing: no test here cuts the power.
class FaultCalls : public detail::SystemCalls {
 public:
  /// Gets the name of the call and the call itself; returns its result.
  using Around = std::function<long(std::string_view, const std::function<long()>&)>;
  explicit FaultCalls(Around around) : around_(std::move(around)), scope_(*this) {}

  /// How much of the next write is done; everything if empty.
  std::function<size_t(size_t)> shorten;

  int open(const char* path, int flags, mode_t mode) override {
    return as_int(around_("open", [&] { return SystemCalls::open(path, flags, mode); }));
  }
  ssize_t write(int fd, const void* data, size_t bytes) override {
    return around_("write", [&] { return SystemCalls::write(fd, data, shorten ? shorten(bytes) : bytes); });
  }
  ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) override {
    return around_("pwrite", [&] { return SystemCalls::pwrite(fd, data, shorten ? shorten(bytes) : bytes, at); });
  }
  int fallocate(int fd, off_t bytes) override {
    return as_int(around_("fallocate", [&] { return SystemCalls::fallocate(fd, bytes); }));
  }
  int start_writing_back(int fd, off_t begin, off_t bytes) override {
    return as_int(around_("start_writing_back", [&] { return SystemCalls::start_writing_back(fd, begin, bytes); }));
  }
  int fsync(int) override {
    return as_int(around_("fsync", [] { return 0; }));
  }
  int close(int fd) override {
    return as_int(around_("close", [&] { return SystemCalls::close(fd); }));
  }
  int mkdir(const char* path, mode_t mode) override {
    return as_int(around_("mkdir", [&] { return SystemCalls::mkdir(path, mode); }));
  }
  int rename(const char* from, const char* to) override {
    return as_int(around_("rename", [&] { return SystemCalls::rename(from, to); }));
  }
  int symlink(const char* target, const char* link) override {
    return as_int(around_("symlink", [&] { return SystemCalls::symlink(target, link); }));
  }
  int flock(int fd, int operation) override {
    return as_int(around_("flock", [&] { return SystemCalls::flock(fd, operation); }));
  }

 private:
  static int as_int(long result) { return static_cast<int>(result); }
  Around around_;
  detail::ScopedSystemCalls scope_;
};

/// Runs `body` in a child process and returns what waitpid says of it. The child's exit code is what `body` returns, 99
/// if it throws.
inline int in_child(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    int code = 99;
    try {
      code = body();
    } catch (...) {
    }
    _exit(code);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

/// True if a child ended by itself with this code.
inline bool exited(int status, int code) { return WIFEXITED(status) && WEXITSTATUS(status) == code; }

}  // namespace fulgur::test
