#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sin.h>

#include <cmath>
#include <vector>

#include "fulgur/core/contracts/optimizer.h"

namespace fulgur::test {

/// Two linear layers fitted to targets that move with the step; twin of the one in make_baselines.py, which says why
/// they move as they do.
class BaselineProblem {
 public:
  explicit BaselineProblem(at::ScalarType dtype = at::kDouble) {
    x_ = table(8, 4, 1).to(dtype);
    y_ = table(8, 5, 2).to(dtype);
    w = table(4, 3, 3).to(dtype).requires_grad_();
    v = table(3, 5, 4).to(dtype).requires_grad_();
    b = table(1, 5, 5)[0].to(dtype).clone().requires_grad_();
  }
  Tensor w, v, b;
  bool slow = false;       ///< a slow target, for optimizers with a closure
  double disturbance = 0;  ///< relative, of each gradient: as other rounding would be

  Tensor set_gradients(int64_t step) {
    const at::NoGradGuard no_grad;
    const Tensor h = at::mm(x_, w);
    const auto t = static_cast<double>(step);
    const Tensor r = at::mm(h, v) + b - y_ * (slow ? std::cos(0.01 * t) : 0.5 + std::cos(2 * t));
    v.mutable_grad() = at::mm(h.t(), r) / 8;
    w.mutable_grad() = at::mm(x_.t(), at::mm(r, v.t())) / 8;
    b.mutable_grad() = r.mean(0);
    if (disturbance != 0)
      for (const Tensor& p : {w, v, b})
        p.mutable_grad() *= 1 + disturbance * at::sin(at::arange(p.numel(), p.options()) + t).view_as(p);
    return 0.5 * (r * r).sum() / 8;
  }
  std::vector<ParamGroup> groups() { return {{.name = "", .params = {w, v, b}, .names = {"w", "v", "b"}}}; }
  std::vector<double> weights() const {
    std::vector<double> all;
    for (const Tensor& p : {w, v, b}) {
      const Tensor flat = p.detach().to(at::kDouble).contiguous().view(-1);
      all.insert(all.end(), flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
    }
    return all;
  }
  void take(const BaselineProblem& other) {
    const at::NoGradGuard no_grad;
    w.copy_(other.w);
    v.copy_(other.v);
    b.copy_(other.b);
  }
  void step(Optimizer& optimizer, int64_t at) {
    if (optimizer.needs_closure()) {
      slow = true;
      optimizer.step_closure([&] { return set_gradients(at); });
    } else {
      set_gradients(at);
      optimizer.step();
    }
  }

 private:
  static Tensor table(int64_t rows, int64_t columns, int64_t seed) {
    Tensor out = at::empty({rows, columns}, at::kDouble);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        out.mutable_data_ptr<double>()[i * columns + j] = std::sin(static_cast<double>(seed + 3 * i + 7 * j));
    return out;
  }
  Tensor x_, y_;
};

}  // namespace fulgur::test
