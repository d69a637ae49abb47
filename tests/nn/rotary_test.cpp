#include "fulgur/nn/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "fulgur/core/text/errors.h"

namespace rotary_test {

using namespace fulgur;

TEST_CASE("rotary positions turn pairs of a head by angles that grow with the position") {
  at::manual_seed(1);
  const Tensor heads = at::randn({2, 3, 5, 8}, at::kDouble);
  const nn::Rotation rotation = nn::rotation_at(at::arange(5, at::kLong), 8, 100.0, at::kDouble);
  REQUIRE(rotation.cos.sizes() == at::IntArrayRef({5, 4}));
  const Tensor turned = nn::rotate(heads, rotation);
  for (int64_t t = 0; t < 5; ++t)
    for (int64_t i = 0; i < 4; ++i) {
      const double angle = static_cast<double>(t) * std::pow(100.0, -static_cast<double>(i) / 4);
      const Tensor x = heads.select(2, t).select(2, i), y = heads.select(2, t).select(2, i + 4);
      CHECK(at::allclose(turned.select(2, t).select(2, i), x * std::cos(angle) - y * std::sin(angle), 1e-12, 1e-12));
      CHECK(
          at::allclose(turned.select(2, t).select(2, i + 4), y * std::cos(angle) + x * std::sin(angle), 1e-12, 1e-12));
    }
}

TEST_CASE("scores of rotated queries and keys depend on the distance of their positions only") {
  at::manual_seed(2);
  const Tensor query = at::randn({1, 1, 1, 8}, at::kDouble), key = at::randn({1, 1, 1, 8}, at::kDouble);
  const auto score = [&](int64_t a, int64_t b) {
    const auto turned = [](const Tensor& x, int64_t position) {
      return nn::rotate(x, nn::rotation_at(at::tensor({position}, at::kLong), 8, 10000.0, at::kDouble));
    };
    return (turned(query, a) * turned(key, b)).sum().item<double>();
  };
  CHECK(std::abs(score(7, 3) - score(104, 100)) < 1e-12);
  CHECK(std::abs(score(7, 3) - score(7, 4)) > 1e-6);
}

TEST_CASE("each sample can have its own positions, and a narrow dtype is rotated in float32") {
  at::manual_seed(3);
  const Tensor heads = at::randn({2, 3, 4, 6});
  const Tensor positions = at::tensor({0, 1, 2, 3, 9, 10, 11, 12}, at::kLong).view({2, 4});
  const nn::Rotation rotation = nn::rotation_at(positions, 6, 10000.0, at::kFloat);
  CHECK(rotation.cos.scalar_type() == at::kFloat);
  const Tensor turned = nn::rotate(heads, rotation);
  for (int64_t i = 0; i < 2; ++i)
    CHECK(at::equal(turned[i],
                    nn::rotate(heads[i].unsqueeze(0), nn::rotation_at(positions[i], 6, 10000.0, at::kFloat))[0]));
  const Tensor half = heads.to(at::kBFloat16);
  const nn::Rotation of_half = nn::rotation_at(positions, 6, 10000.0, at::kBFloat16);
  CHECK(of_half.cos.scalar_type() == at::kFloat);
  CHECK(at::equal(nn::rotate(half, of_half), nn::rotate(half.to(at::kFloat), rotation).to(at::kBFloat16)));
  CHECK_THROWS_AS(nn::rotation_at(positions, 5, 10000.0, at::kFloat), Error);
}

}  // namespace rotary_test
