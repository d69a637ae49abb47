#include "process/signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <iterator>
#include <mutex>

#include "fulgur/core/system/stop_signal.h"

namespace fulgur::detail::signals {
namespace {

std::atomic<bool> g_save{false};
std::atomic<int64_t> g_received_at_ms{0};
// A scheduler may send one signal to both the launcher and the ranks, to which the launcher forwards it too.
constexpr int64_t kSecondSignal_ms = 2000;
constexpr int kCaught[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE, SIGXFSZ};
struct sigaction g_old[std::size(kCaught)];

int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000} * now.tv_sec + now.tv_nsec / 1000000;
}

void handle(int number) {
  if (number == SIGUSR1) {
    g_save = true;
    return;
  }
  int expected = 0;
  if (stop_signal().compare_exchange_strong(expected, number)) {
    g_received_at_ms = now_ms();
    return;
  }
  if (number == SIGINT) _exit(130);
  if (now_ms() - g_received_at_ms >= kSecondSignal_ms) _exit(143);
}

std::mutex g_mutex;
int g_scopes = 0;

}  // namespace

// Runs may be nested, or run concurrently in threads: the first installs the handlers, the last removes them.
Scope::Scope() {
  const std::lock_guard lock(g_mutex);
  if (g_scopes++ > 0) return;
  stop_signal() = 0;
  g_save = false;
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < std::size(kCaught); ++i) {
    // A closed pipe must not end a run in the middle of a save, and exceeding a file size limit is an error of write().
    const bool is_error = kCaught[i] == SIGPIPE || kCaught[i] == SIGXFSZ;
    action.sa_handler = is_error ? SIG_IGN : handle;
    sigaction(kCaught[i], &action, &g_old[i]);
  }
}

Scope::~Scope() {
  const std::lock_guard lock(g_mutex);
  if (--g_scopes > 0) return;
  for (size_t i = 0; i < std::size(kCaught); ++i) sigaction(kCaught[i], &g_old[i], nullptr);
}

bool take_save_request() { return g_save.exchange(false); }

std::optional<int> received() {
  const int number = stop_signal();
  if (number == 0) return std::nullopt;
  return number;
}

}  // namespace fulgur::detail::signals
