// Checkpoints whose tensors are read when they are needed: the same values, and memory of one tensor.
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <random>

#include "divided_checkpoint.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/state/stored_values.h"
#include "support/live_memory.h"
#include "support/temporary_folder.h"

namespace stored_tensors_test {

using namespace fulgur;
using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

CheckpointContent opened(const fs::path& checkpoint, Verify verify = Verify::whole) {
  return read_checkpoint(checkpoint, CheckpointParts::all, verify, ReadTensors::when_needed);
}

// A module with the tensors of the checkpoint as buffers, all zero.
struct Holder : torch::nn::Module {
  Holder() {
    for (const auto& [name, tensor] : tensors()) register_buffer(name, at::zeros_like(tensor));
  }
};

// Changes one byte in the middle of the file.
void damage(const fs::path& file) {
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekg(static_cast<std::streamoff>(fs::file_size(file) / 2));
  const char old = static_cast<char>(bytes.get());
  bytes.seekp(static_cast<std::streamoff>(fs::file_size(file) / 2));
  bytes.put(static_cast<char>(old ^ 1));
}

}  // namespace

TEST_CASE("stored tensors: what stands for a tensor has its shape, strides and type, and reads its values") {
  const int64_t ranks = GENERATE(1, 3);
  const TemporaryFolder folder;
  const CheckpointContent content = opened(checkpoint_in(folder.path(), ranks));
  const CheckpointContent now = read_checkpoint(folder.path() / "a.ckpt");
  CHECK(content.aliases == now.aliases);
  CHECK(content.origin == now.origin);
  REQUIRE(content.module.size() == now.module.size());
  for (size_t i = 0; i < now.module.size(); ++i) {
    const auto& [name, tensor] = content.module[i];
    const Tensor& expected = now.module[i].second;
    CAPTURE(name);
    CHECK(name == now.module[i].first);
    CHECK(tensor.is_meta());
    CHECK(tensor.sizes() == expected.sizes());
    CHECK(tensor.strides() == expected.strides());
    CHECK(tensor.scalar_type() == expected.scalar_type());
    const Tensor read = read_now(tensor);
    CHECK(read.equal(expected));
    CHECK(read.strides() == expected.strides());
  }
  const StateTree optimizers = read_now(content.optimizers);
  CHECK(optimizers.as_list()[0].at("momentum").tensor().equal(now.optimizers.as_list()[0].at("momentum").tensor()));
  // Tensors that have values stay what they are.
  const Tensor own = at::zeros({2});
  CHECK(read_now(own).is_same(own));
  CHECK(!stored_values(at::zeros({2}, at::kMeta)));
}

TEST_CASE("stored tensors: any range of any tensor, also one that begins and ends inside of parts") {
  const int64_t ranks = GENERATE(1, 3, 7);
  const TemporaryFolder folder;
  const CheckpointContent content = opened(checkpoint_in(folder.path(), ranks));
  std::mt19937_64 random(7);
  for (const auto& [name, tensor] : content.module) {
    const Tensor whole = read_now(tensor);
    const Tensor elements = whole.as_strided({whole.numel()}, {1});
    for (int i = 0; i < 50; ++i) {
      const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(whole.numel() + 1));
      const auto count = static_cast<int64_t>(random() % static_cast<uint64_t>(whole.numel() - begin + 1));
      CAPTURE(name, begin, count);
      CHECK(stored_values(tensor)->read_range(begin, count).equal(elements.narrow(0, begin, count)));
    }
  }
}

TEST_CASE("stored tensors: a module is loaded with the memory of one tensor") {
  const int64_t ranks = GENERATE(1, 3);
  const TemporaryFolder folder;
  const fs::path checkpoint = checkpoint_in(folder.path(), ranks);
  Holder holder;
  const LiveMemory memory;
  const CheckpointContent content = opened(checkpoint);
  load_module_state(holder, content.module);
  // The largest, of 300 × 100 elements; and the smallest ones, which need a cache line each.
  CHECK(memory.peak() < 300 * 100 * 4 + 4096);
  for (const auto& [name, tensor] : tensors()) CHECK(holder.named_buffers()[name].equal(tensor));
}

TEST_CASE("stored tensors: damage is found before anything is loaded, or where it is read, and named") {
  const int64_t ranks = GENERATE(1, 3);
  const TemporaryFolder folder;
  const fs::path checkpoint = checkpoint_in(folder.path(), ranks);
  const std::string file = ranks == 1 ? "model.safetensors" : "model-part-00002-of-00003.safetensors";
  const CheckpointContent before = opened(checkpoint);
  damage(checkpoint / file);
  CHECK_THROWS_WITH(opened(checkpoint), Catch::Matchers::ContainsSubstring(file));
  const auto read_all = [](const CheckpointContent& content) {
    for (const auto& [name, tensor] : content.module) read_now(tensor);
  };
  // The hash is compared again: the file may change after it was verified.
  CHECK_THROWS_WITH(read_all(before), Catch::Matchers::ContainsSubstring(file));
  CHECK_THROWS_WITH(read_all(opened(checkpoint, Verify::needed)), Catch::Matchers::ContainsSubstring(file));
}

}  // namespace stored_tensors_test
