#include "durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fulgur/core/errors.h"
#include "fulgur/core/text.h"

namespace fulgur::detail {

void throw_errno(const std::string& what, const std::filesystem::path& path, int error) {
  std::string message = cat("[checkpoint] ", what, " failed; ", path, ": ", std::strerror(error), ".");
  struct statvfs space {};
  if (error == ENOSPC && statvfs(path.parent_path().c_str(), &space) == 0)
    message += cat(" ", static_cast<uint64_t>(space.f_bavail) * space.f_frsize, " bytes are free there. Make room, or set another default_root_dir.");
  throw CheckpointError(message);
}

DurableFile::DurableFile(const std::filesystem::path& path) : path_(path) {
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("creating a file");
}

DurableFile::~DurableFile() {
  if (fd_ >= 0) close(fd_);
}

void DurableFile::fail(const char* what) const { throw_errno(what, path_, errno); }

void DurableFile::write(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, next, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("writing");
    }
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void DurableFile::commit() {
  if (fsync(fd_) != 0) fail("syncing");
  const int fd = fd_;
  fd_ = -1;
  if (close(fd) != 0) fail("closing");
}

void sync_folder(const std::filesystem::path& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_errno("opening a folder", folder, errno);
  const int result = fsync(fd);
  const int error = errno;
  close(fd);
  // Some file systems cannot sync folders and say so.
  if (result != 0 && error != EINVAL && error != ENOTSUP) throw_errno("syncing a folder", folder, error);
}

std::string read_file(const std::filesystem::path& path, size_t limit) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) throw_errno("opening", path, errno);
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    throw CheckpointError(cat("[checkpoint] ", path, " is no regular file."));
  }
  if (static_cast<uint64_t>(info.st_size) > limit) {
    close(fd);
    throw CheckpointError(cat("[checkpoint] ", path, " has ", static_cast<int64_t>(info.st_size), " bytes; at most ", limit, " are expected."));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(fd, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      const int error = errno;
      close(fd);
      if (got == 0) throw CheckpointError(cat("[checkpoint] ", path, " is truncated: have ", done, " of ", text.size(), " bytes."));
      throw_errno("reading", path, error);
    }
    done += static_cast<size_t>(got);
  }
  close(fd);
  return text;
}

}  // namespace fulgur::detail
