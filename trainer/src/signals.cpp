#include "signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

namespace fulgur::detail::signals {
namespace {

std::atomic<int> g_received{0};
struct sigaction g_old_int, g_old_term;

void handle(int number) {
  int expected = 0;
  if (!g_received.compare_exchange_strong(expected, number) && number == SIGINT) _exit(130);
}

std::mutex g_mutex;
int g_scopes = 0;

}  // namespace

// Runs may be nested, or stand beside each other in threads: the first installs the handlers, the last takes them away.
Scope::Scope() {
  const std::lock_guard lock(g_mutex);
  if (g_scopes++ > 0) return;
  g_received = 0;
  struct sigaction action {};
  action.sa_handler = handle;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &g_old_int);
  sigaction(SIGTERM, &action, &g_old_term);
}

Scope::~Scope() {
  const std::lock_guard lock(g_mutex);
  if (--g_scopes > 0) return;
  sigaction(SIGINT, &g_old_int, nullptr);
  sigaction(SIGTERM, &g_old_term, nullptr);
}

std::optional<int> received() {
  const int number = g_received;
  if (number == 0) return std::nullopt;
  return number;
}

}  // namespace fulgur::detail::signals
