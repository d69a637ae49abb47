#include "fulgur/core/contracts/module.h"

#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace module_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Net : LightningModule {
  torch::nn::Linear a{nullptr}, b{nullptr};
  Net() {
    a = register_module("a", torch::nn::Linear(3, 3));
    b = register_module("b", torch::nn::Linear(3, 3));
    register_buffer("count", at::zeros({1}, at::kLong));
  }
  StepOutput training_step(const Batch& batch, int64_t) override { return a->forward(batch[0]).sum(); }
};

struct Overriding : Net {
  Outputs validation_step(const Batch&, int64_t, int64_t) override { return {}; }
  Batch on_after_batch_transfer(Batch batch, int64_t) override { return batch; }
};

// A class between: overrides of a parent count.
struct Derived : Overriding {};

}  // namespace

TEST_CASE("the hooks a class overrides are found from its type") {
  CHECK_FALSE(fulgur::detail::ComponentAccess::hooks_of<LightningModule, Net>().has(Hook::validation_step));
  CHECK(fulgur::detail::ComponentAccess::hooks_of<LightningModule, Overriding>().has(Hook::validation_step));
  CHECK(fulgur::detail::ComponentAccess::hooks_of<LightningModule, Derived>().has(Hook::on_after_batch_transfer));
  CHECK_FALSE(
      fulgur::detail::ComponentAccess::hooks_of<LightningModule, Derived>().has(Hook::on_before_batch_transfer));
  CHECK(HookMask{}.has(Hook::validation_step));
  CHECK_FALSE(HookMask{}.exact);
}

namespace {

// The compiler warns where a hidden function is declared, so the base is here too.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverloaded-virtual"
struct Hooks {
  virtual ~Hooks() = default;
  virtual int step(int, int64_t) { return 0; }
  virtual void start() {}
  virtual bool automatic() const { return true; }
};
struct FewerArguments : Hooks {
  int step(int) { return 1; }
};
struct OtherArguments : Hooks {
  int step(int, int) { return 1; }
};
struct Constant : Hooks {
  void start() const {}
};
struct NotConstant : Hooks {
  bool automatic() { return true; }
};
struct Member : Hooks {
  bool automatic = false;
};
struct Static : Hooks {
  static void start(int) {}
};
// What is right.
struct Right : Hooks {
  int step(int, int64_t) override { return 1; }
};
struct Overloaded : Hooks {
  int step(int) { return 1; }
  int step(int, int64_t) override { return 1; }
};
struct Kept : Hooks {
  using Hooks::step;
  int step(int) { return 1; }
};
struct Quiet : Hooks {
  int step(int, int64_t) noexcept override { return 1; }
  bool automatic() const noexcept override { return true; }
};
class Private : public Hooks {
  int step(int, int64_t) override { return 1; }
};
struct Virtual : virtual Right {};
struct Later : Right {};
#pragma GCC diagnostic pop

}  // namespace

TEST_CASE("a member that has a hook's name and does not override it is found from the class") {
  STATIC_CHECK_FALSE(FULGUR_HOOK_FITS(FewerArguments, Hooks, step));
  STATIC_CHECK(FULGUR_HOOK_FITS(FewerArguments, Hooks, start));
  STATIC_CHECK_FALSE(FULGUR_HOOK_FITS(OtherArguments, Hooks, step));
  STATIC_CHECK_FALSE(FULGUR_HOOK_FITS(Constant, Hooks, start));
  STATIC_CHECK_FALSE(FULGUR_HOOK_FITS(NotConstant, Hooks, automatic));
  STATIC_CHECK_FALSE(FULGUR_HOOK_FITS(Member, Hooks, automatic));
  STATIC_CHECK_FALSE(FULGUR_HOOK_FITS(Static, Hooks, start));
  STATIC_CHECK(FULGUR_HOOK_FITS(Hooks, Hooks, step));
  STATIC_CHECK(FULGUR_HOOK_FITS(Right, Hooks, step));
  STATIC_CHECK(FULGUR_HOOK_FITS(Right, Hooks, start));
  STATIC_CHECK(FULGUR_HOOK_FITS(Overloaded, Hooks, step));
  STATIC_CHECK(FULGUR_HOOK_FITS(Kept, Hooks, step));
  STATIC_CHECK(FULGUR_HOOK_FITS(Quiet, Hooks, step));
  STATIC_CHECK(FULGUR_HOOK_FITS(Quiet, Hooks, automatic));
  STATIC_CHECK(FULGUR_HOOK_FITS(Private, Hooks, step));
  STATIC_CHECK(FULGUR_HOOK_FITS(Virtual, Hooks, step));
  STATIC_CHECK(FULGUR_HOOK_FITS(Virtual, Hooks, automatic));
  STATIC_CHECK(FULGUR_HOOK_FITS(Later, Hooks, step));
}

