#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "ranks.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <csignal>
#include <memory>
#include <utility>

namespace rendezvous_test {

using namespace fulgur::test;

namespace {

std::vector<std::string> quick(const std::vector<std::string>& more = {}) {
  std::vector<std::string> all{"--trainer.max_steps", "1", "--trainer.strategy.start_timeout_s", "3"};
  all.insert(all.end(), more.begin(), more.end());
  return probe("fit", 2, 8, all);
}

}  // namespace

TEST_CASE("F24: a rank that never comes is named, with address and port") {
  const TemporaryFolder folder;
  const int port = free_port();
  const auto begin = std::chrono::steady_clock::now();
  const auto runs = run_ranks({.count = 2, .folder = folder.path(), .started = {0}, .port = port}, quick());
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(8));
  CHECK(all_exit(runs, 5));
  CHECK(says(runs[0].err, "1 of 2 ranks joined, missing: 1"));
  CHECK(says(runs[0].err, "rank 0 of 2, 127.0.0.1:" + std::to_string(port)));
}

TEST_CASE("F24: without rank 0 there is no store to connect to") {
  const TemporaryFolder folder;
  const auto runs = run_ranks({.count = 2, .folder = folder.path(), .started = {1}}, quick());
  CHECK(all_exit(runs, 5));
  CHECK(says(runs[0].err, "nothing listens on port"));
  CHECK(says(runs[0].err, "rank 1 of 2"));
}

TEST_CASE("F25: a port in use, a privileged port, an unknown host") {
  const TemporaryFolder folder;
  const int fd = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  socklen_t size = sizeof address;
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(fd, 1) == 0);
  REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const auto taken =
      run_ranks({.count = 2, .folder = folder.path(), .started = {0}, .port = ntohs(address.sin6_port)}, quick());
  CHECK(all_exit(taken, 5));
  CHECK(says(taken[0].err, "cannot be opened for the store of the run: Address already in use"));
  CHECK(says(taken[0].err, "rank 0 of 2"));
  // It accepts, and says nothing.
  const auto begin = std::chrono::steady_clock::now();
  const auto silent =
      run_ranks({.count = 2, .folder = folder.path(), .started = {1}, .port = ntohs(address.sin6_port)}, quick());
  ::close(fd);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  CHECK(all_exit(silent, 5));
  CHECK(says(silent[0].err, "another program may hold the port"));
  const auto unknown = run_ranks(
      {.count = 2, .folder = folder.path(), .environment = {"MASTER_ADDR=nowhere.invalid"}, .started = {1}}, quick());
  CHECK(all_exit(unknown, 5));
  CHECK(says(unknown[0].err, "'nowhere.invalid' cannot be resolved"));
}

