// A sharded checkpoint of 1,024 ranks, written and read by one process: its plan, its manifest, and all tensors.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <chrono>

#include "fulgur/checkpoint/checkpoint_parts.h"
#include "fulgur/core/text/text.h"
#include "support/temporary_folder.h"

namespace thousand_parts_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

constexpr int64_t kLayers = 24, kLayerSize = 4096;

/// Layers one after another in memory, as fsdp has them, of which each rank has as many elements in a row.
CheckpointContent part_of(int64_t rank, int64_t ranks) {
  CheckpointContent content;
  content.optimizers = nullptr;
  content.origin.world_size = ranks;
  content.state["progress"] = StateTree::map({{"global_step", 12}, {"epoch", 3}});
  const int64_t all = kLayers * kLayerSize, first = all * rank / ranks, last = all * (rank + 1) / ranks;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const Tensor meta =
        at::empty_strided({64, kLayerSize / 64}, {kLayerSize / 64, 1}, at::TensorOptions().device(at::kMeta));
    content.module.emplace_back(cat("layers.", layer, ".weight"), meta);
    const int64_t begin = std::max(first, layer * kLayerSize), end = std::min(last, (layer + 1) * kLayerSize);
    if (begin >= end) continue;
    content.parts.push_back({.whole = meta,
                             .begin = begin - layer * kLayerSize,
                             .values = at::arange(begin, end, at::TensorOptions().dtype(at::kFloat))});
  }
  return content;
}

struct Written {
  std::filesystem::path path;
  std::vector<size_t> descriptions;  ///< bytes that each rank sends to rank 0
};

Written write_all(const std::filesystem::path& folder, int64_t ranks) {
  const std::filesystem::path temporary = begin_parts(folder);
  std::vector<std::string> descriptions;
  for (int64_t rank = 0; rank < ranks; ++rank)
    descriptions.push_back(write_parts(temporary, rank, ranks, part_of(rank, ranks)));
  Written written;
  for (const std::string& one : descriptions) written.descriptions.push_back(one.size());
  written.path = commit_parts(temporary, folder, descriptions);
  return written;
}

}  // namespace

TEST_CASE("a checkpoint that 1,024 ranks write in parts is planned, checked and published in seconds, and read whole") {
  const at::NoGradGuard no_grad;
  const TemporaryFolder folder;
  const Written few = write_all(folder / "few.ckpt", 8);
  const auto begin = std::chrono::steady_clock::now();
  const Written many = write_all(folder / "many.ckpt", 1024);
  const CheckpointContent read = read_checkpoint(many.path);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
  CHECK(read.origin.world_size == 1024);
  REQUIRE(read.module.size() == kLayers);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const auto& [name, tensor] = read.module[static_cast<size_t>(layer)];
    CAPTURE(name);
    CHECK(tensor.flatten().equal(
        at::arange(layer * kLayerSize, (layer + 1) * kLayerSize, at::TensorOptions().dtype(at::kFloat))));
  }
  CHECK(verify_checkpoint(many.path).ok());
  // A rank describes its own pieces alone, which are fewer if there are more ranks; rank 0 describes all tensors.
  const auto largest = [](const Written& written) {
    return *std::max_element(written.descriptions.begin() + 1, written.descriptions.end());
  };
  CHECK(largest(many) <= largest(few));
  CHECK(largest(many) < 4096);
  CHECK(many.descriptions.front() <= few.descriptions.front());
}

}  // namespace thousand_parts_test
