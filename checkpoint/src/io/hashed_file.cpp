#include "io/hashed_file.h"

#include <algorithm>

namespace fulgur::detail {
namespace {

// Small enough that write(2) finds the data just hashed in the cache.
constexpr size_t kBlockBytes = 256u << 10;

}  // namespace

void HashedFile::end_part() {
  if (record_.parts.empty()) return;
  record_.parts.back().hash = part_.digest();
  part_.reset();
}

void HashedFile::begin_part(std::string name) {
  end_part();
  record_.parts.push_back({std::move(name), 0, 0});
}

void HashedFile::write(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  record_.bytes += bytes;
  record_.parts.back().bytes += bytes;
  while (bytes > 0) {
    const size_t block = std::min(bytes, kBlockBytes);
    part_.update(next, block);
    whole_.update(next, block);
    file_.write(next, block);
    next += block;
    bytes -= block;
  }
}

FileRecord HashedFile::commit() {
  end_part();
  record_.hash = whole_.digest();
  file_.commit();
  return std::move(record_);
}

}  // namespace fulgur::detail
