#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <mutex>
#include <string>

#include "fulgur/core/text/log.h"
#include "fulgur/strategies/launcher.h"

namespace fulgur {
namespace {

std::mutex g_report_mutex;
std::string g_kept;  // with a newline in front

bool launcher_shows() {
  return std::getenv("FULGUR_FAILURE_PIPE") != nullptr && std::getenv("FULGUR_LAUNCHER_SHOWS") != nullptr;
}

// Prints what was kept, since the launcher does not get it.
void print_kept() {
  for (size_t begin = 1; begin < g_kept.size();) {
    const size_t end = std::min(g_kept.find('\n', begin), g_kept.size());
    log::error(g_kept.substr(begin, end - begin));
    begin = end + 1;
  }
  g_kept.clear();
}

// True if all of it reached the launcher.
bool send(std::string_view message) {
  // "FD:INODE", since a grandchild that inherits the variable may have another file under that number.
  const char* variable = std::getenv("FULGUR_FAILURE_PIPE");
  int fd = -1;
  unsigned long long inode = 0;
  struct stat status {};
  if (!variable || std::sscanf(variable, "%d:%llu", &fd, &inode) != 2 || ::fstat(fd, &status) != 0 ||
      !S_ISFIFO(status.st_mode) || status.st_ino != inode)
    return false;
  // Write what fits at once, so that we never block on the launcher. Nothing is allocated: memory may have run out.
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  const size_t first = std::min<size_t>(message.size(), PIPE_BUF);
  const size_t second = std::min<size_t>(g_kept.size(), PIPE_BUF - first);
  const std::array<iovec, 2> parts{iovec{const_cast<char*>(message.data()), first}, iovec{g_kept.data(), second}};
  const ssize_t written = ::writev(fd, parts.data(), static_cast<int>(parts.size()));
  ::close(fd);
  return written >= 0 && static_cast<size_t>(written) == message.size() + g_kept.size();
}

}  // namespace

bool tell_launcher(std::string_view message) noexcept {
  const std::lock_guard lock(g_report_mutex);
  const bool shows = launcher_shows();
  const bool sent = send(message);
  if (shows && !sent) print_kept();
  return shows && sent;
}

bool keep_for_launcher(const std::string& lines) noexcept {
  const std::lock_guard lock(g_report_mutex);
  g_kept = lines.empty() ? std::string() : "\n" + lines;
  return launcher_shows();
}

std::string launcher_failure_key(int64_t restarts) { return "launcher/failed/" + std::to_string(restarts); }

}  // namespace fulgur
