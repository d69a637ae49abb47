#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/data/tensor_dataset.h"
#include "support/expect_error.h"

namespace tensor_dataset_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {
TensorDataset make_dataset() {
  return TensorDataset(
      Batch({Batch::Entry{"pixels", at::arange(60, at::kByte).view({10, 2, 3})},
             Batch::Entry{"label", at::arange(10, at::kLong)}, Batch::Entry{"weight", at::arange(10, at::kFloat)}}));
}
}  // namespace

TEST_CASE("a tensor dataset reads rows in any order and keeps dtypes") {
  const TensorDataset dataset = make_dataset();
  REQUIRE(dataset.size() == 10);
  Batch out({Batch::Entry{"pixels", at::zeros({5, 2, 3}, at::kByte)}, Batch::Entry{"label", at::zeros({5}, at::kLong)},
             Batch::Entry{"weight", at::zeros({5}, at::kFloat)}});
  dataset.read(std::vector<int64_t>{7, 0, 7}, 1, out, {});
  const Tensor zero = at::zeros({2, 3}, at::kByte), all = dataset.samples()[0];
  CHECK(at::equal(out[0], at::stack({zero, all[7], all[0], all[7], zero})));
  CHECK(at::equal(out["label"], at::tensor({0, 7, 0, 7, 0}, at::kLong)));
  CHECK(at::equal(out["weight"], at::tensor({0.f, 7.f, 0.f, 7.f, 0.f})));
}

TEST_CASE("ranges of a tensor dataset are views") {
  const TensorDataset dataset = make_dataset();
  const auto view = dataset.view(3, 4);
  REQUIRE(view.has_value());
  CHECK(view->size() == 4);
  CHECK((*view)[0].const_data_ptr() == dataset.samples()[0][3].const_data_ptr());
  CHECK(at::equal((*view)["label"], at::arange(3, 7, at::kLong)));
}

TEST_CASE("the prototype has the names, dtypes and shapes of one sample") {
  const Batch prototype = make_dataset().prototype();
  CHECK(prototype.size() == 1);
  CHECK(prototype["pixels"].sizes() == at::IntArrayRef({1, 2, 3}));
  CHECK(prototype["pixels"].scalar_type() == at::kByte);
  CHECK(prototype["label"].scalar_type() == at::kLong);
}

TEST_CASE("strided tensors are accepted as well") {
  const TensorDataset dataset(Batch({at::arange(6, at::kFloat).view({2, 3}).t()}));
  Batch out({at::empty({1, 2})});
  dataset.read(std::vector<int64_t>{2}, 0, out, {});
  CHECK(at::equal(out[0], at::tensor({2.f, 5.f}).view({1, 2})));
}

TEST_CASE("an entry may have no values: its rows are there, and the others are read") {
  const TensorDataset dataset(
      Batch({Batch::Entry{"none", at::zeros({4, 0})}, Batch::Entry{"label", at::arange(4, at::kLong)}}));
  Batch out({Batch::Entry{"none", at::zeros({2, 0})}, Batch::Entry{"label", at::zeros({2}, at::kLong)}});
  dataset.read(std::vector<int64_t>{3, 1}, 0, out, {});
  CHECK(out["none"].sizes() == at::IntArrayRef({2, 0}));
  CHECK(at::equal(out["label"], at::tensor({3, 1}, at::kLong)));
}

TEST_CASE("a tensor dataset refuses what does not belong together") {
  CHECK_THAT(message_of<DataError>([] {
               TensorDataset(Batch({Batch::Entry{"x", at::zeros({3})}, Batch::Entry{"y", at::zeros({4})}}));
             }),
             ContainsSubstring("'x' has 3") && ContainsSubstring("'y' has 4"));
  CHECK_THROWS_AS(TensorDataset(Batch()), DataError);
  CHECK_THROWS_AS(TensorDataset(Batch({at::zeros({})})), DataError);
}

TEST_CASE("a tensor dataset names an index out of range") {
  const TensorDataset dataset = make_dataset();
  Batch out = dataset.prototype();
  CHECK_THAT(message_of<DataError>([&] { dataset.read(std::vector<int64_t>{10}, 0, out, {}); }),
             ContainsSubstring("[0, 10); got 10"));
  CHECK_THROWS_AS(dataset.read(std::vector<int64_t>{-1}, 0, out, {}), DataError);
  CHECK_THROWS_AS(dataset.view(8, 3), DataError);
  CHECK_THROWS_AS(dataset.view(-1, 3), DataError);
}

TEST_CASE("a tensor dataset does not write beyond the batch or into another dtype") {
  const TensorDataset dataset = make_dataset();
  Batch small = dataset.prototype();
  CHECK_THROWS_AS(dataset.read(std::vector<int64_t>{1, 2}, 0, small, {}), Error);
  Batch other = dataset.prototype();
  other.set(0, at::zeros({1, 2, 3}, at::kFloat));
  CHECK_THROWS_AS(dataset.read(std::vector<int64_t>{1}, 0, other, {}), Error);
}

}  // namespace tensor_dataset_test
