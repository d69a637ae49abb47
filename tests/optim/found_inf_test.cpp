// found_inf: a step skipped by the device, for the optimizers whose operations do not support it.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "fulgur/optim/lion.h"
#include "fulgur/optim/muon.h"
#include "fulgur/optim/rmsprop.h"
#include "fulgur/optim/sgd.h"
#include "support/device_counts.h"
#include "support/gpu.h"

namespace found_inf_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

using Make = std::function<std::shared_ptr<Optimizer>()>;

const std::vector<std::pair<const char*, Make>>& all() {
  static const std::vector<std::pair<const char*, Make>> makes{
      {"RMSprop",
       [] {
         RMSprop::Options options;
         options.momentum = 0.5;
         options.centered = true;
         return std::make_shared<RMSprop>(options);
       }},
      {"Lion", [] { return std::make_shared<Lion>(Lion::Options{}); }},
      {"Muon", [] { return std::make_shared<Muon>(Muon::Options{}); }},
      {"SGD", [] { return std::make_shared<SGD>(SGD::Options{.lr = 0.1, .momentum = 0.9, .dampening = 0.5}); }}};
  return makes;
}

struct Stepped {
  Stepped(const Make& make, int64_t tensors, at::Device device, at::ScalarType dtype) : optimizer(make()) {
    at::manual_seed(3);
    ParamGroup group;
    for (int64_t i = 0; i < tensors; ++i) {
      group.params.push_back(at::randn({5, 3}).to(device, dtype).requires_grad_());
      group.names.push_back(std::string(1, static_cast<char>('a' + i)));
    }
    optimizer->attach({group});
  }
  void step(double factor, double found_inf) {
    for (Tensor& parameter : optimizer->groups()[0].params)
      parameter.mutable_grad() = at::full_like(parameter.detach(), factor);
    const at::NoGradGuard no_grad;
    optimizer->step(at::full({}, found_inf, optimizer->groups()[0].params[0].options().dtype(at::kFloat)));
  }
  // Parameters and states on the CPU, in one order.
  std::vector<Tensor> values() const {
    std::vector<Tensor> values;
    for (const Tensor& parameter : optimizer->groups()[0].params) values.push_back(parameter.detach().cpu().clone());
    const StateTree state = optimizer->state();
    for (const auto& [name, of] : state.at("state").as_map())
      for (const auto& [key, value] : of.as_map()) values.push_back(value.tensor().cpu().clone());
    return values;
  }
  std::shared_ptr<Optimizer> optimizer;
};

void check_left_out(at::Device device, at::ScalarType dtype) {
  for (const auto& [name, make] : all()) {
    CAPTURE(name, c10::toString(dtype));
    Stepped stepped(make, 3, device, dtype), twin(make, 3, device, dtype);
    stepped.step(0.25, 0);
    twin.step(0.25, 0);
    const std::vector<Tensor> before = stepped.values();
    stepped.step(std::numeric_limits<double>::quiet_NaN(), 1);
    const std::vector<Tensor> after = stepped.values();
    for (size_t i = 0; i < before.size(); ++i) CHECK(after[i].equal(before[i]));
    // The next step is as if there had been none.
    stepped.step(-0.5, 0);
    twin.step(-0.5, 0);
    const std::vector<Tensor> mine = stepped.values(), theirs = twin.values();
    for (size_t i = 0; i < mine.size(); ++i) CHECK(mine[i].equal(theirs[i]));
    // A bfloat16 weight is too coarse for the small steps of some.
    if (dtype != at::kBFloat16) CHECK_FALSE(mine[0].equal(before[0]));
  }
}

}  // namespace

TEST_CASE("found_inf leaves parameters and states as they were, though the gradients are NaN") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) check_left_out(at::kCPU, dtype);
}

TEST_CASE("on a GPU, found_inf skips a step with a few kernels for all parameters", "[gpu]") {
  require_gpus(1);
  const at::Device device(at::kCUDA, 0);
  check_left_out(device, at::kFloat);
  if (!device_counts()) return;
  for (const auto& [name, make] : all()) {
    CAPTURE(name);
    // With found_inf and without, so that what the update itself launches for each tensor does not count.
    const auto launches = [&](int64_t tensors) {
      Stepped stepped(make, tensors, device, at::kFloat);
      stepped.step(0.25, 0);
      const auto count = [&](bool asked) {
        for (Tensor& parameter : stepped.optimizer->groups()[0].params)
          parameter.mutable_grad() = at::full_like(parameter.detach(), 0.25);
        const Tensor found = at::zeros({}, at::TensorOptions().device(device));
        const int64_t before = device_counts()->launches;
        stepped.optimizer->step(asked ? std::optional(found) : std::nullopt);
        return device_counts()->launches - before;
      };
      const int64_t plain = count(false);
      return count(true) - plain;
    };
    // A kernel takes some dozens of tensors.
    CHECK(launches(24) < 10);
  }
}

TEST_CASE("optim: on a GPU, a step of parameters in host memory is skipped by what the device will have computed",
          "[gpu]") {
  require_gpus(1);
  auto optimizer = std::make_shared<SGD>(SGD::Options{.lr = 0.1});
  const Tensor parameter = at::ones({4}).requires_grad_();
  ParamGroup group;
  group.params = {parameter};
  group.names = {"a"};
  optimizer->attach({group});
  const Tensor gradient = at::ones({1 << 20}, at::TensorOptions(at::Device(at::kCUDA, 0)));
  for (const bool is_finite : {false, true}) {
    parameter.mutable_grad() = at::ones({4});
    if (!is_finite)
      gradient.fill_(std::numeric_limits<float>::quiet_NaN());
    else
      gradient.fill_(1);
    optimizer->step(at::isfinite(gradient.sum()).logical_not().to(at::kFloat));
    CHECK(parameter.detach().equal(at::full({4}, is_finite ? 0.9F : 1.0F)));
  }
}

}  // namespace found_inf_test
