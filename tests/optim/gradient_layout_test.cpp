// Gradients whose strides are not those of their parameters.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/randn.h>

#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "fulgur/optim/adam.h"
#include "fulgur/optim/sgd.h"
#include "support/device_counts.h"
#include "support/gpu.h"

namespace gradient_layout_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

struct Shape {
  std::vector<int64_t> sizes, strides;  // of the gradient
};

struct Outcome {
  std::vector<Tensor> weights;
  int64_t work = 0;  // kernels and copies of a step
};

int64_t work_so_far() {
  const auto counts = device_counts();
  return counts ? counts->launches + counts->copies_on_device : 0;
}

template <class O>
Outcome train(at::Device device, const std::vector<Shape>& shapes, bool strided) {
  at::manual_seed(8);
  ParamGroup group;
  std::vector<std::vector<Tensor>> gradients(3);
  for (const Shape& shape : shapes) {
    group.params.push_back(at::randn(shape.sizes).to(device).requires_grad_());
    group.names.push_back(std::string(1, static_cast<char>('a' + group.names.size())));
    for (auto& step : gradients) {
      const Tensor value = at::randn(shape.sizes).to(device);
      step.push_back(strided ? at::empty_strided(shape.sizes, shape.strides, value.options()).copy_(value) : value);
    }
  }
  O optimizer(typename O::Options{});
  optimizer.attach({group});
  Outcome outcome;
  for (const auto& step : gradients) {
    for (size_t i = 0; i < step.size(); ++i) group.params[i].mutable_grad() = step[i];
    const int64_t before = work_so_far();
    optimizer.step();
    outcome.work = work_so_far() - before;
  }
  for (const Tensor& weight : group.params) outcome.weights.push_back(weight.detach().cpu());
  return outcome;
}

// Of convolutions in channels_last: kernels of 1 × 1, one channel, one filter.
const std::vector<Shape> kSameOrder{
    {{8, 4, 1, 1}, {4, 1, 4, 4}}, {{6, 1, 3, 3}, {9, 1, 3, 1}}, {{1, 5, 1, 1}, {77, 1, 9, 5}}, {{1}, {3}}};
const std::vector<Shape> kOtherOrder{{{8, 4, 3, 3}, {36, 1, 12, 4}}, {{4, 5}, {1, 4}}};

template <class O>
void check(at::Device device) {
  for (const auto& shapes : {kSameOrder, kOtherOrder}) {
    const bool copies = shapes.size() == kOtherOrder.size();
    const Outcome plain = train<O>(device, shapes, false), strided = train<O>(device, shapes, true);
    for (size_t i = 0; i < shapes.size(); ++i) {
      CAPTURE(i, copies);
      CHECK(plain.weights[i].equal(strided.weights[i]));
    }
    if (device.is_cuda() && device_counts())
      CHECK(strided.work - plain.work == (copies ? static_cast<int64_t>(shapes.size()) : 0));
  }
}

}  // namespace

TEST_CASE("gradients with other strides are read as what they are") {
  check<AdamW>(at::kCPU);
  check<SGD>(at::kCPU);
}

TEST_CASE("on a GPU, a gradient is copied only if its elements are in another order than the parameter's", "[gpu]") {
  require_gpus(1);
  check<AdamW>(at::Device(at::kCUDA, 0));
  check<SGD>(at::Device(at::kCUDA, 0));
}

}  // namespace gradient_layout_test
