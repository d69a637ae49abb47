#include "fulgur/checkpoint/export_safetensors.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "divided_checkpoint.h"
#include "fulgur/checkpoint/weights_file.h"
#include "fulgur/checkpoint/weights_reader.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "support/expect_error.h"
#include "support/live_memory.h"
#include "support/temporary_folder.h"

namespace export_safetensors_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

TensorSource source_of(const fs::path& checkpoint) {
  const auto reader = std::make_shared<const WeightsReader>(checkpoint);
  return {.tensors = reader->tensors(),
          .read = [reader](size_t index) { return reader->read(index); },
          .aliases = reader->aliases()};
}

void check_same(const WeightsFile& weights) {
  REQUIRE(weights.tensors.size() == tensors().size());
  for (const auto& [name, tensor] : weights.tensors) {
    CAPTURE(name);
    CHECK(std::ranges::any_of(tensors(),
                              [&](const auto& other) { return other.first == name && other.second.equal(tensor); }));
  }
  CHECK(weights.aliases == std::map<std::string, std::string>{{"head", "large"}});
}

}  // namespace

TEST_CASE("weights leave a checkpoint as one file or as shards with an index, one tensor in memory at a time") {
  const at::NoGradGuard no_grad;
  const int64_t ranks = GENERATE(1, 3);
  CAPTURE(ranks);
  TemporaryFolder folder;
  const fs::path checkpoint = checkpoint_in(folder.path(), ranks);
  const LiveMemory memory;
  write_safetensors_from(folder / "w.safetensors", source_of(checkpoint));
  // The largest tensor, and its copy if it is not in rows.
  CHECK(memory.peak() <= 4 * 300 * 100 + 2 * 4 * 8 * 4 * 9);
  check_same(read_weights_file(folder / "w.safetensors"));
  for (const uint64_t most : {uint64_t{1}, uint64_t{9000}, uint64_t{125'000}, uint64_t{1} << 30}) {
    CAPTURE(most);
    const fs::path shards = folder / cat("shards", most);
    write_safetensors_shards(shards, source_of(checkpoint), most);
    check_same(read_weights_file(shards));
    const auto files = std::distance(fs::directory_iterator(shards), fs::directory_iterator());
    if (most > 1'000'000) {
      CHECK(files == 1);
      continue;
    }
    CHECK(files > 2);
    const auto index = nlohmann::json::parse(std::ifstream(shards / "model.safetensors.index.json"));
    CHECK(index["metadata"]["total_size"] == 4 * (64 * 33 + 8 * 4 * 9 + 1 + 300 * 100) + 8 * 7);
    for (const auto& [name, file] : index["weight_map"].items())
      CHECK((fs::file_size(shards / file.get<std::string>()) <= std::max<uint64_t>(most, 4 * 300 * 100) + 1000));
  }
}

TEST_CASE("an export replaces the files of an earlier one only, and only if it may") {
  const at::NoGradGuard no_grad;
  TemporaryFolder folder;
  const fs::path checkpoint = checkpoint_in(folder.path(), 2), shards = folder / "shards";
  write_safetensors_shards(shards, source_of(checkpoint), 9000);
  const auto again = [&](bool replace) { write_safetensors_shards(shards, source_of(checkpoint), 1 << 30, replace); };
  CHECK_THAT(message_of<CheckpointError>([&] { again(false); }), ContainsSubstring("--force"));
  again(true);
  CHECK(std::distance(fs::directory_iterator(shards), fs::directory_iterator()) == 1);
  check_same(read_weights_file(shards));
  std::ofstream(shards / "thesis.txt") << "years of work";
  CHECK_THAT(message_of<CheckpointError>([&] { again(true); }), ContainsSubstring("thesis.txt"));
  CHECK(fs::exists(shards / "thesis.txt"));
  for (const auto& entry : fs::directory_iterator(folder.path()))
    CHECK(entry.path().filename().string().front() != '.');
}

TEST_CASE("damage that is found while weights are read leaves no output") {
  const at::NoGradGuard no_grad;
  TemporaryFolder folder;
  const fs::path checkpoint = checkpoint_in(folder.path(), 2);
  const TensorSource source = source_of(checkpoint);
  const fs::path part = checkpoint / "model-part-00002-of-00002.safetensors";
  std::fstream stream(part, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-1, std::ios::end);
  stream.put('\x55');
  stream.close();
  const std::string error =
      message_of<CheckpointError>([&] { write_safetensors_from(folder / "w.safetensors", source); });
  CHECK_THAT(error, ContainsSubstring("model-part-00002-of-00002.safetensors: 'large' has changed"));
  CHECK_FALSE(fs::exists(folder / "w.safetensors"));
  std::ofstream(checkpoint / "optimizer.safetensors") << "x";
  CHECK_THAT(message_of<CheckpointError>([&] { WeightsReader{checkpoint}; }),
             ContainsSubstring("optimizer.safetensors"));
}

}  // namespace export_safetensors_test
