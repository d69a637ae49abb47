// Devices that come after a backward of the process, as CUDA's do: its library is loaded when a run asks for it.
#include "trainer/boring.h"

#include <ATen/ops/ones.h>

#include <catch2/catch_test_macros.hpp>

#include "fulgur/virtual_devices/virtual_devices.h"
#include "support/gpu.h"

namespace late_devices_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

std::vector<Tensor> weights_of_fit(const std::string& accelerator) {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.accelerator = accelerator;
  at::manual_seed(1);
  const auto module = std::make_shared<SelfPlanned>();
  Trainer(options).fit(module, regression_data(40, 0));
  std::vector<Tensor> weights;
  for (const Tensor& parameter : module->parameters()) weights.push_back(parameter.detach().cpu());
  return weights;
}

void check_fits_in_turn(const std::string& first, const std::string& second) {
  const auto a = weights_of_fit(first), b = weights_of_fit(second), c = weights_of_fit(first);
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(at::allclose(a[i], b[i], 1e-4, 1e-6));
    CHECK(at::equal(a[i], c[i]));
  }
}

}  // namespace

TEST_CASE("a fit on the CPU, then one on virtual devices, in one process") { check_fits_in_turn("cpu", "virtual"); }

TEST_CASE("a backward and a fit on the CPU, then a fit on a GPU, in one process", "[gpu]") {
  // Nothing before it loads CUDA: no seed, and not require_gpus.
  at::ones({2}).requires_grad_().sum().backward();
  weights_of_fit("cpu");
  require_gpus(1);
  check_fits_in_turn("cpu", "cuda");
}

}  // namespace late_devices_test
