#include "fulgur/core/system/durable_file.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "fulgur/core/system/system_calls.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr uint64_t kWorthReserving = 64u << 10;
// Starts write-back while the rest is written, so that the final fsync has little left to wait for.
constexpr uint64_t kWriteBackBytes = 8u << 20;

}  // namespace

void throw_errno(const std::string& what, const std::filesystem::path& path, int error) {
  throw FileError(
      cat("[core.files] ", what, " failed; ", escape_controls(path.string()), ": ", std::strerror(error), "."), error);
}

DurableFile::DurableFile(const std::filesystem::path& path) : path_(path) {
  fd_ = system_calls().open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("creating a file");
}

DurableFile::~DurableFile() {
  if (fd_ >= 0) system_calls().close(fd_);
}

void DurableFile::fail(const char* what) const { throw_errno(what, path_, errno); }

void DurableFile::reserve(uint64_t bytes) {
  if (bytes < kWorthReserving) return;
  while (system_calls().fallocate(fd_, static_cast<off_t>(bytes)) != 0) {
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return;
    if (errno != EINTR) fail("reserving disk space");
  }
}

// Calls `write_some(next, left)` until everything is written.
template <class WriteSome>
void DurableFile::write_all(const void* data, size_t bytes, WriteSome write_some) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write_some(next, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("writing");
    }
    if (written == 0) throw_errno("writing", path_, EIO);
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void DurableFile::write(const void* data, size_t bytes) {
  write_all(data, bytes, [&](const char* next, size_t left) {
    const ssize_t written = system_calls().write(fd_, next, left);
    if (written > 0) written_ += static_cast<uint64_t>(written);
    return written;
  });
  if (written_ - started_ < kWriteBackBytes) return;
  // Advice only: fsync reports errors.
  system_calls().start_writing_back(fd_, static_cast<off_t>(started_), static_cast<off_t>(written_ - started_));
  started_ = written_;
}

void DurableFile::write_at(uint64_t place, const void* data, size_t bytes) {
  write_all(data, bytes, [&](const char* next, size_t left) {
    const ssize_t written = system_calls().pwrite(fd_, next, left, static_cast<off_t>(place));
    if (written > 0) place += static_cast<uint64_t>(written);
    return written;
  });
}

void DurableFile::commit() {
  while (system_calls().fsync(fd_) != 0)
    if (errno != EINTR) fail("syncing");
  const int fd = fd_;
  fd_ = -1;
  // After EINTR the file is closed on Linux, and its data are already synced.
  if (system_calls().close(fd) != 0 && errno != EINTR) fail("closing");
}

void sync_folder(const std::filesystem::path& folder) {
  SystemCalls& calls = system_calls();
  const int fd = calls.open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (fd < 0) throw_errno("opening a folder", folder, errno);
  int error = 0;
  do {
    error = calls.fsync(fd) == 0 ? 0 : errno;
  } while (error == EINTR);
  calls.close(fd);
  // Some file systems cannot sync folders and report that.
  if (error != 0 && error != EINVAL && error != ENOTSUP) throw_errno("syncing a folder", folder, error);
}

}  // namespace fulgur::detail
