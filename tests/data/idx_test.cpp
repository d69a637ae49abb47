#include "datasets/idx.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>

#include "data/idx_files.h"
#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"

namespace idx_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

std::string error_of(const std::string& content, size_t dims = 1, uint64_t limit = kIdxMemoryLimit,
                     const char* name = "file") {
  const TemporaryFolder folder;
  write_text(folder / name, content);
  const std::string message = message_of<DataError>([&] { read_idx(folder / name, dims, limit); });
  CHECK_THAT(message, ContainsSubstring((folder / name).string()));
  return message;
}

/// Resets the peak, if the system can: that of an earlier test would hide this one's.
void forget_peak_memory() { write_text("/proc/self/clear_refs", "5"); }

long peak_memory_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

}  // namespace

TEST_CASE("an idx file is read plain and compressed") {
  const TemporaryFolder folder;
  const std::string text = idx_text({2, 3, 2}, "abcdefghijkl");
  write_text(folder / "plain", text);
  write_text(folder / "small.gz", gzip(text));
  write_text(folder / "members.gz", gzip(text.substr(0, 20)) + gzip(text.substr(20)));
  for (const char* name : {"plain", "small.gz", "members.gz"}) {
    const IdxArray array = read_idx(folder / name, 3);
    CHECK(array.dims == std::vector<int64_t>{2, 3, 2});
    REQUIRE(array.size == 12);
    CHECK(std::string(array.values.get(), array.values.get() + 12) == "abcdefghijkl");
  }
}

TEST_CASE("F37: every field of the idx header is checked") {
  CHECK_THAT(error_of(""), ContainsSubstring("0 bytes"));
  CHECK_THAT(error_of(std::string(3, '\0')), ContainsSubstring("got 3"));
  CHECK_THAT(error_of("\x89PNG\r\n\x1a\n"), ContainsSubstring("89 50 4e 47"));
  CHECK_THAT(error_of("version https://git-lfs.github.com/spec/v1\n"), ContainsSubstring("00 00 08 01"));
  CHECK_THAT(error_of(idx_text({1}, "abcd", 0x0d)), ContainsSubstring("unsigned bytes") && ContainsSubstring("0d"));
  CHECK_THAT(error_of(idx_text({1, 1, 1}, "a"), 1),
             ContainsSubstring("1 dimensions; got 3") && ContainsSubstring("mixed up"));
  CHECK_THAT(error_of(idx_text({1}, "").substr(0, 6)), ContainsSubstring("8 bytes; got 6"));
  CHECK_THAT(error_of(idx_text({0}, "")), ContainsSubstring("dimension 0 is 0"));
  CHECK_THAT(error_of(idx_text({2, 0, 3}, ""), 3), ContainsSubstring("dimension 1 is 0"));
}

TEST_CASE("F37: idx data shorter or longer than the header says is refused, plain and compressed") {
  CHECK_THAT(error_of(idx_text({5}, "abcd")), ContainsSubstring("13 bytes, including itself; the file has 12"));
  CHECK_THAT(error_of(idx_text({5}, "abcdef")), ContainsSubstring("13 bytes, including itself; the file has 14"));
  CHECK_THAT(error_of(gzip(idx_text({5}, "abcd"))), ContainsSubstring("5 bytes of data; the file holds 4"));
  CHECK_THAT(error_of(gzip(idx_text({5}, "abcdef"))), ContainsSubstring("the file holds more"));
}

TEST_CASE("F37: damaged gzip data is found at every place") {
  std::string values;
  for (int i = 0; i < 300; ++i) values += static_cast<char>(i * i % 251);
  const std::string whole = gzip(idx_text({300}, values));
  const TemporaryFolder folder;
  for (size_t length = 0; length < whole.size(); ++length) {
    write_text(folder / "cut.gz", whole.substr(0, length));
    INFO("cut to " << length << " of " << whole.size());
    CHECK_THROWS_AS(read_idx(folder / "cut.gz", 1), DataError);
  }
  size_t unnoticed = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    write_text(folder / "damaged.gz", damaged);
    try {
      const IdxArray array = read_idx(folder / "damaged.gz", 1);
      // Bytes of gzip's header such as the time do not touch the data.
      CHECK(std::string(array.values.get(), array.values.get() + array.size) == values);
      ++unnoticed;
    } catch (const DataError&) {
    }
  }
  CHECK(unnoticed <= 8);
}

TEST_CASE("F37: sizes are checked against the limit before memory is allocated") {
  CHECK_THAT(error_of(idx_text({0xffffffff, 0xffffffff, 0xffffffff}, "a"), 3), ContainsSubstring("must fit into"));
  CHECK_THAT(error_of(idx_text({65536, 65536, 65536}, "a"), 3), ContainsSubstring("must fit into"));
  CHECK_THAT(error_of(idx_text({11}, "abcdefghijk"), 1, 10),
             ContainsSubstring("10 bytes") && ContainsSubstring("require 11"));
  forget_peak_memory();
  const long before = peak_memory_kib();
  CHECK_THAT(error_of(idx_text({2000000000}, "a")),
             ContainsSubstring("2000000008 bytes, including itself; the file has 9"));
  CHECK_THAT(error_of(gzip(idx_text({2000000000}, "a"))), ContainsSubstring("cannot hold them"));
  CHECK(peak_memory_kib() - before < 64 * 1024);
}

TEST_CASE("F37: a gzip bomb is unpacked no further than the header says") {
  // Made of small members: what the test itself holds would hide what the reader takes.
  const std::string bomb = gzip_bomb(idx_text({4}, ""));
  REQUIRE(bomb.size() > 9'000'000);
  REQUIRE(bomb.size() < 20'000'000);
  forget_peak_memory();
  const long before = peak_memory_kib();
  CHECK_THAT(error_of(bomb), ContainsSubstring("4 bytes of data; the file holds more"));
  CHECK(peak_memory_kib() - before < 16 * 1024);
  // With a header as large as the bomb, the limit holds before anything is unpacked.
  const std::string honest = gzip_bomb(idx_text({10000, 1000, 1000}, ""));
  CHECK_THAT(error_of(honest, 3),
             ContainsSubstring("must fit into 2147483648 bytes") && ContainsSubstring("10000000000"));
  CHECK(peak_memory_kib() - before < 40 * 1024);
}

TEST_CASE("F37: what is not a regular file is refused without waiting") {
  const TemporaryFolder folder;
  CHECK_THAT(message_of<DataError>([&] { read_idx(folder / "absent", 1); }), ContainsSubstring("must exist"));
  CHECK_THAT(message_of<DataError>([&] { read_idx(folder.path(), 1); }), ContainsSubstring("regular file"));
  REQUIRE(mkfifo((folder / "fifo").c_str(), 0600) == 0);
  CHECK_THAT(message_of<DataError>([&] { read_idx(folder / "fifo", 1); }), ContainsSubstring("regular file"));
}

}  // namespace idx_test
