#include "fulgur/checkpoint/checkpoint_parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <map>
#include <random>

#include "fault_calls.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "io/divided_tensors.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace checkpoint_parts_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

// The whole content, and what each rank has of it: the elements of the divided tensors, in a row, cut anywhere.
struct Divided {
  CheckpointContent whole;
  std::vector<CheckpointContent> ranks;
};

Tensor meta_of(const Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

Tensor in_memory(const Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

Divided divided(int64_t ranks, unsigned seed) {
  std::mt19937 random(seed);
  const NamedTensors tensors{{"conv.weight", at::randn({4, 3, 3, 2}).contiguous(at::MemoryFormat::ChannelsLast)},
                             {"linear.weight", at::randn({5, 7})},
                             {"linear.bias", at::randn({5}).to(at::kBFloat16)},
                             {"scale", at::randn({})},
                             {"nothing", at::randn({0, 3})}};
  Divided out;
  out.whole.module = {{"norm.running_mean", at::randn({3})}};
  out.whole.aliases = {{"head.weight", "linear.weight"}};
  StateTree::Map of_parameters;
  for (const auto& [name, tensor] : tensors) {
    out.whole.module.emplace_back(name, tensor);
    of_parameters[name] = StateTree::map({{"step", at::full({}, 3.0)}, {"exp_avg", at::randn_like(tensor)}});
  }
  out.whole.optimizers = StateTree::List{StateTree::map({{"class", "AdamW"}, {"state", of_parameters}})};
  out.whole.state["progress"] = StateTree::map({{"global_step", 12}, {"epoch", 3}});
  out.whole.state["rng"] = at::arange(5);
  out.whole.origin.world_size = ranks;
  out.ranks.assign(static_cast<size_t>(ranks), out.whole);
  for (CheckpointContent& rank : out.ranks) rank.module.resize(1);
  const auto divide = [&](const Tensor& tensor, const auto& place) {
    std::vector<int64_t> cuts{0, tensor.numel()};
    for (int64_t i = 1; i < ranks; ++i)
      cuts.push_back(static_cast<int64_t>(random() % static_cast<unsigned>(tensor.numel() + 1)));
    std::ranges::sort(cuts);
    for (size_t i = 0; i < out.ranks.size(); ++i) {
      const Tensor meta = meta_of(tensor);
      place(out.ranks[i]) = meta;
      out.ranks[i].parts.push_back(
          {.whole = meta, .begin = cuts[i], .values = in_memory(tensor).narrow(0, cuts[i], cuts[i + 1] - cuts[i])});
    }
  };
  for (const auto& [name, tensor] : tensors) {
    divide(tensor, [&](CheckpointContent& rank) -> Tensor& { return rank.module.emplace_back(name, Tensor()).second; });
    const StateTree& state = out.whole.optimizers.as_list()[0].at("state").at(name);
    std::vector<Tensor> metas;
    divide(state.at("exp_avg").tensor(), [&](CheckpointContent&) -> Tensor& { return metas.emplace_back(); });
    for (size_t i = 0; i < out.ranks.size(); ++i)
      out.ranks[i].optimizers.as_list()[0]["state"][name]["exp_avg"] = metas[i];
  }
  const Tensor copy = at::randn({5, 7});
  out.whole.state["precision"]["copies"]["linear.weight"] = copy;
  std::vector<Tensor> metas;
  divide(copy, [&](CheckpointContent&) -> Tensor& { return metas.emplace_back(); });
  for (size_t i = 0; i < out.ranks.size(); ++i) out.ranks[i].state["precision"]["copies"]["linear.weight"] = metas[i];
  return out;
}

fs::path write_all(const fs::path& folder, const Divided& content) {
  const fs::path temporary = begin_parts(folder);
  std::vector<std::string> descriptions;
  const auto ranks = static_cast<int64_t>(content.ranks.size());
  for (int64_t rank = 0; rank < ranks; ++rank)
    descriptions.push_back(write_parts(temporary, rank, ranks, content.ranks[static_cast<size_t>(rank)]));
  return commit_parts(temporary, folder, descriptions);
}

void check_same(const StateTree& a, const StateTree& b) {
  REQUIRE(a.type_name() == b.type_name());
  if (a.is_tensor()) {
    REQUIRE(a.tensor().scalar_type() == b.tensor().scalar_type());
    CHECK(a.tensor().equal(b.tensor()));
  } else if (a.is_map()) {
    REQUIRE(a.as_map().size() == b.as_map().size());
    for (const auto& [key, value] : a.as_map()) check_same(value, b.at(key));
  } else if (a.is_list()) {
    REQUIRE(a.as_list().size() == b.as_list().size());
    for (size_t i = 0; i < a.as_list().size(); ++i) check_same(a.as_list()[i], b.as_list()[i]);
  }
}

StateTree as_tree(const NamedTensors& tensors) {
  StateTree tree;
  for (const auto& [name, tensor] : tensors) tree[name] = tensor;
  return tree;
}

}  // namespace

TEST_CASE("parts of a checkpoint that ranks have written are read as whole tensors") {
  const at::NoGradGuard no_grad;
  TemporaryFolder folder;
  for (const int64_t ranks : {1, 2, 3, 8})
    for (unsigned seed = 0; seed < 5; ++seed) {
      CAPTURE(ranks, seed);
      const Divided content = divided(ranks, seed);
      const fs::path path = write_all(folder.path() / "all.ckpt", content);
      const CheckpointContent read = read_checkpoint(path);
      check_same(as_tree(read.module), as_tree(content.whole.module));
      check_same(read.optimizers, content.whole.optimizers);
      check_same(read.state, content.whole.state);
      CHECK(read.aliases == content.whole.aliases);
      CHECK(read.parts.empty());
      const CheckpointContent weights = read_checkpoint(path, CheckpointParts::weights_and_state, Verify::needed);
      check_same(as_tree(weights.module), as_tree(content.whole.module));
      CHECK(verify_checkpoint(path).ok());
      CHECK(summarize_checkpoint(path).global_step == 12);
    }
}

TEST_CASE("divided tensors of the state are read when they are needed") {
  const at::NoGradGuard no_grad;
  TemporaryFolder folder;
  const Divided content = divided(3, 6);
  const fs::path path = write_all(folder.path() / "all.ckpt", content);
  const Tensor expected = content.whole.state.at("precision").at("copies").at("linear.weight").tensor();
  for (const StateTree& state :
       {read_checkpoint(path, CheckpointParts::all, Verify::whole, ReadTensors::when_needed).state,
        read_checkpoint_state(path)}) {
    const Tensor found = state.at("precision").at("copies").at("linear.weight").tensor();
    CHECK(found.is_meta());
    CHECK(read_now(found).equal(expected));
    check_same(state.at("rng"), content.whole.state.at("rng"));
  }
  // Older programs do not know of them.
  CHECK_THAT(read_text(path / "manifest.json"), ContainsSubstring("\"format_version\": 3"));
  const fs::path part = path / "state-part-00002-of-00003.safetensors";
  fs::resize_file(part, fs::file_size(part) - 1);
  for (const ReadTensors when : {ReadTensors::at_once, ReadTensors::when_needed})
    CHECK_THAT(message_of<CheckpointError>([&] { read_checkpoint(path, CheckpointParts::all, Verify::whole, when); }),
               ContainsSubstring("state-part-00002-of-00003.safetensors"));
}

TEST_CASE("the parts of a tensor keep its order in memory") {
  const at::NoGradGuard no_grad;
  TemporaryFolder folder;
  const Divided content = divided(3, 1);
  const CheckpointContent read = read_checkpoint(write_all(folder.path() / "all.ckpt", content));
  for (const auto& [name, tensor] : read.module)
    for (const auto& [expected_name, expected] : content.whole.module)
      if (name == expected_name && tensor.numel() > 1) CHECK(tensor.strides() == expected.strides());
}

TEST_CASE("damage to a part of a checkpoint names the file and the tensor") {
  const at::NoGradGuard no_grad;
  TemporaryFolder folder;
  const fs::path path = write_all(folder.path() / "all.ckpt", divided(2, 1));
  const fs::path file = path / "model-part-00002-of-00002.safetensors";
  REQUIRE(fs::exists(file));
  SECTION("a changed byte") {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(-1, std::ios::end);
    const int last = stream.get();
    stream.seekp(-1, std::ios::end);
    stream.put(static_cast<char>(last ^ 1));
    stream.close();
    const std::string error = message_of<CheckpointError>([&] { read_checkpoint(path); });
    CHECK_THAT(error, ContainsSubstring("model-part-00002-of-00002.safetensors"));
    CHECK_THAT(error, ContainsSubstring("has changed since it was written"));
    CHECK_FALSE(verify_checkpoint(path).ok());
  }
  SECTION("a missing file") {
    fs::remove(file);
    CHECK_THAT(message_of<CheckpointError>([&] { read_checkpoint(path); }),
               ContainsSubstring("model-part-00002-of-00002.safetensors is missing"));
    CHECK(list_checkpoints(folder.path()).front().problem.has_value());
  }
  SECTION("damage to what an evaluation does not read") {
    const fs::path optimizer = path / "optimizer-part-00001-of-00002.safetensors";
    fs::resize_file(optimizer, fs::file_size(optimizer) - 1);
    CHECK_THAT(message_of<CheckpointError>([&] { read_checkpoint(path, CheckpointParts::weights_and_state); }),
               ContainsSubstring("--verify needed"));
    CHECK_NOTHROW(read_checkpoint(path, CheckpointParts::weights_and_state, Verify::needed));
  }
}

TEST_CASE("a checkpoint to which a rank has not contributed is not published") {
  const at::NoGradGuard no_grad;
  TemporaryFolder folder;
  const fs::path target = folder.path() / "all.ckpt";
  Divided content = divided(3, 2);
  const auto write = [&](const std::vector<int64_t>& ranks) {
    const fs::path temporary = begin_parts(target);
    std::vector<std::string> descriptions;
    for (const int64_t rank : ranks)
      descriptions.push_back(write_parts(temporary, rank, 3, content.ranks[static_cast<size_t>(rank)]));
    return message_of<CheckpointError>([&] { commit_parts(temporary, target, descriptions); });
  };
  SECTION("a rank is missing") { CHECK_THAT(write({0, 2}), ContainsSubstring("lacks the elements")); }
  SECTION("two ranks have the same part") {
    content.ranks[2] = content.ranks[1];
    CHECK_THAT(write({0, 1, 2}), ContainsSubstring("twice") || ContainsSubstring("lacks the elements"));
  }
  SECTION("a rank has another shape") {
    Tensor& meta = content.ranks[1].module.at(2).second;
    const Tensor other = meta_of(at::randn({7, 5}));
    for (TensorPart& part : content.ranks[1].parts)
      if (part.whole.is_same(meta)) part.whole = other;
    meta = other;
    CHECK_THAT(write({0, 1, 2}), ContainsSubstring("rank 1") && ContainsSubstring("another form"));
  }
  SECTION("a file is lost before the end") {
    const fs::path temporary = begin_parts(target);
    std::vector<std::string> descriptions;
    for (int64_t rank = 0; rank < 3; ++rank)
      descriptions.push_back(write_parts(temporary, rank, 3, content.ranks[static_cast<size_t>(rank)]));
    fs::remove(temporary / fulgur::detail::part_file("model.safetensors", 2, 3));
    CHECK_THAT(message_of<CheckpointError>([&] { commit_parts(temporary, target, descriptions); }),
               ContainsSubstring("all nodes share"));
  }
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a rank that does not see the folder says that nodes must share it") {
  TemporaryFolder folder;
  const Divided content = divided(2, 3);
  CHECK_THAT(message_of<CheckpointError>([&] { write_parts(folder.path() / "absent", 1, 2, content.ranks[1]); }),
             ContainsSubstring("rank 1") && ContainsSubstring("all nodes share"));
}

TEST_CASE("a process that is killed at any system call leaves the checkpoint complete or absent") {
  const at::NoGradGuard no_grad;
  TemporaryFolder folder;
  const fs::path target = folder.path() / "all.ckpt";
  const Divided content = divided(2, 4);
  bool survived = false;
  for (int64_t calls = 0; !survived && calls < 1000; ++calls) {
    const pid_t child = fork();
    if (child == 0) {
      int64_t left = calls;
      FaultCalls faults([&](std::string_view, const std::function<long()>& call) -> long {
        if (left-- == 0) kill(getpid(), SIGKILL);
        return call();
      });
      write_all(target, content);
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    survived = WIFEXITED(status);
    if (fs::exists(target)) {
      CAPTURE(calls);
      check_same(as_tree(read_checkpoint(target).module), as_tree(content.whole.module));
      remove_checkpoint(target);
    }
    remove_leftovers(folder.path());
    REQUIRE(fs::is_empty(folder.path()));
  }
  CHECK(survived);
}

TEST_CASE("manifests of divided tensors are checked before anything is read") {
  using fulgur::detail::DividedTensor;
  const std::map<std::string, fulgur::detail::FileRecord> files{
      {"model-part-00001-of-00002.safetensors", {.bytes = 16, .hash = 0, .parts = {{"w", 16, 0}}}},
      {"model-part-00002-of-00002.safetensors", {.bytes = 8, .hash = 0, .parts = {{"w", 8, 0}}}}};
  const std::string first = "model-part-00001-of-00002.safetensors", second = "model-part-00002-of-00002.safetensors";
  const auto error_of = [&](const DividedTensor& tensor) {
    return message_of<CheckpointError>([&] {
      fulgur::detail::check_divided({{"model.safetensors", {tensor}}}, files, /*complete=*/true);
    });
  };
  const DividedTensor good{
      .name = "w", .dtype = "F32", .shape = {2, 3}, .order = {}, .pieces = {{first, 0, 4}, {second, 4, 2}}};
  CHECK_NOTHROW(fulgur::detail::check_divided({{"model.safetensors", {good}}}, files, true));
  const auto changed = [&](const auto& change) {
    DividedTensor tensor = good;
    change(tensor);
    return error_of(tensor);
  };
  CHECK_THAT(changed([](auto& t) { t.dtype = "F99"; }), ContainsSubstring("unknown dtype"));
  CHECK_THAT(changed([](auto& t) { t.shape = {-2, -3}; }), ContainsSubstring("shape"));
  CHECK_THAT(changed([](auto& t) { t.shape = {1L << 62, 1L << 62}; }), ContainsSubstring("shape"));
  CHECK_THAT(changed([](auto& t) { t.order = {0, 0}; }), ContainsSubstring("order"));
  CHECK_THAT(changed([](auto& t) { t.pieces.pop_back(); }), ContainsSubstring("lacks the elements 4 to 5"));
  CHECK_THAT(changed([](auto& t) { std::swap(t.pieces[0], t.pieces[1]); }), ContainsSubstring("lacks"));
  CHECK_THAT(changed([](auto& t) { t.pieces[1].begin = 3; }), ContainsSubstring("has the element 3 twice"));
  CHECK_THAT(changed([](auto& t) { t.pieces[1].begin = INT64_MAX - 1; }), ContainsSubstring("outside"));
  CHECK_THAT(changed([](auto& t) { t.pieces[1].count = 1; }), ContainsSubstring("larger or smaller"));
  CHECK_THAT(changed([](auto& t) { t.pieces[1].count = 0; }), ContainsSubstring("outside"));
  CHECK_THAT(changed([](auto& t) { t.pieces[1].file = "../x"; }), ContainsSubstring("which has none"));
  CHECK_THAT(changed([](auto& t) { t.name = "v"; }), ContainsSubstring("not there"));
  CHECK_THAT(message_of<CheckpointError>([&] {
               fulgur::detail::check_divided({{"model.safetensors", {good, good}}}, files, true);
             }),
             ContainsSubstring("twice"));
  CHECK_FALSE(fulgur::detail::is_part_file("model-part-1-of-2.safetensors", "model.safetensors"));
  CHECK_FALSE(fulgur::detail::is_part_file("model-part-00001-of-0000/.safetensors", "model.safetensors"));
  CHECK_FALSE(fulgur::detail::is_part_file("optimizer-part-00001-of-00002.safetensors", "model.safetensors"));
}

}  // namespace checkpoint_parts_test
