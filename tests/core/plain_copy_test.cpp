#include "fulgur/core/state/plain_copy.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <catch2/catch_test_macros.hpp>

#include "fulgur/core/state/outputs.h"

namespace plain_copy_test {

using namespace fulgur;
using fulgur::detail::clone_values;
using fulgur::detail::copy_values;
using fulgur::detail::is_plain_copy;

TEST_CASE("values are copied between tensors of any dtype and layout as copy_ does") {
  const Tensor square = at::randn({4, 4}), other = at::randn({4, 4});
  const auto check = [](const Tensor& to, const Tensor& from, bool plain) {
    Tensor expected = to.clone();
    expected.copy_(from);
    CHECK(is_plain_copy(to, from) == plain);
    const auto version = to._version();
    copy_values(to, from);
    CHECK(at::equal(to, expected));
    CHECK(to._version() == version + 1);
  };
  check(square.clone(), other, true);
  check(square.narrow(0, 1, 2), other.narrow(0, 2, 2), true);
  check(at::zeros({0, 3}), at::zeros({0, 3}), true);
  check(at::zeros({3}, at::kLong), at::arange(3), true);
  check(square.clone(), other.t(), false);
  check(square.t(), other, false);
  check(square.clone(), other[0], false);  // of several rows
  check(at::zeros({4, 4}, at::kDouble), other, false);
  check(square.clone(), other._neg_view(), false);
  check(square.clone(), at::_efficientzerotensor({4, 4}), false);  // without memory
  check(at::zeros({200, 200}), at::randn({200, 200}), false);      // by several threads
  Tensor whole = at::arange(8);
  check(whole.narrow(0, 0, 4), whole.narrow(0, 4, 4), false);  // one memory
}

TEST_CASE("values are cloned as clone does, and autograd sees no copy of values") {
  const Tensor x = at::randn({3, 5});
  for (const Tensor& each : {x, x.t(), x.to(at::kBFloat16), x._neg_view(), at::zeros({0})}) {
    const Tensor copy = clone_values(each);
    CHECK(at::equal(copy, each));
    CHECK(copy.strides() == each.strides());
    CHECK(copy.scalar_type() == each.scalar_type());
    CHECK(!copy.is_alias_of(each));
  }
  const Tensor parameter = at::randn({3, 5}).requires_grad_();
  CHECK(clone_values(parameter).requires_grad());  // like clone
  copy_values(parameter, x);
  CHECK(parameter.is_leaf());
  CHECK(at::equal(parameter, x));
  const c10::InferenceMode inference;
  const Tensor inside = at::zeros({3, 5});
  copy_values(inside, x);
  CHECK(at::equal(inside, x));
  CHECK(clone_values(x).is_inference());
}

TEST_CASE("detached outputs are other tensors with the same values") {
  const Tensor x = at::randn({2, 3}), learned = at::randn({3}).requires_grad_();
  const Outputs outputs{{"x", x}, {"twice", learned * 2}, {"none", Tensor()}};
  const Outputs detached = outputs.detach();
  CHECK_FALSE(detached["none"].defined());
  for (const char* name : {"x", "twice"}) {
    CHECK_FALSE(detached[name].requires_grad());
    CHECK(detached[name].is_alias_of(outputs[name]));
    CHECK_FALSE(detached[name].is_same(outputs[name]));
  }
  detached["x"].unsqueeze_(0).requires_grad_();
  CHECK(x.dim() == 2);
  CHECK_FALSE(x.requires_grad());
  x.fill_(3);
  CHECK(detached["x"].eq(3).all().item<bool>());
}

}  // namespace plain_copy_test
