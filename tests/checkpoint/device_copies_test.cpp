// Copies of tensors of a GPU for a checkpoint: what they hold, who waits for them, and what they take of pinned memory.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/checkpoint/async_writer.h"
#include "fulgur/core/state/late_number.h"
#include "fulgur/core/text/text.h"
#include "snapshot/tensor_snapshot.h"
#include "support/device_counts.h"
#include "support/gpu.h"
#include "support/temporary_folder.h"

namespace device_copies_test {

using namespace fulgur;
using namespace fulgur::test;
using fulgur::detail::TensorSnapshot;

namespace {

constexpr int64_t kLarge = 100'000;  // floats: too many to be put together

at::Device gpu() { return at::Device(at::kCUDA, 0); }

struct Example {
  CheckpointContent content;
  std::vector<Tensor> expected;
  Tensor late;
};

// Small and large ones, of several dtypes and layouts.
Example example(double value) {
  Example e;
  const auto add = [&](const std::string& name, const Tensor& on_cpu) {
    e.expected.push_back(on_cpu.clone());
    e.content.module.emplace_back(name, on_cpu.to(gpu()));
  };
  add("small", at::full({500}, value));
  add("scalar", at::full({}, value));
  add("half", at::full({3, 5}, value).to(at::kHalf));
  add("bool", at::full({7}, value > 1).to(at::kBool));
  add("int8", at::full({9}, 3).to(at::kChar));
  add("empty", at::full({0, 4}, value));
  add("large", at::arange(kLarge, at::kFloat) * value);
  add("long", at::arange(kLarge, at::kLong) + static_cast<int64_t>(value));
  add("late", at::arange(kLarge, at::kFloat) - value);
  e.late = e.content.module.back().second;
  // Views keep their values, not their strides.
  const Tensor wide = (at::arange(kLarge, at::kFloat).reshape({100, kLarge / 100}) * value).to(gpu());
  e.content.module.emplace_back("transposed", wide.t());
  e.expected.push_back(wide.t().cpu().clone());
  e.content.module.emplace_back("every other", wide.slice(1, 0, 900, 100));
  e.expected.push_back(wide.slice(1, 0, 900, 100).cpu().clone());
  StateTree::List steps;
  for (int64_t i = 0; i < 40; ++i) steps.push_back(at::full({}, value + static_cast<double>(i)).to(gpu()));
  e.content.optimizers = std::move(steps);
  e.content.state["number"] = late_number(at::full({}, value).to(gpu()));
  return e;
}

void change_all_but(const Tensor& late, CheckpointContent& content) {
  for (auto& [name, tensor] : content.module)
    if (!tensor.is_same(late)) tensor.zero_();
  for (auto& step : content.optimizers.as_list()) Tensor(step.tensor()).zero_();
  Tensor(content.state.at("number").as_map().begin()->second.tensor()).zero_();
}

void check(const CheckpointContent& copies, const Example& e, double value) {
  REQUIRE(copies.module.size() == e.expected.size());
  for (size_t i = 0; i < e.expected.size(); ++i) {
    CAPTURE(copies.module[i].first);
    CHECK(copies.module[i].second.is_contiguous());
    CHECK(copies.module[i].second.equal(e.expected[i].contiguous()));
  }
  for (size_t i = 0; i < 40; ++i)
    CHECK(copies.optimizers.as_list()[i].tensor().item<double>() == value + static_cast<double>(i));
  CHECK(copies.state.at("number").as_double() == value);
}

DeviceCounts counts() { return device_counts().value_or(DeviceCounts{}); }

}  // namespace

TEST_CASE("on a GPU, a snapshot holds what was there, whatever is written and freed afterwards", "[gpu]") {
  require_gpus(1);
  TensorSnapshot snapshot;
  const bool frees_at_once = GENERATE(false, true);
  for (const double value : {1.0, 5.0, 9.0}) {
    CAPTURE(frees_at_once, value);
    Example e = example(value);
    Tensor late = std::exchange(e.late, {});
    const CheckpointContent copies =
        snapshot.take(e.content, nullptr, [&](const Tensor& tensor) { return tensor.is_same(late); });
    if (!frees_at_once) {
      change_all_but(late, e.content);
      snapshot.before_writes();
      late.add_(1);
    }
    // Memory that is used again while copies are under way.
    e.content = {};
    late = Tensor();
    std::vector<Tensor> held;
    for (int64_t i = 0; i < 20; ++i) held.push_back(at::full({kLarge}, -7.0, at::TensorOptions().device(gpu())));
    for (int64_t i = 0; i < 200; ++i) held.push_back(at::full({i * 20}, -7.0, at::TensorOptions().device(gpu())));
    // The current stream's work is done before the copies are, except for what it has to wait for.
    CHECK(held.back()[0].item<float>() == -7);
    snapshot.finish();
    check(copies, e, value);
  }
}

TEST_CASE(
    "on a GPU, the current stream waits for a snapshot of late tensors before they may be written, and not earlier",
    "[gpu]") {
  require_gpus(1);
  if (!device_counts()) SKIP("needs counts of a simulated GPU");
  TensorSnapshot snapshot;
  CheckpointContent content;
  for (int64_t i = 0; i < 5; ++i) content.module.emplace_back(cat("w", i), at::randn({kLarge}).to(gpu()));
  for (int64_t i = 0; i < 50; ++i) content.module.emplace_back(cat("b", i), at::randn({30}).to(gpu()));
  const auto take = [&](bool late) {
    const DeviceCounts before = counts();
    snapshot.take(content, nullptr, [late](const Tensor&) { return late; });
    const DeviceCounts after = counts();
    CHECK(after.waits == before.waits);
    // Large ones, and the small ones together.
    CHECK(after.copies_to_host - before.copies_to_host == 6);
    CHECK(after.launches - before.launches <= 2);
    return after.stream_waits - before.stream_waits;
  };
  // The side stream waits for the current one; only if any tensor may be written at once does the current one wait,
  // too.
  CHECK(take(true) == 1);
  const int64_t before = counts().stream_waits;
  snapshot.before_writes();
  CHECK(counts().stream_waits - before == 1);
  snapshot.finish();
  const int64_t done = counts().stream_waits;
  snapshot.before_writes();
  CHECK(counts().stream_waits == done);
  CHECK(take(false) == 2);
  snapshot.finish();
}

TEST_CASE("on a GPU, a snapshot takes pinned memory in few pieces, once, and at most an eighth more than it needs",
          "[gpu]") {
  require_gpus(1);
  if (!device_counts()) SKIP("needs counts of a simulated GPU");
  TensorSnapshot snapshot;
  CheckpointContent content;
  for (int64_t i = 0; i < 60; ++i) content.module.emplace_back(cat("w", i), at::randn({kLarge + i}).to(gpu()));
  for (int64_t i = 0; i < 300; ++i) content.module.emplace_back(cat("b", i), at::randn({i}).to(gpu()));
  const auto allocations = [&](const CheckpointContent& what) {
    const int64_t before = counts().pinned_allocations;
    snapshot.take(what);
    snapshot.finish();
    return counts().pinned_allocations - before;
  };
  CHECK(allocations(content) <= 5);
  CheckpointContent weights = content;
  weights.module.resize(30);
  for (int64_t i = 0; i < 5; ++i) {
    CHECK(allocations(i == 1 ? weights : content) == 0);
    for (auto& [name, tensor] : content.module) tensor = at::randn(tensor.sizes()).to(gpu());
  }
}

TEST_CASE("slabs of pinned memory waste at most an eighth, and what four calls did not need is released", "[gpu]") {
  require_gpus(1);
  fulgur::detail::PinnedSlabs slabs;
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < 100; ++i) sizes.push_back(50'000 + 997 * i);
  int64_t wanted = 0;
  for (const int64_t size : sizes) wanted += size;
  std::map<const Tensor*, int64_t> held;
  std::map<const Tensor*, std::map<int64_t, int64_t>> taken;
  const auto places = slabs.place(sizes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    held[places[i].slab] = places[i].slab->numel();
    taken[places[i].slab][places[i].offset] = sizes[i];
  }
  int64_t total = 0;
  for (const auto& [slab, bytes] : held) total += bytes;
  CHECK(total <= wanted + wanted / 8 + 64 * 100 + 50'000 * static_cast<int64_t>(held.size()));
  for (const auto& [slab, parts] : taken) {
    int64_t end = 0;
    for (const auto& [offset, bytes] : parts) {
      CHECK(offset >= end);
      CHECK(offset % 64 == 0);
      end = offset + bytes;
    }
    CHECK(end <= slab->numel());
  }
  // The smallest place is in the last slab, which is the first to be given back.
  const Tensor last = *places.front().slab;
  const auto owners = last.use_count();
  const std::vector<int64_t> few{100};
  for (int i = 0; i < 3; ++i) slabs.place(few);
  CHECK(last.use_count() == owners);
  slabs.place(few);
  CHECK(last.use_count() < owners);
}

TEST_CASE("on a GPU, a number of the device is written as a number, read by the writer's thread", "[gpu]") {
  require_gpus(1);
  TemporaryFolder folder;
  CheckpointContent content;
  content.state["whole"] = late_number(at::full({}, 12, at::kInt).to(gpu()));
  content.state["real"] = late_number(at::full({1}, 0.25).to(gpu()));
  content.state["truth"] = late_number(at::full({}, true, at::kBool).to(gpu()));
  const auto sync = write_checkpoint(folder / "sync.ckpt", content);
  AsyncCheckpointWriter writer;
  writer.submit(folder / "async.ckpt", content);
  for (const char* name : {"whole", "real"}) Tensor(content.state.at(name).as_map().begin()->second.tensor()).zero_();
  const auto async = writer.wait().at(0).path;
  for (const auto& path : {sync, async}) {
    const StateTree state = read_checkpoint_state(path);
    CHECK(state.at("whole").holds<int64_t>());
    CHECK(state.at("whole").as_int() == 12);
    CHECK(state.at("real").holds<double>());
    CHECK(state.at("real").as_double() == 0.25);
    CHECK(state.at("truth").holds<bool>());
    CHECK(state.at("truth").as_bool());
    CHECK_FALSE(std::filesystem::exists(path / "state.safetensors"));
  }
}

}  // namespace device_copies_test
