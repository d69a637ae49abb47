#include "slow_networks/orthonormal.h"

#include <ATen/ops/eye.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <catch2/catch_test_macros.hpp>

namespace orthonormal_test {

using at::Tensor;
using fulgur::detail::make_orthonormal;

namespace {

double distance_to_orthonormal(const Tensor& matrix) {
  return (matrix.t().mm(matrix) - at::eye(matrix.size(1))).abs().max().item<double>();
}

}  // namespace

TEST_CASE("columns become orthonormal and span what they spanned") {
  const Tensor spare = at::randn({50, 4});
  for (const double scale : {1.0, 1e-25, 1e15}) {
    const Tensor before = at::randn({50, 4}) * scale;
    Tensor after = before.clone();
    make_orthonormal(after, spare);
    CHECK(distance_to_orthonormal(after) < 1e-5);
    CHECK((after.mm(after.t().mm(before)) - before).abs().max().item<double>() < 1e-5 * scale);
  }
}

TEST_CASE("columns of zeros, or that depend on others, are replaced") {
  const Tensor spare = at::randn({30, 3});
  Tensor zeros = at::zeros({30, 3});
  make_orthonormal(zeros, spare);
  CHECK(distance_to_orthonormal(zeros) < 1e-5);
  Tensor twice = at::randn({30, 1}).repeat({1, 3});
  make_orthonormal(twice, spare);
  CHECK(distance_to_orthonormal(twice) < 1e-5);
}

TEST_CASE("a column that is not finite stays so") {
  const Tensor spare = at::randn({30, 2});
  Tensor matrix = at::randn({30, 2});
  matrix[3][0] = std::numeric_limits<float>::quiet_NaN();
  make_orthonormal(matrix, spare);
  CHECK(matrix.isnan().any().item<bool>());
}

}  // namespace orthonormal_test
