// The simulated NCCL, between processes that each run one rank of nccl_probe.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_folder.h"

namespace fulgur::test {
namespace {

struct Ended {
  int code = -1;  ///< 128 + signal where one ended it; -1 if it had to be killed at the test's time limit
  std::string err;
};

/// The ranks of one run. Whatever happens, they are gone when this is.
class Probes {
 public:
  Probes(const std::string& scenario, int world, const std::vector<std::string>& environment = {},
         const std::vector<std::string>& of_rank = {}) {
    for (int rank = 0; rank < world; ++rank) {
      const std::string err = folder_ / ("err." + std::to_string(rank));
      const pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
        ::setenv("SIMULATED_CUDA_DEVICES", "4", 1);
        for (const std::string& variable : environment) ::putenv(const_cast<char*>(variable.c_str()));
        if (!of_rank.empty()) ::putenv(const_cast<char*>(of_rank[static_cast<size_t>(rank)].c_str()));
        const std::string number = std::to_string(rank), count = std::to_string(world);
        ::execl(FULGUR_NCCL_PROBE, FULGUR_NCCL_PROBE, scenario.c_str(), number.c_str(), count.c_str(),
                folder_.path().c_str(), nullptr);
        ::_exit(127);
      }
      children_.push_back(child);
    }
  }
  ~Probes() {
    for (const pid_t child : children_)
      if (child > 0) end(child);
  }
  Probes(const Probes&) = delete;
  Probes& operator=(const Probes&) = delete;

  Ended wait(size_t rank, int limit_s = 60) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(limit_s);
    int status = 0;
    Ended ended;
    while (::waitpid(children_[rank], &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > until) {
        end(std::exchange(children_[rank], 0));
        ended.err = "was still running\n" + err(rank);
        return ended;
      }
      ::usleep(2000);
    }
    children_[rank] = 0;
    ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ended.err = err(rank);
    return ended;
  }

  bool all_good() {
    bool good = true;
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      const Ended ended = wait(rank);
      if (ended.code != 0) UNSCOPED_INFO("rank " << rank << " ended with " << ended.code << ": " << ended.err);
      good = good && ended.code == 0;
    }
    return good;
  }

 private:
  static void end(pid_t child) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  std::string err(size_t rank) const { return read_text(folder_ / ("err." + std::to_string(rank))); }

  TemporaryFolder folder_;
  std::vector<pid_t> children_;
};

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::set<std::string> shared_memory() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) names.insert(entry.path().filename());
  return names;
}

}  // namespace

TEST_CASE("nccl: each collective in each type computes what a plain loop does") {
  const int world = GENERATE(1, 2, 3, 4);
  INFO(world << " ranks");
  CHECK(Probes("collectives", world).all_good());
}

TEST_CASE("nccl: messages longer than a channel arrive") { CHECK(Probes("large", 3).all_good()); }

TEST_CASE("nccl: a reduction with a factor of each rank") { CHECK(Probes("premultiplied", 3).all_good()); }

TEST_CASE("nccl: half precision is added up in float, long integers exactly") {
  CHECK(Probes("half_in_float", 3).all_good());
}

TEST_CASE("nccl: sends and receives of a group do not wait for each other, whatever their order") {
  const int world = GENERATE(1, 2, 4);
  INFO(world << " ranks");
  CHECK(Probes("group_orders", world).all_good());
}

TEST_CASE("nccl: a group holds collectives and messages on several streams") {
  CHECK(Probes("group_of_collectives", 3).all_good());
}

TEST_CASE("nccl: calls on two streams run in the order of the calls, in every schedule") {
  const std::string schedule = GENERATE("immediate", "late", "2", "3");
  INFO(schedule);
  CHECK(Probes("two_streams", 2, {"SIMULATED_CUDA_SCHEDULE=" + schedule}).all_good());
}

TEST_CASE("nccl: a captured exchange runs at each launch of its graph") { CHECK(Probes("graph", 2).all_good()); }

TEST_CASE("nccl: a communicator is split, by color and key") { CHECK(Probes("split", 4).all_good()); }

TEST_CASE("nccl: ranks continue without one that is gone, on a smaller communicator") {
  CHECK(Probes("shrink", 3).all_good());
}

