#include "fulgur/core/system/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fulgur/core/system/unique_fd.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace fs = std::filesystem;
namespace {

Error not_regular(const fs::path& path, bool is_folder) {
  return Error(cat("[file] ", escape_controls(path.string()), " is not a regular file",
                   is_folder ? " but a folder" : " but a fifo, socket or device", ". Move it away."));
}

Error not_readable(const fs::path& path, int code) {
  return Error(cat("[file] ", escape_controls(path.string()), " cannot be read: ", std::strerror(code), "."));
}

}  // namespace

std::optional<std::string> read_regular_file(const fs::path& path) {
  // Without blocking until someone writes into a fifo.
  const detail::UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0 && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  if (file.get() < 0 && errno != ENXIO) throw not_readable(path, errno);
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    throw not_regular(path, S_ISDIR(status.st_mode));
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw not_readable(path, errno);
    if (got == 0) break;  // it became shorter
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

void check_replaceable(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (!fs::exists(status) || fs::is_regular_file(status) || fs::is_symlink(status)) return;
  throw not_regular(path, fs::is_directory(status));
}

}  // namespace fulgur
