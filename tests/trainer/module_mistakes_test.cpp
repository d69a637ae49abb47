// Mistakes in a module that would train something else in silence.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>

#include "boring.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

template <class M>
void fit(bool debug = false) {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.debug = debug;
  Trainer(options).fit(std::make_shared<M>(), regression_data());
}

}  // namespace

TEST_CASE("a layer that is not registered, but that the loss depends on, is an error that says what to register") {
  struct Unregistered : SelfPlanned {
    torch::nn::Linear lost{2, 2};
    StepOutput training_step(const Batch& b, int64_t i) override {
      StepOutput output = SelfPlanned::training_step(b, i);
      output.loss = output.loss + lost(b[1]).square().mean();
      return output;
    }
  };
  CHECK_THROWS_WITH(fit<Unregistered>(), ContainsSubstring("of the shapes") && ContainsSubstring("[2, 2]") &&
                                             ContainsSubstring("[2]") &&
                                             ContainsSubstring("register_module(\"name\", layer)"));
}

TEST_CASE("leaves that a step makes for itself, and tensors of an optimizer, are none of that") {
  struct Penalized : SelfPlanned {
    Tensor extra = at::ones({3}).requires_grad_(true);
    std::shared_ptr<Sgd> sgd;
    OptimizerPlan configure_optimizers() override {
      sgd = std::make_shared<Sgd>(Sgd::Options{.lr = 0.01});
      std::vector<ParamGroup> groups = trainable_groups(*this);
      groups[0].params.push_back(extra);
      groups[0].names.emplace_back("extra");
      sgd->attach(groups);
      return sgd;
    }
    StepOutput training_step(const Batch& b, int64_t i) override {
      b[0].requires_grad_(true);
      const Tensor own = at::ones({2}).requires_grad_(true);
      StepOutput output = SelfPlanned::training_step(b, i);
      output.loss = output.loss + own.sum() + extra.square().sum() + b[0].square().mean();
      return output;
    }
  };
  CHECK_NOTHROW(fit<Penalized>());
}

TEST_CASE("several optimizers of which one has no parameters are an error: it would take all") {
  struct Two : SelfPlanned {
    bool automatic_optimization() const override { return false; }
    OptimizerPlan configure_optimizers() override {
      auto one = std::make_shared<Sgd>(Sgd::Options{.lr = 0.01}),
           other = std::make_shared<Sgd>(Sgd::Options{.lr = 0.01});
      one->attach(trainable_groups(*this));
      return OptimizerPlan::several({{one, {}}, {other, {}}});
    }
  };
  CHECK_THROWS_WITH(fit<Two>(), ContainsSubstring("SGD has no parameters") && ContainsSubstring("optimizer->attach"));
}

TEST_CASE("debug: a batch that a step writes in place is an error that names the entry") {
  struct Writes : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t i) override {
      if (i == 1) b[0].mul_(0.5);
      return SelfPlanned::training_step(b, i);
    }
  };
  CHECK_THROWS_WITH(fit<Writes>(true),
                    ContainsSubstring("'x' of the batch was written in place") && ContainsSubstring("batch 1"));
}
