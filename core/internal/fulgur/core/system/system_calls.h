#pragma once

#include <sys/types.h>

#include <cstddef>

namespace fulgur::detail {

/// The system calls with which files change that must be complete or absent. Tests derive from it to make each of them
/// fail, stop short, or be the last thing a process does.
struct SystemCalls {
  virtual ~SystemCalls() = default;
  virtual int open(const char* path, int flags, mode_t mode);
  virtual ssize_t write(int fd, const void* data, size_t bytes);
  virtual ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at);
  virtual int fallocate(int fd, off_t bytes);
  virtual int start_writing_back(int fd, off_t begin, off_t bytes);
  virtual int fsync(int fd);
  virtual int close(int fd);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int rename(const char* from, const char* to);
  virtual int symlink(const char* target, const char* link);
  virtual int flock(int fd, int operation);
};

/// The system calls in use. Thread-safe.
SystemCalls& system_calls();

/// Uses `calls` during its lifetime; for tests.
class ScopedSystemCalls {
 public:
  explicit ScopedSystemCalls(SystemCalls& calls);
  ~ScopedSystemCalls();
  ScopedSystemCalls(const ScopedSystemCalls&) = delete;
  ScopedSystemCalls& operator=(const ScopedSystemCalls&) = delete;

 private:
  SystemCalls* before_;
};

}  // namespace fulgur::detail
