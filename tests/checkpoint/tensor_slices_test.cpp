// Parts of tensors that are ranges along a dimension, as ranks that compute layers together have them.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <map>
#include <random>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/checkpoint_parts.h"
#include "fulgur/checkpoint/weights_reader.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/state/tensor_slice.h"
#include "fulgur/core/text/errors.h"
#include "io/divided_tensors.h"
#include "support/expect_error.h"
#include "support/live_memory.h"
#include "support/temporary_folder.h"

namespace tensor_slices_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

Tensor part_of(const Tensor& whole, const TensorSlice& slice) {
  std::vector<Tensor> pieces;
  for (const auto& [begin, count] : slice.ranges) pieces.push_back(whole.narrow(slice.dim, begin, count));
  return at::cat(pieces, slice.dim);
}

struct Named {
  std::string name;
  Tensor value;
  int64_t dim;
  std::vector<int64_t> parts;  // of the dimension, which ranks divide apart from each other
};

const std::vector<Named>& layers() {
  static const std::vector<Named> all{{"attention.weight", at::randn({24, 7}), 0, {8, 8, 8}},
                                      {"attention.bias", at::randn({24}).to(at::kBFloat16), 0, {16, 4, 4}},
                                      {"out.weight", at::randn({5, 12}), 1, {12}},
                                      {"tokens", at::randn({13, 3}), 0, {13}},
                                      {"conv", at::randn({3, 8, 2, 2}), 1, {4, 4}},
                                      {"large", at::randn({40, 4000}), 1, {4000}}};
  return all;
}

// What one of `ranks` has: an equal share of each part.
TensorSlice slice_of_rank(const Named& layer, int64_t rank, int64_t ranks) {
  TensorSlice slice{.dim = layer.dim};
  int64_t begin = 0;
  for (const int64_t size : layer.parts) {
    const int64_t most = (size + ranks - 1) / ranks, first = std::min(size, rank * most);
    if (const int64_t count = std::min(most, size - first); count > 0) slice.ranges.push_back({begin + first, count});
    begin += size;
  }
  return slice;
}

// `tensor` ranks have slices, each of which `shard` ranks divide anywhere.
fs::path written(const fs::path& folder, int64_t tensor, int64_t shard) {
  const at::NoGradGuard no_grad;
  std::mt19937 random(3);
  std::vector<CheckpointContent> ranks(static_cast<size_t>(tensor * shard));
  for (CheckpointContent& rank : ranks) {
    rank.module = {{"norm", at::arange(3)}};
    rank.optimizers = StateTree::List{};
    rank.state["progress"] = StateTree::map({{"global_step", 1}, {"epoch", 0}});
  }
  for (const Named& layer : layers())
    for (int64_t t = 0; t < tensor; ++t) {
      const TensorSlice slice = slice_of_rank(layer, t, tensor);
      const Tensor own = part_of(layer.value, slice).flatten();
      std::vector<int64_t> cuts{0, own.numel()};
      for (int64_t i = 1; i < shard; ++i)
        cuts.push_back(static_cast<int64_t>(random() % static_cast<unsigned>(own.numel() + 1)));
      std::ranges::sort(cuts);
      for (int64_t s = 0; s < shard; ++s) {
        CheckpointContent& rank = ranks[static_cast<size_t>(t * shard + s)];
        const Tensor whole = at::empty(layer.value.sizes(), layer.value.options().device(at::kMeta));
        set_slice(whole, slice);
        rank.module.emplace_back(layer.name, whole);
        const int64_t begin = cuts[static_cast<size_t>(s)], end = cuts[static_cast<size_t>(s) + 1];
        rank.parts.push_back({.whole = whole, .begin = begin, .values = own.narrow(0, begin, end - begin)});
      }
    }
  const fs::path temporary = begin_parts(folder / "a.ckpt");
  std::vector<std::string> descriptions;
  const auto count = static_cast<int64_t>(ranks.size());
  for (int64_t rank = 0; rank < count; ++rank)
    descriptions.push_back(write_parts(temporary, rank, count, ranks[static_cast<size_t>(rank)]));
  return commit_parts(temporary, folder / "a.ckpt", descriptions);
}

}  // namespace

TEST_CASE("slices: parts along a dimension, and parts of them, are read as whole tensors") {
  const int64_t tensor = GENERATE(1, 2, 4), shard = GENERATE(1, 3);
  CAPTURE(tensor, shard);
  const TemporaryFolder folder;
  const fs::path path = written(folder.path(), tensor, shard);
  const CheckpointContent at_once = read_checkpoint(path);
  const CheckpointContent later = read_checkpoint(path, CheckpointParts::all, Verify::whole, ReadTensors::when_needed);
  CHECK(verify_checkpoint(path).ok());
  REQUIRE(at_once.module.size() == layers().size() + 1);
  std::mt19937_64 random(7);
  for (const Named& layer : layers()) {
    CAPTURE(layer.name);
    const auto of = [&](const CheckpointContent& content) {
      return std::ranges::find(content.module, layer.name, &std::pair<std::string, Tensor>::first)->second;
    };
    CHECK(of(at_once).equal(layer.value));
    CHECK(read_now(of(later)).equal(layer.value));
    const Tensor elements = layer.value.flatten();
    for (int i = 0; i < 30; ++i) {
      const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(elements.numel() + 1));
      const auto count = static_cast<int64_t>(random() % static_cast<uint64_t>(elements.numel() - begin + 1));
      CAPTURE(begin, count);
      CHECK(stored_values(of(later))->read_range(begin, count).equal(elements.narrow(0, begin, count)));
    }
  }
}

