#include "fulgur/data/file_fingerprint.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "fulgur/core/system/unique_fd.h"

namespace fulgur::detail {
namespace {

constexpr int64_t kHashedBlockBytes = int64_t{64} << 10;
constexpr int64_t kHashedBlocks = 16;

}  // namespace

std::string fingerprint_of(std::string_view bytes) {
  uint64_t hash = XXH3_64bits(bytes.data(), bytes.size());
  std::string digits(16, '0');
  for (size_t i = 16; i-- > 0; hash >>= 4) digits[i] = "0123456789abcdef"[hash & 15];
  return digits;
}

std::string file_fingerprint(const std::filesystem::path& path) {
  const std::string absent = "absent";
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat found {};
  if (!fd || ::fstat(fd.get(), &found) != 0 || !S_ISREG(found.st_mode)) return absent;
  const auto size = static_cast<int64_t>(found.st_size);
  std::string hashes = std::to_string(size);
  std::string block(static_cast<size_t>(kHashedBlockBytes), '\0');
  const bool is_short = size <= kHashedBlocks * kHashedBlockBytes;
  const int64_t blocks = is_short ? (size + kHashedBlockBytes - 1) / kHashedBlockBytes : kHashedBlocks;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t begin = is_short ? i * kHashedBlockBytes : (size - kHashedBlockBytes) * i / (kHashedBlocks - 1);
    const auto wanted = static_cast<size_t>(std::min(kHashedBlockBytes, size - begin));
    size_t done = 0;
    while (done < wanted) {
      const ssize_t got =
          ::pread(fd.get(), block.data() + done, wanted - done, static_cast<off_t>(begin) + static_cast<off_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return absent;
      done += static_cast<size_t>(got);
    }
    hashes += fingerprint_of(std::string_view(block).substr(0, wanted));
  }
  return fingerprint_of(hashes);
}

FileFingerprints::FileFingerprints(std::vector<std::filesystem::path> paths)
    : paths_(std::move(paths)), seen_(paths_.size()), fingerprints_(paths_.size()) {}

FileFingerprints::Seen FileFingerprints::look_at(const std::filesystem::path& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return {};
  return {.bytes = static_cast<int64_t>(found.st_size),
          .seconds = static_cast<int64_t>(found.st_mtim.tv_sec),
          .nanoseconds = static_cast<int64_t>(found.st_mtim.tv_nsec),
          .device = static_cast<uint64_t>(found.st_dev),
          .number = static_cast<uint64_t>(found.st_ino)};
}

std::string FileFingerprints::current() {
  std::string all;
  for (size_t i = 0; i < paths_.size(); ++i) {
    const Seen now = look_at(paths_[i]);
    if (fingerprints_[i].empty() || !(now == seen_[i])) fingerprints_[i] = file_fingerprint(paths_[i]);
    seen_[i] = now;
    all += fingerprints_[i] + ' ';
  }
  return fingerprint_of(all);
}

std::string fingerprint_of_names(const std::vector<std::filesystem::path>& paths) {
  if (paths.empty()) return fingerprint_of("");
  // Folders at the beginning of all paths.
  std::filesystem::path common = paths.front().parent_path();
  auto parts = std::distance(common.begin(), common.end());
  for (const auto& path : paths) {
    const std::filesystem::path folder = path.parent_path();
    const auto differ = std::mismatch(common.begin(), common.end(), folder.begin(), folder.end());
    parts = std::min(parts, std::distance(common.begin(), differ.first));
  }
  std::string names;
  for (const auto& path : paths) {
    for (auto part = std::next(path.begin(), parts); part != path.end(); ++part) names += part->string() + '/';
    names += '\n';
  }
  return fingerprint_of(names);
}

}  // namespace fulgur::detail
