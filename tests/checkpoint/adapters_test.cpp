#include "fulgur/checkpoint/adapters.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "checkpoint/fault_calls.h"
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

namespace {

const char* const kMeasuredCalls[] = {"open", "write", "pwrite", "mkdir", "rename", "fsync"};

/// Writes adapters while call number `fail_at` fails; returns whether there were so many calls.
bool write_with_fault(int fail_at, const std::filesystem::path& out, const NamedTensors& tensors,
                      const AdapterRecord& record) {
  int calls = 0;
  const test::FaultCalls faults([&](std::string_view name, const std::function<long()>& call) -> long {
    if (std::find(std::begin(kMeasuredCalls), std::end(kMeasuredCalls), name) == std::end(kMeasuredCalls))
      return call();
    if (calls++ != fail_at) return call();
    errno = EIO;
    return -1;
  });
  try {
    write_adapters(out, tensors, record, /*replace=*/true);
  } catch (const CheckpointError&) {
  }
  return calls > fail_at;
}

std::vector<std::string> files_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("adapters are complete or absent, whichever call fails") {
  const NamedTensors tensors = tensors_of_two();
  int fail_at = 0;
  bool failed = true;
  for (; failed && fail_at < 200; ++fail_at) {
    CAPTURE(fail_at);
    const TemporaryFolder folder;
    failed = write_with_fault(fail_at, folder / "out", tensors, record_of_two());
    const std::vector<std::string> left = files_in(folder.path());
    const bool is_there = left == std::vector<std::string>{"out"};
    CHECK((is_there || left.empty()));
    CHECK((is_there || failed));
    if (is_there)
      CHECK(files_in(folder / "out") == std::vector<std::string>{"adapter_config.json", "adapter_model.safetensors"});
  }
  CHECK(fail_at > 5);
  CHECK(fail_at < 200);
}

TEST_CASE("weights of replaced adapters never have the config of others, whichever call fails") {
  const NamedTensors old_tensors = tensors_of_two();
  NamedTensors new_tensors;
  for (const auto& [name, tensor] : old_tensors) new_tensors.emplace_back(name, tensor.add(1));
  AdapterRecord new_record = record_of_two();
  new_record.alpha = 16;
  bool failed = true;
  int fail_at = 0;
  for (; failed && fail_at < 200; ++fail_at) {
    CAPTURE(fail_at);
    const TemporaryFolder folder;
    write_adapters(folder / "out", old_tensors, record_of_two());
    write(folder / "out/README.md", "mine");
    failed = write_with_fault(fail_at, folder / "out", new_tensors, new_record);
    const std::vector<std::string> left = files_in(folder / "out");
    CHECK(left.front() == "README.md");
    for (const std::string& name : left) CHECK_FALSE(name.starts_with("."));
    if (!std::filesystem::exists(folder / "out/adapter_model.safetensors")) {
      CHECK(failed);
      continue;
    }
    const AdaptersFile read = read_adapters(folder / "out");
    const auto a = std::find_if(read.tensors.begin(), read.tensors.end(),
                                [](const auto& item) { return item.first == "a.x.lora_A"; });
    REQUIRE(a != read.tensors.end());
    CHECK(a->second.equal(read.alpha == 16.0 ? new_tensors[1].second : old_tensors[1].second));
    if (!failed) CHECK(read.alpha == 16.0);
  }
  CHECK(fail_at > 5);
  CHECK(fail_at < 200);
}

TEST_CASE("biases and parts of modules are written as PEFT names them, and read back") {
  const TemporaryFolder folder;
  NamedTensors tensors = tensors_of_two();
  for (const char* name : {"b.bias", "head.bias", "norm.weight", "norm.bias", "other.head.weight"})
    tensors.emplace_back(name, at::randn({2}));
  AdapterRecord record = record_of_two();
  const auto written = [&](std::vector<std::string> trained) {
    record.trained = std::move(trained);
    write_adapters(folder / "out", tensors, record, /*replace=*/true);
    std::ifstream file(folder / "out/adapter_config.json");
    auto names = names_of(read_adapters(folder / "out").tensors);
    std::sort(names.begin(), names.end());
    auto expected = record.trained;
    for (const char* name : {"a.x.lora_A", "a.x.lora_B", "b.lora_A", "b.lora_B"}) expected.emplace_back(name);
    std::sort(expected.begin(), expected.end());
    CHECK(names == expected);
    return Json::parse(file);
  };
  const auto has = [&](const std::string& name) {
    const auto names = names_of(read_weights_file(folder / "out/adapter_model.safetensors").tensors);
    return std::find(names.begin(), names.end(), "base_model.model." + name) != names.end();
  };
  // A layer with an adapter is the base_layer of PEFT's.
  Json config = written({"b.bias"});
  CHECK(has("b.base_layer.bias"));
  CHECK(config["bias"] == "lora_only");
  CHECK(config["modules_to_save"].is_null());
  // PEFT copies whole modules, and finds them by the ends of names: head would be other.head, too.
  config = written({"b.bias", "norm.bias", "head.weight", "head.bias"});
  CHECK(has("norm.bias"));
  CHECK(has("head.weight"));
  CHECK(config["bias"] == "all");
  CHECK(config["modules_to_save"].is_null());
  config = written({"norm.weight", "norm.bias"});
  CHECK(config["bias"] == "none");
  CHECK((config["modules_to_save"] == Json::array({"norm"})));
}

TEST_CASE("what PEFT writes twice is read once") {
  const TemporaryFolder folder;
  const std::string start = "base_model.model.";
  WeightsFile weights;
  weights.format = WeightsFormat::safetensors;
  for (const char* name : {"b.lora_A.weight", "b.lora_B.weight", "b.base_layer.bias", "head.bias",
                           "head.modules_to_save.bias", "head.original_module.bias"})
    weights.tensors.emplace_back(start + name, at::randn({2, 2}));
  write_weights_file(folder / "adapter_model.safetensors", weights);
  auto names = names_of(read_adapters(folder.path()).tensors);
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"b.bias", "b.lora_A", "b.lora_B", "head.bias"});
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
  CHECK_THAT(refusal(R"({"r": 2, "lora_alpha": 8, "alora_invocation_tokens": [1]})"),
             ContainsSubstring("alora_invocation_tokens"));
  CHECK_THAT(refusal(R"({"r": 2, "lora_alpha": 8, "peft_type": "LOHA"})"),
             ContainsSubstring("must have the peft_type \"LORA\"; it is \"LOHA\""));
  for (const std::string start : {"pissa", "pissa_niter_4", "olora", "loftq"})
    CHECK_THAT(refusal(R"({"r": 2, "lora_alpha": 8, "init_lora_weights": ")" + start + "\"}"),
               ContainsSubstring("init_lora_weights: \"" + start + "\""));
  for (const std::string start : {"true", "false", "\"gaussian\""}) {
    write(folder / "out/adapter_config.json",
          R"({"peft_type": "LORA", "r": 2, "lora_alpha": 8, "init_lora_weights": )" + start + "}");
    CHECK(read_adapters(folder / "out").rank == 2);
  }
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
