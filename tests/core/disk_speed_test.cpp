#include "fulgur/core/system/disk_speed.h"

#include <catch2/catch_test_macros.hpp>
#include <cerrno>
#include <string>

#include "fulgur/core/system/system_calls.h"
#include "fulgur/core/text/errors.h"
#include "support/temporary_folder.h"

namespace disk_speed_test {

using fulgur::test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

/// Counts what is written and synced; from the write number `full_at` on, the disk is full.
struct Counted : fulgur::detail::SystemCalls {
  ssize_t write(int fd, const void* data, size_t bytes) override {
    if (++writes >= full_at) return errno = ENOSPC, -1;
    written += static_cast<int64_t>(bytes);
    return SystemCalls::write(fd, data, bytes);
  }
  int fsync(int fd) override {
    ++syncs;
    return SystemCalls::fsync(fd);
  }
  int writes = 0, syncs = 0, full_at = 1000;
  int64_t written = 0;
};

}  // namespace

TEST_CASE("the speed of a disk is measured with synced files, which are gone afterwards") {
  const TemporaryFolder folder;
  Counted calls;
  const fulgur::detail::ScopedSystemCalls scoped(calls);
  constexpr int64_t kBytes = (int64_t{2} << 20) + 5;
  const fulgur::DiskSpeed speed = fulgur::measure_disk(folder.path(), kBytes);
  CHECK(calls.written == kBytes + 4096);
  CHECK(calls.syncs == 2);
  CHECK(speed.bytes_per_s > 0);
  CHECK(speed.sync_s > 0);
  CHECK(speed.free_bytes > 0);
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a folder that does not take files is an error with the reason, and leaves no file") {
  const TemporaryFolder folder;
  Counted calls;
  calls.full_at = 2;
  const fulgur::detail::ScopedSystemCalls scoped(calls);
  try {
    fulgur::measure_disk(folder.path(), int64_t{1} << 20);
    FAIL("no error");
  } catch (const fulgur::Error& error) {
    CHECK(std::string(error.what()).find("No space left on device") != std::string::npos);
    CHECK(std::string(error.what()).find(folder.path().string()) != std::string::npos);
  }
  CHECK(fs::is_empty(folder.path()));
  CHECK_THROWS_AS(fulgur::measure_disk(folder / "missing", 1), fulgur::Error);
}

}  // namespace disk_speed_test
