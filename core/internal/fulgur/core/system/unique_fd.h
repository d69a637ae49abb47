#pragma once

#include <unistd.h>

#include <utility>

namespace fulgur::detail {

/// Owns a file descriptor; -1 means none.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  /// Closes it, and owns `fd` instead.
  void reset(int fd = -1) {
    if (const int before = std::exchange(fd_, fd); before >= 0) ::close(before);
  }

 private:
  int fd_;
};

}  // namespace fulgur::detail
