// Small files that are replaced as a whole.
#include "fulgur/checkpoint/new_file.h"

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cerrno>
#include <thread>
#include <vector>

#include "checkpoint/fault_calls.h"
#include "fulgur/core/text/errors.h"
#include "support/temporary_folder.h"

namespace new_file_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

size_t files_beside(const std::filesystem::path& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

TEST_CASE("write_durably: writers with the same process id do not disturb each other") {
  const TemporaryFolder folder;
  const auto file = folder / "state.json";
  constexpr size_t kLength = 200'000;
  fulgur::detail::write_durably(file, std::string(kLength, 'a'));
  std::atomic<int> failures{0};
  std::vector<std::thread> writers;
  for (const char letter : {'b', 'c', 'd', 'e'})
    writers.emplace_back([&, letter] {
      for (int i = 0; i < 20; ++i) {
        try {
          fulgur::detail::write_durably(file, std::string(kLength, letter));
        } catch (const std::exception&) {
          ++failures;
        }
        const std::string text = read_text(file);
        if (text.size() != kLength || text.find_first_not_of(text[0]) != std::string::npos) ++failures;
      }
    });
  for (std::thread& writer : writers) writer.join();
  CHECK(failures == 0);
  CHECK(files_beside(folder.path()) == 1);
}

TEST_CASE("write_durably: file and folder are synced; whichever call fails, the old file remains") {
  const TemporaryFolder folder;
  const auto file = folder / "state.json";
  fulgur::detail::write_durably(file, "old");
  {
    std::vector<std::string> calls;
    FaultCalls seen([&](std::string_view name, const std::function<long()>& call) {
      calls.emplace_back(name);
      return call();
    });
    fulgur::detail::write_durably(file, "old");
    CHECK(calls == std::vector<std::string>{"open", "write", "fsync", "close", "rename", "open", "fsync", "close"});
  }
  for (const char* const bad : {"open", "write", "fsync", "rename"}) {
    CAPTURE(bad);
    {
      FaultCalls faults([&](std::string_view name, const std::function<long()>& call) -> long {
        if (name != bad) return call();
        errno = EIO;
        return -1;
      });
      CHECK_THROWS_AS(fulgur::detail::write_durably(file, "new"), CheckpointError);
    }
    CHECK(read_text(file) == "old");
    CHECK(files_beside(folder.path()) == 1);
  }
}

}  // namespace new_file_test
