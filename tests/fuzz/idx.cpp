#include "datasets/idx.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "fulgur/core/text/errors.h"
#include "targets.h"

namespace fulgur::fuzz {

// The first byte tells how many dimensions are requested; the rest is the file.
void idx(std::string_view input) {
  if (input.empty()) return;
  const size_t dims = static_cast<unsigned char>(input[0]) % 6;
  input.remove_prefix(1);
  const int fd = memfd_create("idx", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, input.data(), input.size()) != static_cast<ssize_t>(input.size()))
    throw std::runtime_error("no file in memory");
  constexpr uint64_t kLimit = 1u << 20;
  try {
    const IdxArray array = read_idx("/proc/self/fd/" + std::to_string(fd), dims, kLimit);
    size_t product = 1;
    for (const int64_t size : array.dims) product *= static_cast<size_t>(size);
    expect(array.dims.size() == dims && array.size == product && product <= kLimit,
           "an array is as large as its dimensions say");
    unsigned sum = 0;
    for (size_t i = 0; i < array.size; ++i) sum += array.values[i];
    expect(sum <= 255 * array.size, "all of it can be read");
  } catch (const DataError&) {
  }
  ::close(fd);
}

}  // namespace fulgur::fuzz
