// What strategies and precisions launch on GPUs, and on which streams.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "fulgur/optim/sgd.h"
#include "fulgur/strategies/dp.h"
#include "fulgur/strategies/master_weights.h"
#include "support/device_counts.h"
#include "support/gpu.h"

namespace device_work_test {

using namespace fulgur;
using namespace fulgur::test;

TEST_CASE("on a GPU, master weights get their gradients by one cast for all", "[gpu]") {
  require_gpus(1);
  const auto launches = [](int64_t tensors) {
    at::manual_seed(4);
    ParamGroup group;
    for (int64_t i = 0; i < tensors; ++i) {
      group.params.push_back(at::randn({3, 5}).to(at::Device(at::kCUDA, 0), at::kBFloat16).requires_grad_());
      group.names.push_back(std::string(1, static_cast<char>('a' + i)));
    }
    SGD sgd(SGD::Options{});
    sgd.attach({group});
    MasterWeights masters;
    masters.adopt(sgd);
    for (size_t i = 0; i + 1 < group.params.size(); ++i)
      group.params[i].mutable_grad() = at::full_like(group.params[i].detach(), 0.3 * static_cast<double>(i));
    const auto count = [] { return device_counts() ? device_counts()->launches : 0; };
    const int64_t before = count();
    masters.take_gradients(sgd);
    const int64_t of_gradients = count() - before;
    const std::vector<Tensor>& copies = sgd.groups()[0].params;
    for (size_t i = 0; i + 1 < group.params.size(); ++i)
      CHECK((copies[i].grad().cpu().equal(group.params[i].grad().cpu().to(at::kFloat))));
    CHECK_FALSE(copies.back().grad().defined());
    return of_gradients;
  };
  const int64_t few = launches(3);
  CHECK(launches(25) == few);
}

TEST_CASE("on GPUs, the threads of dp compute on the caller's current streams", "[gpu]") {
  require_gpus(2);
  const at::Device second(at::kCUDA, 1);
  StrategySetup setup;
  setup.devices = {at::Device(at::kCUDA, 0), second};
  DPStrategy dp;
  dp.configure(std::move(setup));
  const c10::impl::VirtualGuardImpl streams(at::kCUDA);
  const c10::Stream side = streams.getStreamFromGlobalPool(second);
  const c10::StreamGuard current(side);
  const Tensor x = at::zeros({1024}, at::TensorOptions().device(second));
  // Work of the caller that the thread's must wait for.
  for (int i = 0; i < 8; ++i) x.add_(1);
  Tensor sum;
  c10::Stream seen = streams.getDefaultStream(second);
  dp.run_parts(2, [&](size_t index) {
    if (index == 0) return;
    const at::NoGradGuard no_grad;
    seen = streams.getStream(second);
    sum = x.sum();
  });
  CHECK(seen == side);
  CHECK(sum.item<float>() == 8 * 1024);
}

TEST_CASE("on two GPUs, an operation on a list computes each tensor on the stream of its device", "[gpu]") {
  require_gpus(2);
  std::vector<Tensor> from, to;
  for (const int index : {0, 1, 0, 1}) {
    const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(index));
    from.push_back(at::full({64}, 1.5, at::device(device).dtype(at::kBFloat16)));
    to.push_back(at::zeros({64}, at::device(device)));
  }
  at::_foreach_copy_(to, from);
  at::_foreach_mul_(to, std::vector<at::Scalar>{1, 2, 3, 4});
  at::_foreach_add_(to, 0.5);
  for (size_t i = 0; i < to.size(); ++i) {
    CAPTURE(i);
    // Read on its own device's stream.
    CHECK(to[i].sum().item<double>() == 64 * (1.5 * static_cast<double>(i + 1) + 0.5));
  }
}

}  // namespace device_work_test
