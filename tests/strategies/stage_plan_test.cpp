// How a pipeline divides the layers and the tensors of a module.
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/stage_plan.h"

namespace stage_plan_test {

using namespace fulgur;
using namespace fulgur::detail;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Layers of these widths, of which the last has the weight of the first if `ties`.
struct Chain : LightningModule {
  explicit Chain(const std::vector<int64_t>& widths, bool ties = false) {
    for (size_t i = 0; i < widths.size(); ++i)
      register_module(cat("layer", i), torch::nn::Linear(torch::nn::LinearOptions(widths[i], 1).bias(false)));
    register_buffer("spare", at::zeros({1}));
    if (ties) tie_parameters(*this, "layer0.weight", cat("layer", widths.size() - 1, ".weight"));
    for (size_t i = 0; i < widths.size(); ++i)
      chain.add(cat("layer", i), {cat("layer", i)}, [](const Tensor& x) { return x; });
    chain.input = [](const Batch& batch) { return LayerChain::Values{batch[0]}; };
    chain.loss = [](const LayerChain::Values& values, const Batch&) { return values[0].mean(); };
  }
  StepOutput training_step(const Batch&, int64_t) override { return {}; }
  LayerChain stages() override { return chain; }
  LayerChain chain;
};

using Stages = std::vector<std::pair<size_t, size_t>>;

StagePlan plan_of(const std::shared_ptr<Chain>& module, int64_t ranks, int64_t turns = 1,
                  const std::optional<std::vector<std::string>>& cuts = {}) {
  return plan_stages(*module, module->chain, cuts, {.ranks = ranks, .stages_per_rank = turns, .micro_batches = 4});
}

std::shared_ptr<Chain> chain_of(const std::vector<int64_t>& widths, bool ties = false) {
  return std::make_shared<Chain>(widths, ties);
}

}  // namespace

TEST_CASE("pipeline: stages have numbers of parameters that are as equal as possible") {
  CHECK(plan_of(chain_of({1, 1, 1, 1}), 2).stages == Stages{{0, 2}, {2, 4}});
  CHECK(plan_of(chain_of({5, 1, 1, 1, 1, 1}), 2).stages == Stages{{0, 1}, {1, 6}});
  CHECK(plan_of(chain_of({1, 1, 1, 9}), 3).stages.back() == std::pair<size_t, size_t>(3, 4));
  CHECK(plan_of(chain_of({4, 1, 1, 1, 1, 4}), 4).stages == Stages{{0, 1}, {1, 3}, {3, 5}, {5, 6}});
  CHECK(plan_of(chain_of({1, 1, 1, 1, 1, 1, 1, 1}), 2, 2).stages == Stages{{0, 2}, {2, 4}, {4, 6}, {6, 8}});
}

TEST_CASE("pipeline: cuts name the layers that begin a stage") {
  CHECK(plan_of(chain_of({1, 1, 1, 1}), 2, 1, {{"layer3"}}).stages == Stages{{0, 3}, {3, 4}});
  CHECK_THROWS_WITH(plan_of(chain_of({1, 1, 1}), 3, 1, {{"layer2", "layer1"}}),
                    ContainsSubstring("leaves a stage without a layer"));
  CHECK_THROWS_WITH(plan_of(chain_of({1, 1, 1}), 2, 1, {{"layer0"}}), ContainsSubstring("after the first one"));
}

TEST_CASE("pipeline: a tensor has the ranks of its stages, of which the first owns it") {
  const auto module = chain_of({1, 1, 1, 1}, /*ties=*/true);
  const StagePlan plan = plan_of(module, 2);
  for (const StageTensor& tensor : plan.tensors) {
    CAPTURE(tensor.name);
    if (tensor.name == "layer0.weight") CHECK(tensor.ranks == std::vector<int64_t>{0, 1});
    if (tensor.name == "layer1.weight") CHECK(tensor.ranks == std::vector<int64_t>{0});
    if (tensor.name == "layer2.weight") CHECK(tensor.ranks == std::vector<int64_t>{1});
    if (tensor.name == "spare") CHECK_FALSE(tensor.is_parameter);
  }
  CHECK(plan.tensors.size() == 4);
  // With two stages each, rank 0 has the first layer and the third.
  for (const StageTensor& tensor : plan_of(module, 2, 2).tensors)
    if (tensor.name == "layer0.weight") CHECK(tensor.stages == std::vector<int64_t>{0, 3});
}

TEST_CASE("pipeline: a chain that does not have the module's parameters is refused") {
  const auto module = chain_of({1, 1});
  module->chain.layers[1].modules = {"layer7"};
  CHECK_THROWS_WITH(plan_of(module, 2), ContainsSubstring("'layer7', which is no module, parameter or buffer"));
  module->chain.layers[1].modules = {};
  CHECK_THROWS_WITH(plan_of(module, 2), ContainsSubstring("names these parameters: layer1.weight"));
  module->chain.layers[1].name = "layer0";
  CHECK_THROWS_WITH(plan_of(module, 2), ContainsSubstring("named 'layer0'"));
  module->chain.loss = {};
  CHECK_THROWS_WITH(plan_of(module, 2), ContainsSubstring("must set input and loss; it has not set loss"));
}

}  // namespace stage_plan_test
