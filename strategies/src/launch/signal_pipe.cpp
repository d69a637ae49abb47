#include "fulgur/strategies/signal_pipe.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

std::atomic<int> g_write{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void put(unsigned char byte) {
  const int before = errno;
  // A full pipe loses nothing: the reader checks all processes whenever it wakes.
  [[maybe_unused]] const ssize_t written = ::write(g_write.load(), &byte, 1);
  errno = before;
}

void handle(int number) { put(static_cast<unsigned char>(number)); }

}  // namespace

SignalPipe::SignalPipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    throw DistributedError(cat("[strategies.launcher] a pipe for signals is needed; ", std::strerror(errno),
                               ". Raise the limit of open files."));
  int none = -1;
  if (!g_write.compare_exchange_strong(none, ends[1])) {
    ::close(ends[0]);
    ::close(ends[1]);
    throw DistributedError(
        "[strategies.launcher] a process launches one group at a time; another launch is in progress. Wait until it "
        "ends.");
  }
  read_ = ends[0];
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART | SA_NOCLDSTOP;
  sigset_t caught;
  sigemptyset(&caught);
  for (size_t i = 0; i < kCaught.size(); ++i) {
    sigaction(kCaught[i], &action, &old_[i]);
    sigaddset(&caught, kCaught[i]);
  }
  pthread_sigmask(SIG_UNBLOCK, &caught, &old_mask_);
}

SignalPipe::~SignalPipe() {
  restore();
  ::close(g_write.exchange(-1));
  ::close(read_);
}

void SignalPipe::restore() const {
  for (size_t i = 0; i < kCaught.size(); ++i) sigaction(kCaught[i], &old_[i], nullptr);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

void SignalPipe::wake() { put(0); }

std::vector<int> SignalPipe::wait(std::chrono::milliseconds timeout) {
  struct pollfd waiting {
    read_, POLLIN, 0
  };
  ::poll(&waiting, 1, timeout.count() < 0 ? -1 : static_cast<int>(timeout.count()));
  std::vector<int> out;
  unsigned char bytes[64];
  for (ssize_t count = 0; (count = ::read(read_, bytes, sizeof bytes)) > 0;) {
    for (ssize_t i = 0; i < count; ++i) {
      if (bytes[i] != 0) out.push_back(bytes[i]);
    }
  }
  return out;
}

}  // namespace fulgur::detail
