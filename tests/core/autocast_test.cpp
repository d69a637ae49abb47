#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include <catch2/catch_test_macros.hpp>

#include "fulgur/core/device/autocast.h"
#include "fulgur/core/state/tensor.h"

namespace autocast_test {

using namespace fulgur;
namespace autocast = at::autocast;

TEST_CASE("Autocast computes in its dtype while it lives, nests, and restores the previous state") {
  const Tensor x = at::randn({2, 4}), w = at::randn({3, 4}).set_requires_grad(true);
  const auto format = [&] { return at::linear(x, w).scalar_type(); };
  const auto dtype_before = autocast::get_autocast_dtype(at::kCPU);
  {
    const Autocast outer(at::kCPU, at::kHalf);
    CHECK(format() == at::kHalf);
    {
      const Autocast inner(at::kCPU, at::kBFloat16);
      CHECK(format() == at::kBFloat16);
      const Autocast off(at::kCPU, at::kBFloat16, /*enabled=*/false);
      CHECK(format() == at::kFloat);
    }
    CHECK(format() == at::kHalf);
  }
  CHECK(format() == at::kFloat);
  CHECK(autocast::get_autocast_dtype(at::kCPU) == dtype_before);
  CHECK_FALSE(autocast::is_autocast_enabled(at::kCPU));
}

TEST_CASE(
    "a weight gets its gradient after a no-grad or inference region inside autocast, whose copies of it have no "
    "graph") {
  const auto gradient_behind = [](auto guard_type) {
    const Tensor x = at::randn({2, 4}), w = at::randn({3, 4}).set_requires_grad(true);
    const Autocast region(at::kCPU, at::kBFloat16);
    {
      const typename decltype(guard_type)::type guard;
      at::linear(x, w);
    }
    at::linear(x, w).sum().backward();
    return w.grad().defined();
  };
  struct Plain {
    using type = at::NoGradGuard;
  };
  struct Inference {
    using type = c10::InferenceMode;
  };
  CHECK(gradient_behind(Plain{}));
  CHECK(gradient_behind(Inference{}));
}

}  // namespace autocast_test
