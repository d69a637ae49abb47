#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "ddp_problem.h"
#include "fulgur/nn/sync_norm.h"
#include "fulgur/optim/sgd.h"
#include "support/thread_collectives.h"

namespace ddp_baseline_test {

using namespace fulgur;
using test::DdpProblem;

// Gradients averaged by hand between threads: what PyTorch's DDP does, without its Reducer. In float64 only the order
// of a sum differs: 1e-10 over 100 steps.
TEST_CASE("averaged gradients equal PyTorch's DDP over 100 steps") {
  const nlohmann::json baseline = test::read_ddp_baseline();
  CHECK(baseline.at("cases").size() == 18);
  for (const auto& entry : baseline.at("cases")) {
    CAPTURE(entry.at("ranks").dump(), entry.at("norm").dump(), entry.at("accumulate").dump());
    const auto ranks = entry.at("ranks").get<int64_t>(), accumulate = entry.at("accumulate").get<int64_t>();
    const auto norm = entry.at("norm").get<std::string>();
    std::map<int64_t, std::vector<double>> found;
    test::run_ranks(ranks, [&](Collectives& collectives) {
      DdpProblem net(norm != "none");
      if (norm == "sync") nn::sync_norms_over(net, &collectives);
      SGD optimizer(SGD::Options{.lr = DdpProblem::kRate, .momentum = DdpProblem::kMomentum});
      ParamGroup group;
      for (const auto& parameter : net.named_parameters()) {
        group.params.push_back(parameter.value());
        group.names.push_back(parameter.key());
      }
      optimizer.attach({group});
      for (int64_t step = 1; step <= 100; ++step) {
        for (int64_t k = 0; k < accumulate; ++k) {
          const Batch batch = DdpProblem::share((step - 1) * accumulate + k, collectives.rank(), ranks);
          (net.training_step(batch, 0).loss / accumulate).backward();
        }
        for (const Tensor& gradient : optimizer.gradients())
          gradient.copy_(collectives.all_reduce(gradient, ReduceOp::mean));
        optimizer.step();
        optimizer.zero_grad();
        if (collectives.rank() == 0 && (step == 1 || step == 10 || step == 100)) found[step] = net.values();
      }
    });
    for (const auto& [step, values] : found) {
      const auto expected = entry.at("values").at(std::to_string(step)).get<std::vector<double>>();
      REQUIRE(values.size() == expected.size());
      double worst = 0;
      for (size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(values[i] - expected[i]));
      CAPTURE(step, worst);
      CHECK(worst < 1e-10);
    }
    CHECK(found.size() == 3);
  }
}

}  // namespace ddp_baseline_test
