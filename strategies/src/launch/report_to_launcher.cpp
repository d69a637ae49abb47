#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "fulgur/strategies/launcher.h"

namespace fulgur {

bool tell_launcher(std::string_view message) noexcept {
  // "FD:INODE", since a grandchild that inherits the variable may have another file under that number.
  const char* variable = std::getenv("FULGUR_FAILURE_PIPE");
  int fd = -1;
  unsigned long long inode = 0;
  struct stat status {};
  if (!variable || std::sscanf(variable, "%d:%llu", &fd, &inode) != 2 || ::fstat(fd, &status) != 0 ||
      !S_ISFIFO(status.st_mode) || status.st_ino != inode)
    return false;
  // Write what fits at once, so that we never block on the launcher.
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  const ssize_t written = ::write(fd, message.data(), std::min<size_t>(message.size(), PIPE_BUF));
  ::close(fd);
  return written >= 0 && static_cast<size_t>(written) == message.size() &&
         std::getenv("FULGUR_LAUNCHER_SHOWS") != nullptr;
}

std::string launcher_failure_key(int64_t restarts) { return "launcher/failed/" + std::to_string(restarts); }

}  // namespace fulgur
