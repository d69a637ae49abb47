// Learning rates that are kept in tensors, as captured steps need them. On the CPU they change no bit of a step.
#include <ATen/ops/randn.h>

#include <catch2/catch_test_macros.hpp>
#include <functional>
#include <vector>

#include "fulgur/core/device/recordable_step.h"
#include "fulgur/optim/adagrad.h"
#include "fulgur/optim/adam.h"
#include "fulgur/optim/lion.h"
#include "fulgur/optim/muon.h"
#include "fulgur/optim/rmsprop.h"
#include "fulgur/optim/sgd.h"

namespace device_rates_test {

using namespace fulgur;

namespace {

struct Case {
  const char* name;
  std::function<std::shared_ptr<Optimizer>()> make;
};

template <class O>
std::function<std::shared_ptr<Optimizer>()> with_decay(double decay) {
  return [decay] {
    typename O::Options options;
    options.lr = 0.013;
    options.weight_decay = decay;
    return std::make_shared<O>(options);
  };
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"SGD", with_decay<SGD>(0.01)},
      {"SGD with momentum",
       [] { return std::make_shared<SGD>(SGD::Options{.lr = 0.013, .momentum = 0.9, .nesterov = true}); }},
      {"SGD with dampening",
       [] {
         return std::make_shared<SGD>(
             SGD::Options{.lr = 0.013, .momentum = 0.8, .weight_decay = 0.01, .dampening = 0.1});
       }},
      {"Adam", with_decay<Adam>(0.01)},
      {"AdamW", with_decay<AdamW>(0.01)},
      {"Adagrad", with_decay<Adagrad>(0.01)},
      {"RMSprop", with_decay<RMSprop>(0.01)},
      {"RMSprop with momentum",
       [] { return std::make_shared<RMSprop>(RMSprop::Options{.lr = 0.013, .momentum = 0.5}); }},
      {"Lion", with_decay<Lion>(0)},
      {"Lion with weight decay", with_decay<Lion>(0.1)},
      {"Muon", with_decay<Muon>(0.1)},
  };
  return all;
}

// Parameters after a few steps with changing rates, and a changing momentum if the optimizer can keep it in a tensor.
std::vector<Tensor> stepped(const Case& one, at::ScalarType dtype, bool keeps_rates, bool changes_momentum = false) {
  at::manual_seed(1);
  std::vector<Tensor> params{at::randn({37, 11}).to(dtype), at::randn({11, 37}).to(dtype), at::randn({53}).to(dtype)};
  const auto optimizer = one.make();
  optimizer->attach({{.name = "", .params = params, .names = {"wide", "tall", "bias"}}});
  auto& recordable = dynamic_cast<RecordableStep&>(*optimizer);
  changes_momentum = changes_momentum && recordable.can_keep_momentum_on_device();
  if (keeps_rates) optimizer->keep_rates_on_device();
  if (keeps_rates && changes_momentum) recordable.keep_momentum_on_device();
  for (int i = 0; i < 4; ++i) {
    for (Tensor& param : params) param.mutable_grad() = at::randn(param.sizes()).to(dtype);
    for (ParamGroup& group : optimizer->groups()) group.lr = 0.013 / (1 + i);
    if (changes_momentum) optimizer->set_momentum(0.95 - 0.03 * i);
    optimizer->step();
  }
  return params;
}

}  // namespace

TEST_CASE("on the CPU, steps whose rates are tensors have the bits of those whose rates are numbers") {
  for (const Case& one : cases())
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      CAPTURE(one.name, c10::toString(dtype));
      const auto optimizer = one.make();
      CHECK(optimizer->can_keep_rates_on_device());
      if (dtype == at::kBFloat16 && !dynamic_cast<const RecordableStep&>(*optimizer).keeps_bits_of_short_dtypes())
        continue;
      for (const bool changes_momentum : {false, true}) {
        const auto expected = stepped(one, dtype, false, changes_momentum);
        const auto found = stepped(one, dtype, true, changes_momentum);
        for (size_t i = 0; i < expected.size(); ++i) CHECK(expected[i].equal(found[i]));
      }
    }
}

}  // namespace device_rates_test
