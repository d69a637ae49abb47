#include <ATen/ops/arange.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "support/temporary_folder.h"

namespace list_checkpoints_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

fs::path save(const fs::path& path, int64_t step, int64_t counter = 0) {
  CheckpointContent c;
  c.module = {{"w", at::arange(4)}};
  c.state["progress"] = StateTree::map({{"global_step", step}, {"epoch", step / 10}});
  c.origin.save_counter = counter;
  return write_checkpoint(path, c);
}

std::vector<std::string> listed(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& item : list_checkpoints(folder)) names.push_back(item.path.filename().string());
  return names;
}

}  // namespace

TEST_CASE("F19 checkpoints are listed by step, whatever the clock says") {
  TemporaryFolder folder;
  save(folder / "epoch=0-step=9.ckpt", 9);
  save(folder / "epoch=1-step=10.ckpt", 10);
  save(folder / "epoch=10-step=100.ckpt", 100);
  // The clock went back an hour before each save.
  auto time = fs::file_time_type::clock::now();
  for (const char* name : {"epoch=0-step=9.ckpt", "epoch=1-step=10.ckpt", "epoch=10-step=100.ckpt"}) {
    for (const auto& entry : fs::directory_iterator(folder / name)) fs::last_write_time(entry.path(), time);
    fs::last_write_time(folder / name, time);
    time -= std::chrono::hours(1);
  }
  CHECK(listed(folder.path()) ==
        std::vector<std::string>{"epoch=10-step=100.ckpt", "epoch=1-step=10.ckpt", "epoch=0-step=9.ckpt"});
  CHECK(list_checkpoints(folder.path()).front().epoch == 10);
}

TEST_CASE("F19 of one step the save counter decides, then the version of the name") {
  TemporaryFolder folder;
  save(folder / "z.ckpt", 5, 1);
  save(folder / "a.ckpt", 5, 2);
  for (int i = 0; i < 11; ++i) save(folder / "b.ckpt", 5, 2);
  const auto names = listed(folder.path());
  CHECK(std::vector(names.begin(), names.begin() + 3) ==
        std::vector<std::string>{"b-v10.ckpt", "b-v9.ckpt", "b-v8.ckpt"});
  CHECK(std::vector(names.end() - 3, names.end()) == std::vector<std::string>{"b.ckpt", "a.ckpt", "z.ckpt"});
}

TEST_CASE("F19 links, temporary folders and other files are left out; a missing or dangling link changes nothing") {
  TemporaryFolder folder;
  const fs::path first = save(folder / "a.ckpt", 1);
  fs::copy(first, folder / ".b.ckpt.tmp-1-1");
  fs::create_directory(folder / "logs");
  write_text(folder / "notes.txt", "x");
  CHECK(listed(folder.path()) == std::vector<std::string>{"a.ckpt"});
  link_checkpoint(folder / "last.ckpt", first);
  CHECK(listed(folder.path()) == std::vector<std::string>{"a.ckpt"});
  link_checkpoint(folder / "last.ckpt", folder / "gone.ckpt");
  CHECK(listed(folder.path()) == std::vector<std::string>{"a.ckpt"});
  CHECK(list_checkpoints(folder / "absent").empty());
  CHECK_THROWS_WITH(list_checkpoints(folder / "notes.txt"), ContainsSubstring("notes.txt"));
}

TEST_CASE("damaged checkpoints are listed in their place, with what is wrong") {
  TemporaryFolder folder;
  save(folder / "step=1.ckpt", 1);
  save(folder / "step=3.ckpt", 3);
  save(folder / "step=2.ckpt", 2);
  save(folder / "step=4.ckpt", 4);
  write_text(folder / "step=3.ckpt/manifest.json", "{");
  fs::resize_file(folder / "step=4.ckpt/model.safetensors", 20);
  write_text(folder / "old.ckpt", "PK\x03\x04zip");
  const auto all = list_checkpoints(folder.path());
  REQUIRE(listed(folder.path()) ==
          std::vector<std::string>{"step=4.ckpt", "step=3.ckpt", "step=2.ckpt", "step=1.ckpt", "old.ckpt"});
  CHECK_THAT(all[0].problem.value(), ContainsSubstring("model.safetensors is truncated: it has 20"));
  CHECK_THAT(all[1].problem.value(), ContainsSubstring("manifest"));
  CHECK_FALSE(all[2].problem.has_value());
  CHECK_FALSE(all[3].problem.has_value());
  CHECK_THAT(all[4].problem.value(), ContainsSubstring("zip archive"));
}

}  // namespace list_checkpoints_test