TEST_CASE("nccl: several devices of one process exchange") { CHECK(Probes("one_process", 1).all_good()); }

TEST_CASE("nccl: ranks that call different things are ended, with both calls in the message") {
  const std::string what = GENERATE("operation", "count", "type", "reduction", "root", "message");
  INFO(what);
  Probes probes("mismatch:" + what, 2);
  const std::string text = probes.wait(0).err + probes.wait(1).err;
  INFO(text);
  CHECK(says(text, ", but rank "));
  if (what == "operation")
    CHECK((says(text, "ncclAllReduce of 10 float32, sum") && says(text, "ncclAllGather of 10 float32")));
  if (what == "count") CHECK((says(text, "of 10 ") && says(text, "of 11 ")));
}

TEST_CASE("nccl: a mismatch is an error of the communicator if requested") {
  Probes probes("mismatch:count", 2, {"SIMULATED_NCCL_MISMATCH=error"});
  const Ended first = probes.wait(0), second = probes.wait(1);
  INFO(first.err << second.err);
  CHECK(first.code == 3);
  CHECK(second.code == 3);
}

TEST_CASE("nccl: ranks that expect different numbers of ranks get a distinct error") {
  Probes probes("wrong_world", 2, {"SIMULATED_NCCL_TIMEOUT=1"});
  const std::string text = probes.wait(0).err + probes.wait(1).err;
  INFO(text);
  CHECK(
      (says(text, "expects 3 ranks, another rank expects 2") || says(text, "expects 2 ranks, another rank expects 3")));
}

TEST_CASE("nccl: two ranks on one GPU are refused, and two devices with one number are not one") {
  CHECK(Probes("one_gpu", 2).all_good());
  // Each process sees another GPU as its first device.
  CHECK(Probes("one_gpu_each", 2, {}, {"CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=1"}).all_good());
}

TEST_CASE("nccl: an abort releases work that waits for a peer") { CHECK(Probes("abort", 2).all_good()); }

TEST_CASE("nccl: a killed peer is not noticed until the communicator is aborted") {
  const std::set<std::string> before = shared_memory();
  {
    Probes probes("killed", 2);
    const Ended first = probes.wait(0);
    INFO(first.err);
    CHECK(first.code == 0);
    CHECK(probes.wait(1).code == 128 + SIGKILL);
  }
  for (const std::string& name : shared_memory())
    if (!before.contains(name)) CHECK_FALSE(says(name, "nccl"));
}

TEST_CASE("nccl: a rank that dies before all have joined leaves no shared memory") {
  const std::set<std::string> before = shared_memory();
  {
    Probes probes("dies_in_init", 2, {"SIMULATED_NCCL_TIMEOUT=1"});
    CHECK(probes.wait(1).code == 128 + SIGKILL);
    const Ended first = probes.wait(0);
    CHECK(first.code == 128 + SIGABRT);
    INFO(first.err);
    CHECK(says(first.err, "1 ranks have joined"));
  }
  for (const std::string& name : shared_memory())
    if (!before.contains(name)) CHECK_FALSE(says(name, "nccl"));
}

TEST_CASE("nccl: a time limit ends a process that waits, and says for what") {
  Probes probes("timeout", 2, {"SIMULATED_NCCL_TIMEOUT=1"});
  const Ended first = probes.wait(0, 20);
  INFO(first.err);
  CHECK(first.code == 128 + SIGABRT);
  CHECK(says(first.err, "waits for ncclAllReduce of 8 float32, sum of rank 1"));
}

TEST_CASE("nccl: a time limit that is not a number is refused") {
  for (const char* limit : {"SIMULATED_NCCL_TIMEOUT=soon", "SIMULATED_NCCL_TIMEOUT=-1", "SIMULATED_NCCL_TIMEOUT=1m"}) {
    Probes probes("timeout", 2, {limit});
    const Ended first = probes.wait(0, 20);
    INFO(first.err);
    CHECK(first.code == 2);
    CHECK(says(first.err, "it must be a number of seconds"));
  }
}

TEST_CASE("nccl: a finalized communicator has done its work, a destroyed one is refused") {
  CHECK(Probes("ends", 2).all_good());
}

}  // namespace fulgur::test
