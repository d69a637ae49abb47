#pragma once

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>

#include <vector>

#include "fulgur/core/contracts/optimizer.h"

namespace fulgur::test {

/// Two parameters and their gradients, both made from seeds.
struct Regression {
  Tensor w, b;
  explicit Regression(uint64_t seed = 5) {
    at::manual_seed(seed);
    w = at::randn({7, 3}).requires_grad_();
    b = at::randn({3}).requires_grad_();
  }
  void set_gradients(int64_t step) {
    at::manual_seed(100 + static_cast<uint64_t>(step));
    w.mutable_grad() = at::randn({7, 3});
    b.mutable_grad() = at::randn({3});
  }
  void take(const Regression& other) {
    const at::NoGradGuard no_grad;
    w.copy_(other.w);
    b.copy_(other.b);
  }
  std::vector<ParamGroup> groups() { return {ParamGroup{.name = "", .params = {w, b}, .names = {"w", "b"}}}; }
};

}  // namespace fulgur::test
