#include "fulgur/checkpoint/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <utility>

#include "fulgur/core/system/durable_file.h"
#include "fulgur/core/system/system_calls.h"
#include "fulgur/core/system/unique_fd.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace fs = std::filesystem;
namespace {

struct Holder {
  pid_t pid = 0;
  std::string host;
};

std::string this_host() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

// `pid 12\nhost name\n`; pid 0 for any other text.
Holder read_holder(int fd) {
  char buffer[512];
  const ssize_t got = pread(fd, buffer, sizeof buffer, 0);
  const std::string_view text(buffer, got > 0 ? static_cast<size_t>(got) : 0);
  Holder holder;
  const size_t line = text.find('\n');
  if (line == std::string_view::npos || !text.starts_with("pid ") || !text.substr(line + 1).starts_with("host "))
    return {};
  std::from_chars(text.data() + 4, text.data() + line, holder.pid);
  const std::string_view rest = text.substr(line + 6);
  holder.host = rest.substr(0, rest.find('\n'));
  return holder;
}

bool write_holder(int fd) {
  const std::string text = cat("pid ", static_cast<int64_t>(getpid()), "\nhost ", this_host(), "\n");
  return ftruncate(fd, 0) == 0 && pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

bool is_dead(const Holder& holder) {
  return holder.pid > 0 && holder.host == this_host() && kill(holder.pid, 0) != 0 && errno == ESRCH;
}

std::string describe(const Holder& holder) {
  if (holder.pid == 0) return "another process";
  return cat("pid ", static_cast<int64_t>(holder.pid), " on host ", escape_controls(holder.host));
}

[[noreturn]] void refuse(const fs::path& path, const Holder& holder) {
  throw ConfigError(cat("[checkpoint.run_lock] one run at a time may use a run folder; ",
                        escape_controls(path.parent_path().string()), " is locked by ", describe(holder),
                        ". Wait for that run, or choose another folder. If that run has certainly ended, remove ",
                        escape_controls(path.string()), "."));
}

bool is_file_at(int fd, const fs::path& path) {
  struct stat open_file {
  }, at_path{};
  return fstat(fd, &open_file) == 0 && stat(path.c_str(), &at_path) == 0 && open_file.st_ino == at_path.st_ino &&
         open_file.st_dev == at_path.st_dev;
}

int open_lock_file(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (fd < 0) detail::throw_errno("creating the lock of a run folder", path, errno);
  return fd;
}

}  // namespace

RunLock::RunLock(const fs::path& folder) : path_(folder / "run.lock") {
  detail::SystemCalls& calls = detail::system_calls();
  // Locking the folder itself serialises processes that start together, for the duration of this function.
  const detail::UniqueFd turn(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (turn.get() < 0) detail::throw_errno("opening the run folder", folder, errno);
  const bool has_flock = calls.flock(turn.get(), LOCK_EX) == 0;
  Holder stale;
  while (fd_ < 0) {
    detail::UniqueFd file(open_lock_file(path_));
    const Holder holder = read_holder(file.get());
    const bool locked = has_flock && calls.flock(file.get(), LOCK_EX | LOCK_NB) == 0;
    if (has_flock && !locked && errno != EWOULDBLOCK) detail::throw_errno("locking", path_, errno);
    if (!locked && holder.pid != 0 && !is_dead(holder)) refuse(path_, holder);
    if (has_flock && !locked) {
      if (holder.pid == 0) refuse(path_, holder);
      // A child of the dead holder keeps the old file locked; the next file is ours.
      stale = holder;
      unlink(path_.c_str());
      continue;
    }
    if (holder.pid != 0) stale = holder;
    // A holder that released it in between has removed the file that we opened.
    if (is_file_at(file.get(), path_)) fd_ = file.release();
  }
  if (stale.pid != 0)
    log::warn("checkpoint.stale_lock",
              cat("the lock of ", path_, " was left by ", describe(stale), ", which no longer runs; it is taken over"));
  if (!write_holder(fd_)) {
    const int reason = errno;
    release();
    detail::throw_errno("writing", path_, reason);
  }
}

bool RunLock::is_held(const fs::path& folder) {
  detail::SystemCalls& calls = detail::system_calls();
  // While the folder is locked, no constructor runs in another process.
  const detail::UniqueFd turn(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (turn.get() < 0) return false;
  const bool has_flock = calls.flock(turn.get(), LOCK_EX) == 0;
  const detail::UniqueFd file(open((folder / "run.lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) return false;
  const Holder holder = read_holder(file.get());
  if (has_flock && calls.flock(file.get(), LOCK_EX | LOCK_NB) == 0) return false;
  return holder.pid == 0 ? has_flock : !is_dead(holder);
}

void RunLock::release() noexcept {
  if (fd_ < 0) return;
  // Only our own file: a process that took over the folder has another.
  if (is_file_at(fd_, path_)) unlink(path_.c_str());
  close(std::exchange(fd_, -1));
}

RunLock::~RunLock() { release(); }
RunLock::RunLock(RunLock&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
RunLock& RunLock::operator=(RunLock&& other) noexcept {
  if (this != &other) {
    release();
    path_ = std::move(other.path_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

}  // namespace fulgur
