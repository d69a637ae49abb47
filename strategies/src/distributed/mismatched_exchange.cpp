#include "distributed/mismatched_exchange.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/launcher.h"

namespace fulgur::detail {
namespace {

std::mutex g_exchange_mutex;
Heartbeat* g_heartbeat = nullptr;
int64_t g_rank = 0, g_world_size = 1;
std::terminate_handler g_before = nullptr;

// The message of the exception that ends the process, if it is Gloo's.
std::string message_of_gloo() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    if (text.find("gloo") != text.npos) return first_line(text);
  } catch (...) {
  }
  return "";
}

[[noreturn]] void end(const std::string& message) {
  const std::lock_guard lock(g_exchange_mutex);
  if (g_heartbeat) g_heartbeat->say_failed();
  // Ranks that are waiting report once a second which exchange they wait in.
  if (g_heartbeat) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  const std::string text = cat(
      "[strategies.exchange] rank ", g_rank, " of ", g_world_size, ": the ranks exchange different things: ", message,
      "\nwhat the ranks did:", g_heartbeat ? g_heartbeat->report() : std::string(" unknown, the run has ended"),
      "\nOne does something different from the others, ", kMismatchCauses);
  const bool shown = tell_launcher(text);
  for (size_t begin = 0; begin <= text.size() && !shown;) {
    const size_t newline = std::min(text.find('\n', begin), text.size());
    log::error(text.substr(begin, newline - begin));
    begin = newline + 1;
  }
  ::_exit(static_cast<int>(ExitCode::distributed));
}

void handle() {
  if (const std::string message = message_of_gloo(); !message.empty()) end(message);
  if (g_before) g_before();
  std::abort();
}

}  // namespace

void report_mismatches(Heartbeat& heartbeat, const ProcessPlace& place) {
  const std::lock_guard lock(g_exchange_mutex);
  g_heartbeat = &heartbeat;
  g_rank = place.rank;
  g_world_size = place.world_size;
  // Never removed: Gloo's threads outlive their group.
  static const bool installed = (g_before = std::set_terminate(handle), true);
  static_cast<void>(installed);
}

void forget_mismatches(const Heartbeat& heartbeat) {
  const std::lock_guard lock(g_exchange_mutex);
  if (g_heartbeat == &heartbeat) g_heartbeat = nullptr;
}

}  // namespace fulgur::detail
