#include "io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "fulgur/core/system/durable_file.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

InputFile::InputFile(const std::filesystem::path& path) : path_(path) {
  fd_ = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd_ < 0) throw_errno("opening", path, errno);
  struct stat info {};
  if (fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd_);
    throw CheckpointError(cat("[checkpoint] ", escape_controls(path.string()), " is not a regular file",
                              S_ISDIR(info.st_mode) ? " but a folder." : "."));
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

InputFile::~InputFile() { close(fd_); }

void InputFile::read(void* data, uint64_t bytes) {
  auto* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::read(fd_, next, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("reading", path_, errno);
    if (got == 0)
      throw CheckpointError(
          cat("[checkpoint] ", escape_controls(path_.string()), " became shorter while it was read."));
    next += got;
    bytes -= static_cast<uint64_t>(got);
  }
}

void InputFile::move_to(uint64_t position) {
  if (lseek(fd_, static_cast<off_t>(position), SEEK_SET) < 0) throw_errno("reading", path_, errno);
}

std::string InputFile::looks_like() const {
  char buffer[32];
  const ssize_t got = pread(fd_, buffer, sizeof buffer, 0);
  const std::string_view start(buffer, got > 0 ? static_cast<size_t>(got) : 0);
  if (size_ == 0) return " It is empty.";
  if (start.starts_with("version https://git-lfs")) return " It is a Git LFS pointer: run `git lfs pull`.";
  if (start.starts_with("PK\x03\x04")) return " It looks like a zip archive, such as torch.save and Lightning write.";
  if (start.size() > 1 && start[0] == '\x80' && start[1] >= '\x02' && start[1] <= '\x05')
    return " It looks like a Python pickle.";
  if (start.starts_with("\x89PNG")) return " It looks like a PNG image.";
  if (start.starts_with("\x1f\x8b")) return " It looks like a gzip archive.";
  return {};
}

std::string read_file(const std::filesystem::path& path, uint64_t limit) {
  InputFile file(path);
  if (file.size() > limit)
    throw CheckpointError(cat("[checkpoint] ", escape_controls(path.string()), " has ", file.size(), " bytes; at most ",
                              limit, " are expected.", file.looks_like()));
  std::string text(file.size(), '\0');
  file.read(text.data(), text.size());
  return text;
}

}  // namespace fulgur::detail
