#include "fulgur/checkpoint/adapters.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fulgur/checkpoint/weights_file.h"
#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace adapters_file_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;
using test::TemporaryFolder;
using Json = nlohmann::json;

namespace {

AdapterRecord record_of_two() {
  AdapterRecord record;
  record.rank = 2;
  record.alpha = 8;
  record.dropout = 0.25;
  record.layers = {"a.x", "b"};
  record.trained = {"head.weight"};
  return record;
}

NamedTensors tensors_of_two() {
  at::manual_seed(6);
  NamedTensors tensors;
  for (const char* name : {"a.x", "b"}) {
    tensors.emplace_back(std::string(name) + ".weight", at::randn({3, 5}));
    tensors.emplace_back(std::string(name) + ".lora_A", at::randn({2, 5}));
    tensors.emplace_back(std::string(name) + ".lora_B", at::randn({3, 2}));
  }
  tensors.emplace_back("head.weight", at::randn({2, 2}));
  return tensors;
}

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

void write(const std::filesystem::path& path, const std::string& text) { std::ofstream(path) << text; }

}  // namespace

TEST_CASE("a record of adapters goes through the state of a checkpoint") {
  StateTree state;
  CHECK_FALSE(adapters_of(state));
  state[kAdaptersKey] = nullptr;
  CHECK_FALSE(adapters_of(state));
  state[kAdaptersKey] = record_of_two().state();
  const auto record = adapters_of(state);
  REQUIRE(record);
  CHECK(record->rank == 2);
  CHECK(record->alpha == 8);
  CHECK(record->dropout == 0.25);
  CHECK(record->layers == std::vector<std::string>{"a.x", "b"});
  CHECK(record->trained == std::vector<std::string>{"head.weight"});
}

TEST_CASE("merged adapters are in the weights, whose names are those of the plain module") {
  NamedTensors tensors = tensors_of_two();
  const NamedTensors before = tensors;
  merge_adapters(tensors, record_of_two());
  CHECK(names_of(tensors) == std::vector<std::string>{"a.x.weight", "b.weight", "head.weight"});
  CHECK(tensors[0].second.allclose(before[0].second.add(at::mm(before[2].second, before[1].second), 4), 1e-6, 1e-6));
  CHECK(tensors[1].second.allclose(before[3].second.add(at::mm(before[5].second, before[4].second), 4), 1e-6, 1e-6));
  CHECK(tensors[2].second.equal(before[6].second));
  NamedTensors half;
  for (const auto& [name, tensor] : before) half.emplace_back(name, tensor.to(at::kBFloat16));
  merge_adapters(half, record_of_two());
  CHECK(half[0].second.scalar_type() == at::kBFloat16);
  NamedTensors damaged = before;
  damaged.erase(damaged.begin() + 5);
  CHECK_THAT(message_of<CheckpointError>([&] { merge_adapters(damaged, record_of_two()); }),
             ContainsSubstring("'b.lora_B'"));
}

TEST_CASE("adapters are written with PEFT's names, and read back") {
  const TemporaryFolder folder;
  const NamedTensors tensors = tensors_of_two();
  write_adapters(folder / "out", tensors, record_of_two());
  auto written = names_of(read_weights_file(folder / "out/adapter_model.safetensors").tensors);
  std::sort(written.begin(), written.end());
  CHECK(written == std::vector<std::string>{"base_model.model.a.x.lora_A.weight", "base_model.model.a.x.lora_B.weight",
                                            "base_model.model.b.lora_A.weight", "base_model.model.b.lora_B.weight",
                                            "base_model.model.head.weight"});
  std::ifstream file(folder / "out/adapter_config.json");
  const Json config = Json::parse(file);
  CHECK(config["peft_type"] == "LORA");
  CHECK(config["r"] == 2);
  CHECK(config["lora_alpha"] == 8.0);
  CHECK(config["lora_dropout"] == 0.25);
  CHECK((config["target_modules"] == Json::array({"a.x", "b"})));
  CHECK((config["modules_to_save"] == Json::array({"head"})));
  for (const char* name : {"out", "out/adapter_model.safetensors"}) {
    const AdaptersFile read = read_adapters(folder / name);
    CHECK(read.rank == 2);
    CHECK(read.alpha == 8.0);
    REQUIRE(read.tensors.size() == 5);
    for (const auto& [of_file, tensor] : read.tensors)
      for (const auto& [of_module, expected] : tensors)
        if (of_file == of_module) CHECK(tensor.equal(expected));
    auto names = names_of(read.tensors);
    std::sort(names.begin(), names.end());
    CHECK(names == std::vector<std::string>{"a.x.lora_A", "a.x.lora_B", "b.lora_A", "b.lora_B", "head.weight"});
  }
  CHECK_THAT(message_of<CheckpointError>([&] { write_adapters(folder / "out", tensors, record_of_two()); }),
             ContainsSubstring("exists already"));
  write_adapters(folder / "out", tensors, record_of_two(), /*replace=*/true);
}

TEST_CASE("adapters of another form are refused, and a file alone says nothing about rank and alpha") {
  const TemporaryFolder folder;
  write_adapters(folder / "out", tensors_of_two(), record_of_two());
  const auto refusal = [&](const std::string& config) {
    write(folder / "out/adapter_config.json", config);
    return message_of<CheckpointError>([&] { read_adapters(folder / "out"); });
  };
  CHECK_THAT(refusal(R"({"r": 2, "lora_alpha": 8, "use_dora": true})"), ContainsSubstring("use_dora"));
  CHECK_THAT(refusal(R"({"r": 2, "lora_alpha": 8, "use_rslora": true})"), ContainsSubstring("use_rslora"));
  CHECK_THAT(refusal(R"({"r": 2, "lora_alpha": 8, "rank_pattern": {"b": 4}})"), ContainsSubstring("rank_pattern"));
  CHECK_THAT(refusal(R"({"r": 2})"), ContainsSubstring("lora_alpha"));
  CHECK_THAT(refusal("{"), ContainsSubstring("JSON object"));
  write(folder / "out/adapter_config.json",
        R"({"r": 2, "lora_alpha": 16, "use_dora": false, "rank_pattern": {}, "alpha_pattern": null})");
  CHECK(read_adapters(folder / "out").alpha == 16.0);
  std::filesystem::remove(folder / "out/adapter_config.json");
  CHECK_FALSE(read_adapters(folder / "out").rank);
  const auto unread = [&](const std::filesystem::path& path) {
    return message_of<CheckpointError>([&] { read_adapters(path); });
  };
  CHECK_THAT(unread(folder / "absent"), ContainsSubstring("must exist") && !ContainsSubstring("hub"));
  CHECK_THAT(unread("someone/no-such-adapters"), ContainsSubstring("hub are not downloaded"));
  std::filesystem::create_directories(folder / "whole");
  CHECK_THAT(unread(folder / "whole"),
             ContainsSubstring("must have adapter_model.safetensors") && ContainsSubstring("--only_adapters"));
  write(folder / "whole/config.json", "{}");
  CHECK_THAT(unread(folder / "whole"), ContainsSubstring("name it in pretrained.path"));
}

}  // namespace adapters_file_test
