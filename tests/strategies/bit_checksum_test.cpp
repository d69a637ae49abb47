// The checksum that finds what something else has written to weights whose optimizer steps in host memory.
#include "sharding/bit_checksum.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace bit_checksum_test {

using fulgur::Tensor;

namespace {

int64_t checksum_of(const Tensor& values) {
  fulgur::detail::BitChecksum checksum;
  return checksum.of(values).item<int64_t>();
}

}  // namespace

TEST_CASE("checksum of weights: other values, and the same ones in another order, are found") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  // The second is longer than what is summed at once.
  const int64_t count = GENERATE(64, (int64_t{1} << 21) + 64);
  const Tensor values = at::randn({count}).to(dtype);
  const int64_t before = checksum_of(values);
  CHECK(checksum_of(values.clone()) == before);
  const auto changed = [&](const auto& change) {
    const Tensor other = values.clone();
    change(other);
    REQUIRE_FALSE(other.equal(values));
    return checksum_of(other) != before;
  };
  const auto swap = [&](int64_t a, int64_t b) {
    return [=](const Tensor& other) {
      const Tensor kept = other.select(0, a).clone();
      other.select(0, a).copy_(other.select(0, b));
      other.select(0, b).copy_(kept);
    };
  };
  CHECK(changed(swap(0, 1)));
  CHECK(changed(swap(3, count - 2)));
  CHECK(changed(swap(5, count / 2 + 5)));
  CHECK(changed([&](const Tensor& other) { other.copy_(values.flip(0)); }));
  CHECK(changed([&](const Tensor& other) { other.copy_(values.roll(2)); }));
  // Whole blocks of what is summed at once.
  CHECK(changed([&](const Tensor& other) { other.copy_(values.roll(count / 2)); }));
  CHECK(changed([&](const Tensor& other) { other.copy_(values.index_select(0, at::randperm(count))); }));
  CHECK(changed([](const Tensor& other) { other.mul_(2); }));
  CHECK(changed([](const Tensor& other) { other.mul_(0.25); }));
  CHECK(changed([](const Tensor& other) { other.neg_(); }));
  CHECK(changed([](const Tensor& other) { other.zero_(); }));
  CHECK(changed([](const Tensor& other) { other.narrow(0, 8, 2).neg_(); }));
  CHECK(changed([](const Tensor& other) { other.add_(0.5); }));
}

TEST_CASE("checksum of weights: each bit counts, also the sign of zero") {
  const Tensor values = at::randn({64});
  const int64_t before = checksum_of(values);
  for (const int64_t place : {0, 31, 63})
    for (int64_t bit = 0; bit < 32; ++bit) {
      const Tensor other = values.clone();
      const Tensor word = other.view(at::kInt).select(0, place);
      word.bitwise_xor_(static_cast<int64_t>(static_cast<int32_t>(uint32_t{1} << bit)));
      CAPTURE(place, bit);
      CHECK(checksum_of(other) != before);
    }
}

TEST_CASE("checksum of weights: of counting numbers, no swap of two is missed") {
  const Tensor values = at::arange(32, at::kFloat);
  const int64_t before = checksum_of(values);
  for (int64_t a = 0; a < 32; ++a)
    for (int64_t b = 0; b < a; ++b) {
      const Tensor other = values.clone();
      other.select(0, a).fill_(static_cast<double>(b));
      other.select(0, b).fill_(static_cast<double>(a));
      CAPTURE(a, b);
      CHECK(checksum_of(other) != before);
    }
}

}  // namespace bit_checksum_test
