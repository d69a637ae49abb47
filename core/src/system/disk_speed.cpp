#include "fulgur/core/system/disk_speed.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "fulgur/core/system/durable_file.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

namespace fs = std::filesystem;

/// Removes the file whatever happens.
struct Removed {
  fs::path path;
  ~Removed() {
    std::error_code error;
    fs::remove(path, error);
  }
};

double time_of_write(const fs::path& path, int64_t bytes) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kPart = int64_t{1} << 20;
  // Not all zeros, which some file systems do not store.
  std::string part(static_cast<size_t>(std::min(bytes, kPart)), '\0');
  uint32_t noise = 1;
  for (char& byte : part) byte = static_cast<char>((noise = noise * 1664525u + 1013904223u) >> 24);
  const Removed removed{path};
  const auto begin = Clock::now();
  detail::DurableFile file(path);
  for (int64_t left = bytes; left > 0; left -= kPart)
    file.write(part.data(), static_cast<size_t>(std::min(left, kPart)));
  file.commit();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

DiskSpeed measure_disk(const fs::path& folder, int64_t bytes) {
  constexpr int64_t kBlock = 4096;
  const fs::path path = folder / cat(".fulgur_disk_speed_", ::getpid());
  DiskSpeed speed;
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) == 0)
    speed.free_bytes = static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
  speed.sync_s = time_of_write(path, kBlock);
  speed.bytes_per_s = static_cast<double>(bytes) / std::max(time_of_write(path, bytes), 1e-9);
  return speed;
}

}  // namespace fulgur
