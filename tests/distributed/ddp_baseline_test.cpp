#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdio>
#include <cstdlib>

#include "fulgur/optim/sgd.h"
#include "fulgur/strategies/ddp.h"
#include "fulgur/strategies/true_precision.h"
#include "ranks.h"
#include "strategies/ddp_problem.h"

namespace ddp_baseline_test {

using namespace fulgur;
using test::DdpProblem;

namespace {

void set(const char* name, int64_t value) { ::setenv(name, std::to_string(value).c_str(), 1); }

// One rank of a training by hand through the strategy; rank 0 writes the weights after some steps.
void train(const std::string& norm, int64_t accumulate, int64_t rank, int64_t ranks, int port,
           const std::filesystem::path& file) {
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, int64_t>>{{"RANK", rank},
                                                                                          {"WORLD_SIZE", ranks},
                                                                                          {"LOCAL_RANK", rank},
                                                                                          {"LOCAL_WORLD_SIZE", ranks},
                                                                                          {"MASTER_PORT", port}})
    set(name, value);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  DdpProblem net(norm != "none");  // outlives the strategy, which takes its norms back
  DDPStrategy strategy(DDPStrategy::Options{.cluster_environment = "variables"});
  strategy.configure({.devices = std::vector<at::Device>(static_cast<size_t>(ranks), at::kCPU),
                      .sync_batchnorm = norm == "sync",
                      .precision = std::make_shared<Float64True>()});
  strategy.attach(net);
  SGD optimizer(SGD::Options{.lr = DdpProblem::kRate, .momentum = DdpProblem::kMomentum});
  optimizer.attach(trainable_groups(net));
  strategy.start_training(net, {&optimizer});
  nlohmann::json found;
  for (int64_t step = 1; step <= 100; ++step) {
    for (int64_t k = 0; k < accumulate; ++k) {
      const GradSync sync = k + 1 == accumulate ? GradSync::now : GradSync::deferred;
      strategy.before_forward(net, sync);
      const Batch batch = DdpProblem::share((step - 1) * accumulate + k, rank, ranks);
      strategy.backward(net, net.training_step(batch, 0).loss / static_cast<double>(accumulate), sync, {});
    }
    strategy.optimizer_step(optimizer, {}, std::nullopt);
    optimizer.zero_grad();
    if (rank == 0 && (step == 1 || step == 10 || step == 100)) found[std::to_string(step)] = net.values();
  }
  if (rank == 0) test::write_text(file, found.dump());
  strategy.collectives().barrier("end");
}

}  // namespace

TEST_CASE("ddp: weights and running statistics are those of PyTorch's DDP, to 1e-10 over 100 steps") {
  const auto baseline = test::read_ddp_baseline();
  for (const auto& entry : baseline.at("cases")) {
    CAPTURE(entry.at("ranks").dump(), entry.at("norm").dump(), entry.at("accumulate").dump());
    const auto ranks = entry.at("ranks").get<int64_t>();
    const test::TemporaryFolder folder;
    const auto file = folder / "values.json";
    const int port = test::free_port();
    std::vector<pid_t> children;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        try {
          train(entry.at("norm").get<std::string>(), entry.at("accumulate").get<int64_t>(), rank, ranks, port, file);
          ::_exit(0);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(rank), error.what());
          ::_exit(1);
        }
      }
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int status = 0;
      ::waitpid(child, &status, 0);
      CHECK(status == 0);
    }
    const auto found = nlohmann::json::parse(test::read_text(file));
    for (const auto& [step, expected] : entry.at("values").items()) {
      const auto wanted = expected.get<std::vector<double>>(), got = found.at(step).get<std::vector<double>>();
      REQUIRE(wanted.size() == got.size());
      double worst = 0;
      for (size_t i = 0; i < wanted.size(); ++i) worst = std::max(worst, std::abs(wanted[i] - got[i]));
      CAPTURE(step, worst);
      CHECK(worst < 1e-10);
    }
  }
}

}  // namespace ddp_baseline_test
