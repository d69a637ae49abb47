// Mistakes in a module that would train something else silently.
#include <ATen/ops/argmax.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>

#include "failures/failed_layers.h"
#include "trainer/boring.h"

#include <ATen/ops/layer_norm.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace module_mistakes_test {

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
  CHECK_THROWS_WITH(fit<Unregistered>(), ContainsSubstring("their shapes are") && ContainsSubstring("[2, 2]") &&
                                             ContainsSubstring("[2]") &&
                                             ContainsSubstring("register_module(\"name\", layer)"));
}

TEST_CASE("leaves that a step creates, and tensors of an optimizer, are not reported as such") {
  struct Penalized : SelfPlanned {
    Tensor extra = at::ones({3}).requires_grad_(true);
    std::shared_ptr<SGD> sgd;
    OptimizerPlan configure_optimizers() override {
      sgd = std::make_shared<SGD>(SGD::Options{.lr = 0.01});
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

TEST_CASE("a loss of integers is an error that names its dtype and says where a loss comes from") {
  struct Counts : SelfPlanned {
    StepOutput training_step(const Batch& b, int64_t) override { return forward(b[0]).argmax(1).sum(); }
  };
  struct CountsByHand : SelfPlanned {
    bool automatic_optimization() const override { return false; }
    StepOutput training_step(const Batch& b, int64_t) override {
      manual_backward(forward(b[0]).argmax(1).sum());
      return {};
    }
  };
  const auto names_it = ContainsSubstring(
      "the loss must be a floating-point tensor; got Long, which has no gradient. Compute it from the module's "
      "outputs, "
      "such as cross_entropy(logits, labels)");
  CHECK_THROWS_WITH(fit<Counts>(), names_it);
  CHECK_THROWS_WITH(fit<CountsByHand>(), names_it);
}

TEST_CASE("several optimizers of which one has no parameters are an error: it would take all") {
  struct Two : SelfPlanned {
    bool automatic_optimization() const override { return false; }
    OptimizerPlan configure_optimizers() override {
      auto one = std::make_shared<SGD>(SGD::Options{.lr = 0.01}),
           other = std::make_shared<SGD>(SGD::Options{.lr = 0.01});
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

TEST_CASE("an error of shapes or devices names the layers that it is about, as far as its text says") {
  struct Net : BoringModule {
    torch::nn::Conv2d conv{nullptr};
    torch::nn::BatchNorm1d norm{nullptr};
    Net() {
      conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3)));
      norm = register_module("norm", torch::nn::BatchNorm1d(6));
    }
  };
  Net net;
  // The texts are LibTorch's own.
  const auto layers = [&](const auto& fails) -> std::string {
    try {
      fails();
    } catch (const std::exception& error) {
      return fulgur::detail::failed_layers(error.what(), net, at::kCPU).value_or("nothing");
    }
    return "no error";
  };
  CHECK_THAT(layers([&] { net.first->forward(at::ones({2, 5})); }), ContainsSubstring(": first.weight [8, 4]"));
  CHECK_THAT(layers([&] {
               net.conv->forward(at::ones({2, 1, 8, 8}));
             }),
             ContainsSubstring("conv.weight [16, 3, 3, 3]"));
  CHECK_THAT(layers([&] { net.norm->forward(at::ones({2, 5})); }), ContainsSubstring("norm.running_mean [6]"));
  CHECK_THAT(layers([&] {
               at::layer_norm(at::ones({2, 5}), {8}, net.first->bias);
             }),
             ContainsSubstring("first.bias [8]"));
  CHECK(layers([&] { at::ones({2, 5}).add(at::ones({3})); }) == "nothing");
  const char* const devices = "Expected all tensors to be on the same device, but found at least two devices";
  CHECK_THAT(*fulgur::detail::failed_layers(devices, net, at::kCPU),
             ContainsSubstring("all parameters and buffers") && ContainsSubstring("not one of them"));
  CHECK_THAT(
      *fulgur::detail::failed_layers(devices, net, at::Device(at::kCUDA, 0)),
      ContainsSubstring("not on cuda:0: ") && ContainsSubstring("first.weight on cpu") && ContainsSubstring(" more"));
}

}  // namespace module_mistakes_test