TEST_CASE("a tied parameter is listed once and moves with its twin") {
  Net net;
  CHECK(unique_parameters(net).size() == 4);
  net.b->weight = net.a->weight;
  tie_parameters(net, "a.weight", "b.weight");
  const auto unique = unique_parameters(net);
  REQUIRE(unique.size() == 3);
  CHECK(net.named_parameters()["b.weight"].is_same(net.a->weight));
  CHECK(net.named_parameters()["b.bias"].is_same(net.b->bias));
  CHECK(trainable_groups(net)[0].params.size() == 3);
  CHECK_THROWS_WITH(tie_parameters(net, "a.weight", "b.wieght"), ContainsSubstring("b.weight"));
  CHECK_THROWS_WITH(tie_parameters(net, "a.weight", "b.bias"), ContainsSubstring("same shape"));
}

TEST_CASE("parameter_groups takes what is trained under a prefix, with the names of the whole module") {
  Net net;
  net.a->bias.set_requires_grad(false);
  const std::vector<ParamGroup> a = parameter_groups(net, "a.");
  REQUIRE(a.size() == 1);
  CHECK(a[0].names == std::vector<std::string>{"a.weight"});
  CHECK(a[0].params.at(0).is_same(net.a->weight));
  CHECK(parameter_groups(net, "")[0].names == trainable_groups(net)[0].names);
  CHECK_THROWS_WITH(parameter_groups(net, "generator."),
                    ContainsSubstring("begins with 'generator.'") && ContainsSubstring("Names begin with 'a.', 'b.'."));
}

TEST_CASE("convert_floating leaves integer buffers alone") {
  Net net;
  convert_floating(net, at::kDouble);
  CHECK(net.a->weight.scalar_type() == at::kDouble);
  CHECK(net.named_buffers()["count"].scalar_type() == at::kLong);
}

TEST_CASE("a frozen submodule is still in eval mode after validation") {
  Net net;
  net.train();
  net.b->eval();
  net.on_validation_model_eval();
  CHECK_FALSE(net.is_training());
  CHECK_FALSE(net.a->is_training());
  net.on_validation_model_train();
  CHECK(net.is_training());
  CHECK(net.a->is_training());
  CHECK_FALSE(net.b->is_training());
}

TEST_CASE("outside a run, run() is an error and log() does nothing") {
  Net net;
  CHECK_THROWS_WITH(net.run(), ContainsSubstring("not in a run"));
  CHECK_NOTHROW(net.log("x", 1.0));
}

TEST_CASE("the default steps say that they are not overridden") {
  Net net;
  CHECK_THROWS_AS(net.validation_step({}, 0, 0), StepNotOverridden);
  CHECK_THROWS_AS(net.predict_step({}, 0, 0), StepNotOverridden);
  CHECK_THROWS_WITH(net.test_step({}, 0, 0),
                    ContainsSubstring("Override it as `fulgur::Outputs test_step(const fulgur::Batch& batch, int64_t "
                                      "batch_idx, int64_t loader_idx) override`"));
}

}  // namespace module_test
