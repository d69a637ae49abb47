#include "decoding/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "decoding/image_reader.h"
#include "fulgur/core/system/unique_fd.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

struct FileMemory {
  std::unique_ptr<uint8_t[]> bytes;
  size_t size = 0;
};

[[noreturn]] void fail_to_read(const std::filesystem::path& path, int code) {
  switch (code) {
    case EACCES:
    case ELOOP:
    case ENAMETOOLONG:
    case ENOENT:
    case ENOTDIR:
    case EPERM:
      throw BadImage(cat("it cannot be opened: ", std::strerror(code)));
    default:
      throw DataError(cat("[images.read_file] the file must be readable; reading ", escape_controls(path.string()),
                          " failed: ", std::strerror(code),
                          ". This is an error of the system, so the file is not skipped as a bad sample."));
  }
}

}  // namespace

std::span<const uint8_t> image_file_bytes(const std::filesystem::path& path, uint64_t limit) {
  thread_local FileMemory memory;
  // Without blocking until someone writes into a fifo.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0 && errno == ENXIO) throw BadImage("it is not a regular file");
  if (file.get() < 0) fail_to_read(path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_to_read(path, errno);
  if (!S_ISREG(status.st_mode)) throw BadImage(S_ISDIR(status.st_mode) ? "it is a folder" : "it is not a regular file");
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size > limit) throw BadImage(cat("a file with at most max_pixels has at most ", limit, " bytes; it has ", size));
  if (memory.size < size || memory.size > kKeptBufferBytes) {
    memory.size = 0;
    memory.bytes = std::make_unique_for_overwrite<uint8_t[]>(size);
    memory.size = size;
  }
  size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(file.get(), memory.bytes.get() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_to_read(path, errno);
    if (got == 0) break;  // it became shorter; the decoder finds that
    done += static_cast<size_t>(got);
  }
  return {memory.bytes.get(), done};
}

}  // namespace fulgur::detail
