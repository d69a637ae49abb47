#include "process/run_folder.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <mutex>
#include <set>
#include <thread>

#include "checkpointing/resume.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/errors.h"
#include "support/temporary_folder.h"

namespace run_folder_test {

using namespace fulgur;
using namespace fulgur::detail;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

TEST_CASE("20 concurrent runs get 20 folders") {
  test::TemporaryFolder folder;
  std::set<fs::path> taken;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int i = 0; i < 20; ++i)
    threads.emplace_back([&] {
      const fs::path mine = take_run_folder(folder.path(), {});
      std::lock_guard lock(mutex);
      taken.insert(mine);
    });
  for (auto& t : threads) t.join();
  CHECK(taken.size() == 20);
}

TEST_CASE("a version that is requested is taken once") {
  test::TemporaryFolder folder;
  CHECK(take_run_folder(folder.path(), {.name = "x", .version = 7}).filename() == "version_7");
  CHECK_THROWS_WITH(take_run_folder(folder.path(), {.name = "x", .version = 7}), ContainsSubstring("already exists"));
  CHECK(take_run_folder(folder.path(), {.name = "x"}).filename() == "version_8");
  test::write_text(folder / "file", "");
  CHECK_THROWS_AS(take_run_folder(folder / "file", {.name = "x"}), ConfigError);
}

TEST_CASE("last and best: the config's own run folder first, then the newest run that has checkpoints") {
  test::TemporaryFolder folder;
  const auto make = [&](int version, std::initializer_list<const char*> links) {
    const fs::path run = folder / ("logs/version_" + std::to_string(version));
    fs::create_directories(run / "checkpoints");
    for (const char* link : links) fs::create_directories(run / "checkpoints" / link);
    return run;
  };
  const fs::path v0 = make(0, {"last.ckpt", "best.ckpt"});
  const fs::path v2 = make(2, {"last.ckpt", "best.ckpt"});
  make(10, {});  // an evaluation's own folder shadows nothing
  CHECK(find_checkpoint("best", folder.path(), {.name = "logs"}, {}) == v2 / "checkpoints/best.ckpt");
  CHECK(find_checkpoint("last", folder.path(), {.name = "logs"}, v0) == v0 / "checkpoints/last.ckpt");
  CHECK(find_checkpoint("some/path.ckpt", folder.path(), {.name = "logs"}, v0) == "some/path.ckpt");
  const fs::path v11 = make(11, {"last.ckpt"});
  CHECK_THROWS_WITH(find_checkpoint("best", folder.path(), {.name = "logs"}, {}),
                    ContainsSubstring("has not logged its monitor yet. Use --ckpt_path last"));
  CHECK_THROWS_WITH(find_checkpoint("best", folder.path(), {.name = "logs"}, v11),
                    ContainsSubstring("has not logged its monitor yet. Use --ckpt_path last"));
  CHECK_THROWS_WITH(find_checkpoint("best", folder.path(), {.name = "logs"}, make(12, {})),
                    ContainsSubstring("no checkpoint was saved there yet"));
  CHECK_THROWS_WITH(find_checkpoint("best", folder.path(), {.name = "other"}, {}), ContainsSubstring("no run under"));
  // A version that the logger names is the only one.
  CHECK(find_checkpoint("last", folder.path(), {.name = "logs", .version = 0}, {}) == v0 / "checkpoints/last.ckpt");
  CHECK_THROWS_WITH(find_checkpoint("last", folder.path(), {.name = "logs", .version = 10}, {}),
                    ContainsSubstring("version_10 has no checkpoint 'last'"));
}

TEST_CASE("last is the newest checkpoint, also if a process was killed before it had linked to it") {
  const test::TemporaryFolder folder;
  const fs::path checkpoints = folder / "logs/version_0/checkpoints";
  fs::create_directories(checkpoints);
  const auto save = [&](const char* name, int64_t counter, bool weights_only) {
    CheckpointContent content;
    content.state["progress"] = StateTree::map({{"global_step", 12}, {"epoch", 3}});
    content.optimizers = weights_only ? StateTree(nullptr) : StateTree(StateTree::List());
    content.origin.save_counter = counter;
    write_checkpoint(checkpoints / name, content);
  };
  const auto last = [&] { return find_checkpoint("last", folder.path(), {.name = "logs"}, {}); };
  save("a.ckpt", 1, false);
  CHECK(last() == checkpoints / "a.ckpt");
  fs::create_symlink("a.ckpt", checkpoints / "last.ckpt");
  CHECK(last() == checkpoints / "last.ckpt");
  save("c.ckpt", 3, true);  // weights alone
  CHECK(last() == checkpoints / "last.ckpt");
  save("b.ckpt", 2, false);
  CHECK(last() == checkpoints / "b.ckpt");
}

}  // namespace run_folder_test