TEST_CASE("rendezvous: a store for this machine alone listens on the loopback interface alone") {
  const TemporaryFolder folder;
  const int port = free_port();
  const auto begin = std::chrono::steady_clock::now();
  Running first(quick(), {.folder = folder.path(),
                          .environment = {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2",
                                          "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(port)}});
  // A port that is taken on the loopback interface alone is free on another address of it.
  const auto can_bind = [&](in_addr_t where) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(where);
    const bool can = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    return can;
  };
  REQUIRE(first.wait_until([&] { return !can_bind(INADDR_LOOPBACK); }));
  CHECK(can_bind(INADDR_LOOPBACK + 1));
  CHECK(first.wait().exit_code == 5);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(8));
}

TEST_CASE("rendezvous: a rank that waits for others ends at once if it is asked to stop") {
  const TemporaryFolder folder;
  for (const auto& [signal, code] : {std::pair(SIGTERM, 143), std::pair(SIGINT, 130)}) {
    CAPTURE(code);
    const int port = free_port();
    const auto listens = [&] {
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(port));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      const bool taken = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0;
      ::close(fd);
      return taken;
    };
    Running first(probe("fit", 2, 8, {"--trainer.max_steps", "1", "--trainer.strategy.start_timeout_s", "60"}),
                  {.folder = folder.path(),
                   .environment = {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2",
                                   "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(port)}});
    REQUIRE(first.wait_until(listens));
    const auto begin = std::chrono::steady_clock::now();
    first.signal(signal);
    const Finished end = first.wait();
    INFO(end.err);
    CHECK(end.exit_code == code);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
    CHECK_FALSE(says(end.err, "error: "));
  }
}

TEST_CASE("F25: a wrong world size on one rank, a rank that comes twice") {
  const TemporaryFolder folder;
  const int port = free_port();
  const auto start = [&](const std::string& rank, const std::string& world) {
    return Start{
        .folder = folder.path(),
        .environment = {"RANK=" + rank, "WORLD_SIZE=" + world, "LOCAL_RANK=" + rank, "LOCAL_WORLD_SIZE=" + world,
                        "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(port)}};
  };
  {
    Running first(quick(), start("0", "2"));
    const Finished other = trainer(
        probe("fit", 3, 9, {"--trainer.max_steps", "1", "--trainer.strategy.start_timeout_s", "5"}), start("1", "3"));
    CHECK(other.exit_code == 5);
    const Finished own = first.wait();
    CHECK(own.exit_code == 5);
    // The second one sees it.
    CHECK((says(other.err, "another rank says 2, this one says 3") ||
           says(own.err, "another rank says 3, this one says 2")));
  }
  {
    Running first(quick(), start("0", "2"));
    Running second(probe("fit", 2, 8, {"--trainer.max_steps", "1", "--trainer.strategy.start_timeout_s", "5"}),
                   start("0", "2"));
    const Finished a = first.wait(), b = second.wait();
    CHECK(a.exit_code == 5);
    CHECK(b.exit_code == 5);
    CHECK((says(a.err + b.err, "is used twice") || says(a.err + b.err, "Address already in use")));
  }
}

TEST_CASE(
    "torchrun: an agent's store keeps earlier rounds, and each agent counts restarts separately; ranks still connect") {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = 0;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  std::unique_ptr<TemporaryFolder> folder = std::make_unique<TemporaryFolder>();
  const auto start = [&](int rank, int world, int restarts) {
    const std::string number = std::to_string(rank), nodes = std::to_string(world);
    return Start{.folder = folder->path(),
                 .environment = {"OMP_NUM_THREADS=1", "TORCHELASTIC_RUN_ID=x", "TORCHELASTIC_USE_AGENT_STORE=True",
                                 "TORCHELASTIC_RESTART_COUNT=" + std::to_string(restarts), "RANK=" + number,
                                 "WORLD_SIZE=" + nodes, "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "GROUP_RANK=" + number,
                                 "GROUP_WORLD_SIZE=" + nodes, "MASTER_ADDR=127.0.0.1",
                                 "MASTER_PORT=" + std::to_string(store->getPort())}};
  };
  const auto arguments = [](const std::string& timeout) {
    return probe("fit", 2, 8,
                 {"--trainer.max_steps", "2", "--trainer.devices", "1", "--trainer.strategy.start_timeout_s", timeout});
  };
  // A round in which rank 1 never came, one in which only rank 1 did, and then whole ones, over two and three ranks.
  const Finished alone = trainer(arguments("1"), start(0, 2, 0));
  CHECK(alone.exit_code == 5);
  CHECK(says(alone.err, "1 of 2 ranks joined, missing: 1"));
  const Finished other = trainer(arguments("1"), start(1, 2, 0));
  CHECK(other.exit_code == 5);
  CHECK(says(other.err, "missing: 0"));
  for (const int world : {2, 2, 3}) {
    CAPTURE(world);
    folder = std::make_unique<TemporaryFolder>();  // with nothing to continue from
    std::vector<std::unique_ptr<Running>> running;
    for (int rank = world; rank-- > 0;)
      running.push_back(std::make_unique<Running>(arguments("15"), start(rank, world, rank % 2)));
    std::vector<Finished> runs;
    for (auto& one : running) runs.push_back(one->wait());
    CHECK(all_exit(runs, 0));
  }
}

TEST_CASE("F27: ranks with different configs or parameters report what differs") {
  const TemporaryFolder folder;
  const auto configs = run_ranks({.count = 2, .folder = folder.path(), .extra = {{}, {"--optimizer.lr", "0.5"}}},
                                 probe("fit", 2, 8, {"--trainer.max_steps", "1"}));
  CHECK(all_exit(configs, 5));
  for (const Finished& run : configs) CHECK(says(run.err, "optimizer.init_args.lr: '0.05' on rank 0, '0.5' on rank 1"));
  const auto shapes = run_ranks({.count = 2, .folder = folder.path()},
                                probe("fit", 2, 8, {"--trainer.max_steps", "1", "--model.trouble", "shape"}));
  CHECK(all_exit(shapes, 5));
  for (const Finished& run : shapes) CHECK(says(run.err, "parameter extra: nothing on rank 0, 'Float [2]' on rank 1"));
}

TEST_CASE("ddp: several processes without a launcher are an error that says how to start them") {
  const TemporaryFolder folder;
  const Finished run = trainer(probe("fit", 2, 8, {"--trainer.devices", "3"}),
                               {.folder = folder.path(),
                                .environment = {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2",
                                                "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29999"}});
  CHECK(run.exit_code == 5);
  CHECK(says(run.err, "devices"));
}

}  // namespace rendezvous_test
