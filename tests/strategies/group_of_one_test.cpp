// A group of one process: each backend does its exchanges, and they give back what came.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_all.hpp>

#include "distributed/process_group_impl.h"
#include "fulgur/strategies/process_group.h"
#include "support/gpu.h"

namespace group_of_one_test {

using namespace fulgur;

namespace {

void check_exchanges(const std::string& backend, at::Device device) {
  CAPTURE(backend);
  const auto group =
      ProcessGroup::connect({}, {.backend = backend, .device = device, .start_timeout_s = 60, .timeout_s = 30});
  const std::string gloo = "gloo over 127.0.0.1";
  CHECK(group->describe().starts_with(backend == "nccl" ? "gradients: nccl, " : gloo));
  CHECK(group->describe().find(gloo) != std::string::npos);
  Collectives& all = group->collectives();
  CHECK(all.rank() == 0);
  CHECK(all.world_size() == 1);
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong, at::kHalf}) {
    CAPTURE(type);
    const Tensor value = at::arange(1, 8, at::TensorOptions(device).dtype(type));
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min})
      CHECK(at::equal(all.all_reduce(value, op), value));
    CHECK(at::equal(all.broadcast(value, 0), value));
    const std::vector<Tensor> gathered = all.all_gather(value, false);
    REQUIRE(gathered.size() == 1);
    CHECK(at::equal(gathered[0], value));
    CHECK(gathered[0].device() == value.device());
    const Tensor rows = all.all_gather_same(value);
    CHECK(rows.sizes() == at::IntArrayRef({1, 7}));
    CHECK(at::equal(rows[0], value));
  }
  const Tensor learned = at::arange(3, at::TensorOptions(device).dtype(at::kFloat)).requires_grad_();
  (all.all_gather(learned, true)[0] * 2).sum().backward();
  CHECK((learned.grad().cpu().sum().item<double>() == 6));
  (all.all_gather_same(learned, true)[0] * 3).sum().backward();
  CHECK((learned.grad().cpu().sum().item<double>() == 15));
  all.check();
  // Small things go through the host, whatever the device.
  CHECK(all.any(true));
  CHECK_FALSE(all.any(false));
  CHECK(all.broadcast_text("hello", 0) == "hello");
  CHECK(all.gather_text("hello") == std::vector<std::string>{"hello"});
  all.barrier("the test's end");
}

/// How many exchanges Gloo begins while `work` runs.
template <class Work>
int64_t gloo_exchanges(ProcessGroup& group, Work work) {
  const auto before = group.impl().gloo.front()->getSequenceNumberForGroup();
  work();
  return static_cast<int64_t>(group.impl().gloo.front()->getSequenceNumberForGroup() - before);
}

}  // namespace

TEST_CASE("what is gathered with one shape on all ranks is exchanged once, except for the first time") {
  const auto group = ProcessGroup::connect({}, {.backend = "gloo", .start_timeout_s = 60, .timeout_s = 30});
  Collectives& all = group->collectives();
  const Tensor value = at::arange(6).reshape({2, 3});
  CHECK(gloo_exchanges(*group, [&] { all.all_gather(value); }) == 2);
  CHECK(gloo_exchanges(*group, [&] { all.all_gather_same(value); }) == 2);
  CHECK(gloo_exchanges(*group, [&] { all.all_gather_same(value); }) == 1);
  CHECK(gloo_exchanges(*group, [&] { all.all_gather_same(value.t()); }) == 2);
  CHECK(gloo_exchanges(*group, [&] { all.all_gather_same(value.to(at::kFloat)); }) == 2);
}

TEST_CASE("on a GPU, a gather over NCCL of a shape that is known exchanges nothing through the host", "[gpu]") {
  const Accelerator& cuda = test::require_gpus(1);
  const auto group =
      ProcessGroup::connect({}, {.backend = "nccl", .device = cuda.device(0), .start_timeout_s = 60, .timeout_s = 30});
  Collectives& all = group->collectives();
  const Tensor value = at::arange(6, at::TensorOptions(cuda.device(0)).dtype(at::kFloat)).requires_grad_();
  all.all_gather_same(value);
  CHECK(gloo_exchanges(*group, [&] { all.all_gather_same(value, true).sum().backward(); }) == 0);
}

TEST_CASE("NCCL that was not built in is named before any process is waited for") {
  // Nothing here loads libfulgur_cuda.so, unless there is a GPU.
  if (find_accelerator("cuda")) SKIP("libfulgur_cuda.so is loaded");
  const ProcessPlace nobody{
      .rank = 1, .world_size = 2, .local_rank = 1, .local_world_size = 2, .main_address = "127.0.0.1", .main_port = 1};
  CHECK_THROWS_WITH(
      ProcessGroup::connect(nobody, {.backend = "nccl", .device = at::Device(at::kCUDA, 0), .start_timeout_s = 5}),
      Catch::Matchers::ContainsSubstring("libfulgur_cuda.so was built without NCCL") &&
          Catch::Matchers::ContainsSubstring("process_group_backend: gloo"));
}

TEST_CASE("a group of one process exchanges with itself over Gloo") { check_exchanges("gloo", at::kCPU); }

TEST_CASE("on a GPU, a group of one process exchanges with itself over NCCL, and over Gloo through the host", "[gpu]") {
  const at::Device device = test::require_gpus(1).device(0);
  for (const char* backend : {"nccl", "gloo"}) check_exchanges(backend, device);
}

}  // namespace group_of_one_test
