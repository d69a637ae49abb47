// A group of one process: each backend does its exchanges, and they give back what came.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include <catch2/catch_test_macros.hpp>

#include "fulgur/strategies/process_group.h"
#include "support/gpu.h"

using namespace fulgur;

namespace {

void check_exchanges(const std::string& backend, at::Device device) {
  CAPTURE(backend);
  const auto group = ProcessGroup::connect({}, {.backend = backend, .device = device, .start_timeout_s = 60, .timeout_s = 30});
  CHECK(group->text().starts_with(backend + " over 127.0.0.1"));
  Collectives& all = group->collectives();
  CHECK(all.rank() == 0);
  CHECK(all.world_size() == 1);
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong, at::kHalf}) {
    CAPTURE(type);
    const Tensor value = at::arange(1, 8, at::TensorOptions(device).dtype(type));
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) CHECK(at::equal(all.all_reduce(value, op), value));
    CHECK(at::equal(all.broadcast(value, 0), value));
    const std::vector<Tensor> gathered = all.all_gather(value, false);
    REQUIRE(gathered.size() == 1);
    CHECK(at::equal(gathered[0], value));
    CHECK(gathered[0].device() == value.device());
  }
  const Tensor learned = at::arange(3, at::TensorOptions(device).dtype(at::kFloat)).requires_grad_();
  (all.all_gather(learned, true)[0] * 2).sum().backward();
  CHECK((learned.grad().cpu().sum().item<double>() == 6));
  // Small things go through the host, whatever the device.
  CHECK(all.any(true));
  CHECK_FALSE(all.any(false));
  CHECK(all.broadcast_text("hello", 0) == "hello");
  CHECK(all.gather_text("hello") == std::vector<std::string>{"hello"});
  all.barrier("the test's end");
}

}  // namespace

TEST_CASE("a group of one process exchanges with itself over Gloo") { check_exchanges("gloo", at::kCPU); }

TEST_CASE("on a GPU, a group of one process exchanges with itself over NCCL, and over Gloo through the host", "[gpu]") {
  const at::Device device = test::require_gpus(1).device(0);
  for (const char* backend : {"nccl", "gloo"}) check_exchanges(backend, device);
}
