// Ranks that are killed at random moments, again and again, end with the bytes of a run that was left alone.
// FULGUR_TEST_KILLS sets how often (20); the moments come from Catch's seed, so --rng-seed N repeats them as far as the
// machine allows.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cctype>
#include <cstdlib>
#include <random>
#include <set>

#include "cli/killed_runs.h"
#include "ranks.h"
#include "support/process_stat.h"

namespace ddp_kill_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (!std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; })) continue;
    // "pid (name) state parent …", where the name may contain anything.
    const std::string stat = process_stat(name);
    const size_t mark = stat.rfind(')');
    if (mark != std::string::npos && mark + 4 < stat.size() && stat[mark + 2] != 'Z' &&
        std::atoi(stat.c_str() + mark + 4) == parent)
      children.push_back(std::atoi(name.c_str()));
  }
  return children;
}

int64_t count(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// Kills one rank or both of one start after the other, until that was done `wanted` times or the run is at its end;
/// returns how often.
int hunt(Running& launcher, int wanted, std::mt19937& random) {
  const auto up_to = [&](int most) { return std::uniform_int_distribution(0, most)(random); };
  std::set<pid_t> seen;
  for (int done = 0; done < wanted; ++done) {
    std::vector<pid_t> group;
    const int64_t runs = count(launcher.err(), "run folder: ");
    const bool started = launcher.wait_until([&] {
      ::usleep(2000);
      group = children_of(launcher.pid());
      std::erase_if(group, [&](pid_t pid) { return seen.contains(pid); });
      return group.size() == 2;
    });
    if (!started) return done;
    seen.insert(group.begin(), group.end());
    // One in four dies while the ranks start and meet, the others from the moment on when training begins.
    const bool early = up_to(3) == 0;
    if (!early && !launcher.wait_until([&] { return count(launcher.err(), "run folder: ") > runs; }))
      return done;  // nothing was left to do
    ::usleep(static_cast<useconds_t>(up_to(early ? 500'000 : 300'000)));
    const int which = 1 + up_to(2);
    const std::vector<pid_t> alive = children_of(launcher.pid());
    if (alive.size() < 2) return done;  // it is ending
    for (size_t rank = 0; rank < 2; ++rank)
      if ((which >> rank) & 1) ::kill(group[rank], SIGKILL);
  }
  return wanted;
}

}  // namespace

TEST_CASE(
    "F4, launched: ranks that are killed at random, one or both, again and again, end with the bytes of an undisturbed "
    "run") {
  // With sharded checkpoints, both ranks write at the same time.
  const std::string strategy = GENERATE("ddp", "fsdp", "mesh");
  CAPTURE(strategy);
  const auto arguments = [&](int max_restarts) {
    Arguments all =
        probe("fit", 2, 8,
              {"--trainer.max_epochs", "12", "--trainer.accumulate_grad_batches", "3", "--data.num_train", "240",
               "--data.num_workers", "2", "--model.dropout", "0.2", "--optimizer", "AdamW", "--optimizer.lr", "0.01",
               "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "4",
               "--trainer.strategy.max_restarts", std::to_string(max_restarts)});
    if (strategy == "ddp") return all;
    *std::ranges::find(all, "ddp") = strategy;
    if (strategy == "mesh")
      return all + Arguments{"--model",
                             "ProbeStages",
                             "--model.dropout",
                             "0.2",
                             "--trainer.strategy.mesh.pipeline",
                             "2",
                             "--trainer.strategy.micro_batches",
                             "2",
                             "--trainer.strategy.state_dict_type",
                             "sharded"};
    return all + Arguments{"--trainer.strategy.sharding",        "parameters",
                           "--trainer.strategy.units",           "[first, last]",
                           "--trainer.strategy.state_dict_type", "sharded"};
  };
  const TemporaryFolder folder;
  fs::create_directory(folder / "quiet");
  const Finished quiet = trainer(arguments(kills(20)), {.folder = folder / "quiet"});
  INFO(quiet.err);
  REQUIRE(quiet.exit_code == 0);
  const fs::path expected = newest_run(folder / "quiet");
  const fs::path last = fs::read_symlink(expected / "checkpoints/last.ckpt");

  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  std::mt19937 random(seed);
  int done = 0;
  for (int round = 0; done < kills(20); ++round) {
    REQUIRE(round < kills(20));  // else nothing was killed in a whole round
    const fs::path root = folder / ("hunted" + std::to_string(round));
    fs::create_directory(root);
    CAPTURE(round, done);
    Running launcher(arguments(kills(20)), {.folder = root});
    done += hunt(launcher, kills(20) - done, random);
    const Finished end = launcher.wait();
    INFO(end.err);
    REQUIRE(end.exit_code == 0);
    compare_runs(expected, newest_run(root), last);
  }
}

}  // namespace ddp_kill_test