TEST_CASE("slices: a tensor is read with the memory of itself, whatever the parts") {
  const TemporaryFolder folder;
  const fs::path path = written(folder.path(), 2, 1);
  const CheckpointContent content =
      read_checkpoint(path, CheckpointParts::all, Verify::whole, ReadTensors::when_needed);
  const LiveMemory memory;
  for (const auto& [name, tensor] : content.module) read_now(tensor);
  CHECK(memory.peak() < 40 * 4000 * 4 + 4096);
}

TEST_CASE("slices: format 3 is written only if there are some, and damage names the file and the tensor") {
  const TemporaryFolder folder;
  const fs::path path = written(folder.path(), 2, 1), file = path / "model-part-00002-of-00002.safetensors";
  std::ifstream manifest(path / "manifest.json");
  const std::string text{std::istreambuf_iterator<char>(manifest), {}};
  CHECK_THAT(text, ContainsSubstring("\"format_version\": 3"));
  CHECK_THAT(text, ContainsSubstring("[\"model-part-00001-of-00002.safetensors\",0,84,0,[[0,4],[8,4],[16,4]]]"));
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-1, std::ios::end);
  stream.put('\x7e');
  stream.close();
  const std::string error = message_of<CheckpointError>([&] { read_checkpoint(path); });
  CHECK_THAT(error, ContainsSubstring("model-part-00002-of-00002.safetensors"));
  CHECK_THAT(error, ContainsSubstring("has changed since it was written"));
}

TEST_CASE("slices: manifests are checked before anything is read") {
  using fulgur::detail::DividedTensor;
  using fulgur::detail::PieceSlice;
  const std::string first = "model-part-00001-of-00002.safetensors", second = "model-part-00002-of-00002.safetensors";
  const std::map<std::string, fulgur::detail::FileRecord> files{
      {first, {.bytes = 16, .hash = 0, .parts = {{"w", 16, 0}}}},
      {second, {.bytes = 8, .hash = 0, .parts = {{"w", 8, 0}}}}};
  const DividedTensor good{
      .name = "w",
      .dtype = "F32",
      .shape = {2, 3},
      .order = {},
      .pieces = {{first, 0, 4, PieceSlice{1, {{0, 1}, {2, 1}}}}, {second, 0, 2, PieceSlice{1, {{1, 1}}}}}};
  const auto check = [&](const DividedTensor& tensor) {
    fulgur::detail::check_divided({{"model.safetensors", {tensor}}}, files, /*complete=*/true);
  };
  CHECK_NOTHROW(check(good));
  const auto changed = [&](const auto& change) {
    DividedTensor tensor = good;
    change(tensor);
    return message_of<CheckpointError>([&] { check(tensor); });
  };
  const auto ranges = [](DividedTensor & tensor, size_t piece) -> auto& { return tensor.pieces[piece].slice->ranges; };
  CHECK_THAT(changed([](auto& t) { t.pieces[0].slice->dim = 2; }), ContainsSubstring("does not have"));
  CHECK_THAT(changed([](auto& t) { t.pieces[0].slice->dim = -1; }), ContainsSubstring("does not have"));
  CHECK_THAT(changed([&](auto& t) { ranges(t, 0).clear(); }), ContainsSubstring("without indices"));
  CHECK_THAT(changed([&](auto& t) { ranges(t, 0)[1].begin = INT64_MAX; }), ContainsSubstring("outside of it"));
  CHECK_THAT(changed([&](auto& t) { ranges(t, 0)[1].count = INT64_MAX; }), ContainsSubstring("outside of it"));
  CHECK_THAT(changed([&](auto& t) { ranges(t, 0)[1].begin = 0; }), ContainsSubstring("increasing order"));
  CHECK_THAT(changed([&](auto& t) { ranges(t, 1)[0].begin = -1; }), ContainsSubstring("outside of it"));
  CHECK_THAT(changed([&](auto& t) { ranges(t, 1)[0].begin = 2; }), ContainsSubstring("lacks the indices 1 to 1"));
  CHECK_THAT(changed([&](auto& t) { ranges(t, 1)[0].begin = 0; }),
             ContainsSubstring("has the index 0 of dimension 1 twice"));
  CHECK_THAT(changed([](auto& t) { t.pieces.pop_back(); }), ContainsSubstring("lacks the indices 1 to 1"));
  CHECK_THAT(changed([](auto& t) { t.pieces[1].slice.reset(); }), ContainsSubstring("parts of slices"));
  CHECK_THAT(changed([](auto& t) {
               t.pieces[1].slice = PieceSlice{0, {{1, 1}}};
             }),
             ContainsSubstring("lacks the elements 2 to 2") || ContainsSubstring("several dimensions"));
  CHECK_THAT(changed([](auto& t) { t.pieces[1].begin = 1; }), ContainsSubstring("outside"));
  CHECK_THAT(changed([](auto& t) { t.order = {1, 0}; }), ContainsSubstring("do not go together"));
  CHECK_THAT(changed([&](auto& t) { t.pieces[1].file = first; }),
             ContainsSubstring("larger or smaller") || ContainsSubstring("two pieces"));
}

}  // namespace tensor_slices_test
