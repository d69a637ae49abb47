// Loss scaling against Python's GradScaler, on the CPU.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "fulgur/optim/sgd.h"
#include "fulgur/strategies/grad_scaler.h"

namespace grad_scaler_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Learned {
  Tensor weight = at::tensor({1.0F, -2.0F}).set_requires_grad(true);
  SGD sgd{SGD::Options{.lr = 0.1}};
  Learned() { sgd.attach({ParamGroup{.name = "", .params = {weight}, .names = {"weight"}}}); }
  void backward(GradScaler& scaler, float second_input) {
    sgd.zero_grad();
    scaler.scale((weight * at::tensor({0.5F, second_input})).sum()).backward();
  }
  void step(GradScaler& scaler) {
    scaler.unscale(sgd, sgd.gradients());
    sgd.step(scaler.found_inf(sgd));
  }
};

}  // namespace

TEST_CASE("the loss scale evolves like Python's GradScaler's: growth, back-off, skipped steps, state") {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "baselines/grad_scaler.json");
  const auto baseline = nlohmann::json::parse(file);
  REQUIRE(baseline["cases"].size() == 3);
  for (const auto& expected : baseline["cases"]) {
    const auto overflows = expected["overflows"].get<std::set<int64_t>>();
    const GradScaler::Options options{.init_scale = expected["init_scale"],
                                      .growth_factor = expected["growth_factor"],
                                      .backoff_factor = expected["backoff_factor"],
                                      .growth_interval = expected["growth_interval"]};
    GradScaler scaler(options);
    Learned learned;
    int64_t i = 0;
    for (const auto& step : expected["steps"]) {
      CAPTURE(options.init_scale, i);
      learned.backward(scaler, overflows.contains(i++) ? kInf : 0.25F);
      learned.step(scaler);
      scaler.update();
      const StateTree state = scaler.state();
      CHECK(state.at("scale").as_double() == step["scale"].get<double>());
      CHECK(state.at("_growth_tracker").as_int() == step["growth_tracker"].get<int64_t>());
      for (size_t k = 0; k < 2; ++k)
        CHECK(learned.weight.detach()[static_cast<int64_t>(k)].item<float>() == step["weight"][k].get<float>());
      // A run that continues from here evolves the same way.
      GradScaler other(options);
      other.load_state(state);
      scaler = std::move(other);
    }
  }
}

TEST_CASE("gradients of a scaled loss are unscaled once between two updates, and then equal those of the loss itself") {
  GradScaler scaler({});
  Learned learned;
  learned.backward(scaler, 0.25F);
  CHECK(learned.weight.grad()[1].item<float>() == 0.25F * 65536);
  scaler.unscale(learned.sgd, learned.sgd.gradients());
  scaler.unscale(learned.sgd, learned.sgd.gradients());
  CHECK(learned.weight.grad()[1].item<float>() == 0.25F);
  CHECK(scaler.found_inf(learned.sgd)->item<float>() == 0);
  scaler.update();
  CHECK_FALSE(scaler.found_inf(learned.sgd).has_value());
}

TEST_CASE("two optimizers in a step: each skips by its own gradients, and the scale falls once") {
  GradScaler scaler({});
  Learned a, b;
  a.backward(scaler, 0.25F);
  b.backward(scaler, kInf);
  a.step(scaler);
  b.step(scaler);
  CHECK(a.weight.detach()[0].item<float>() != 1.0F);
  CHECK(b.weight.detach()[0].item<float>() == 1.0F);
  scaler.update();
  CHECK(scaler.scale_tensor().item<float>() == 32768);
  // Nothing was unscaled since: nothing to learn from.
  scaler.update();
  CHECK(scaler.scale_tensor().item<float>() == 32768);
}

TEST_CASE("a half loss is scaled in float32, where the scale has room") {
  const GradScaler scaler({});
  const Tensor scaled = scaler.scale(at::full({1}, 8.0, at::kHalf));
  CHECK(scaled.scalar_type() == at::kFloat);
  CHECK(scaled.item<float>() == 8.0F * 65536);
  CHECK(scaler.scale(at::ones({}, at::kDouble)).scalar_type() == at::kDouble);
}

TEST_CASE("half gradients and an invalid scale are refused") {
  GradScaler scaler({});
  SGD sgd(SGD::Options{.lr = 0.1});
  CHECK_THROWS_WITH(scaler.unscale(sgd, {at::ones({2}, at::kHalf)}),
                    ContainsSubstring("needs float32 gradients") && ContainsSubstring("master_weights: true"));
  CHECK_THROWS_WITH(scaler.load_state(StateTree::map({{"scale", 0.0}, {"_growth_tracker", int64_t{0}}})),
                    ContainsSubstring("positive"));
}

}  // namespace grad_scaler_test
