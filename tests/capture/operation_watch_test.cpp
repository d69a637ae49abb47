#include "fulgur/capture/operation_watch.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <catch2/catch_test_macros.hpp>

#include <thread>

#include "fulgur/core/state/tensor.h"
#include "fulgur/core/text/errors.h"

namespace operation_watch_test {

using namespace fulgur;

TEST_CASE("a watch sees which operations read a tensor, in forward and in backward, while it is on") {
  const Tensor weight = torch::ones({3, 2}).requires_grad_(true), input = torch::ones({4, 2});
  int reads = 0;
  OperationWatch watch([&](at::TensorList tensors) {
    for (const Tensor& tensor : tensors) reads += tensor.is_alias_of(weight) ? 1 : 0;
  });
  const Tensor before = at::linear(input, weight);
  CHECK(reads == 0);

  watch.start();
  const Tensor loss = at::linear(input.detach().requires_grad_(true), weight).sum();
  const int in_forward = reads;
  CHECK(in_forward > 0);
  loss.backward();
  CHECK(reads > in_forward);  // the gradient of the input
  const int seen = reads;
  std::thread([&] { at::linear(input, weight); }).join();
  CHECK(reads == seen);
  watch.stop();
  at::linear(input, weight);
  CHECK(reads == seen);
  CHECK(before.equal(at::linear(input, weight)));
}

TEST_CASE("memory that a watch gives to a tensor is what the operation reads") {
  Tensor read = torch::zeros({2});
  const Tensor values = torch::full({2}, 3.0);
  OperationWatch watch([&](at::TensorList tensors) {
    for (const Tensor& tensor : tensors)
      if (tensor.is_same(read)) tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(values.storage());
  });
  watch.start();
  const Tensor sum = read.sum();
  watch.stop();
  CHECK(sum.item<float>() == 6);
}

TEST_CASE("a process has one watch at a time") {
  {
    const OperationWatch first([](at::TensorList) {});
    CHECK_THROWS_AS(OperationWatch([](at::TensorList) {}), Error);
  }
  CHECK_NOTHROW(OperationWatch([](at::TensorList) {}));
}

}  // namespace operation_watch_test
