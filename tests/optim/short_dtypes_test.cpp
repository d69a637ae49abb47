// Optimizers on parameters of bfloat16 and float16, against the same step in float32.
#include <ATen/ops/randn.h>

#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "fulgur/optim/adagrad.h"
#include "fulgur/optim/adam.h"
#include "fulgur/optim/lion.h"
#include "fulgur/optim/rmsprop.h"
#include "fulgur/optim/sgd.h"
#include "support/gpu.h"

namespace short_dtypes_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

// More elements than a vector register has, and some beyond the last whole one.
constexpr int64_t kElements = 514;

template <class Make>
void check_steps(const Make& make, at::Device device, std::vector<at::ScalarType> dtypes) {
  for (const at::ScalarType dtype : dtypes) {
    CAPTURE(c10::toString(dtype), device.str());
    at::manual_seed(1);
    const Tensor start = at::randn({kElements}).to(dtype), gradient = at::randn({kElements}).to(dtype);
    const auto stepped = [&](at::ScalarType of) {
      Tensor value = start.to(of).to(device).clone();
      const auto optimizer = make();
      optimizer->attach({{.name = "", .params = {value}, .names = {"value"}}});
      for (int i = 0; i < 2; ++i) {
        value.mutable_grad() = gradient.to(of).to(device);
        optimizer->step();
      }
      return value.cpu().to(at::kFloat);
    };
    const Tensor exact = stepped(at::kFloat), rounded = stepped(dtype);
    // Each step rounds once or twice; the step itself is a tenth.
    CHECK((exact - rounded).abs().max().template item<double>() < 0.1);
    CHECK((rounded - start.to(at::kFloat)).ne(0).sum().template item<int64_t>() > kElements * 9 / 10);
  }
}

void check_all(at::Device device) {
  const std::vector<at::ScalarType> both{at::kBFloat16, at::kHalf};
  check_steps([] { return std::make_shared<SGD>(SGD::Options{.lr = 0.1}); }, device, both);
  check_steps([] { return std::make_shared<SGD>(SGD::Options{.lr = 0.1, .momentum = 0.9}); }, device, both);
  check_steps([] { return std::make_shared<SGD>(SGD::Options{.lr = 0.1, .momentum = 0.9, .nesterov = true}); }, device,
              both);
  const auto with_rate = [&]<class O>(std::type_identity<O>) {
    check_steps(
        [] {
          typename O::Options options;
          options.lr = 0.1;
          return std::make_shared<O>(options);
        },
        device, {at::kBFloat16});  // float16 has no eps of 1e-8
  };
  with_rate(std::type_identity<AdamW>{});
  with_rate(std::type_identity<Adagrad>{});
  with_rate(std::type_identity<RMSprop>{});
  with_rate(std::type_identity<Lion>{});
}

}  // namespace

TEST_CASE("optimizers step every element of 16-bit dtypes") { check_all(at::kCPU); }

TEST_CASE("on a GPU, optimizers step every element of 16-bit dtypes", "[gpu]") {
  require_gpus(1);
  check_all(at::Device(at::kCUDA, 0));
}

}  // namespace short_dtypes_test
