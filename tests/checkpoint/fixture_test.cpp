// Checkpoints of each released format, written once by the program of that time and kept as they are.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "io/hash.h"

namespace fixture_test {

using namespace fulgur;
using fulgur::detail::hash_of;
using fulgur::detail::hash_text;
namespace fs = std::filesystem;

namespace {

fs::path fixture(const char* name) { return fs::path(__FILE__).parent_path() / "fixtures" / name; }

CheckpointContent content_of_v1() {
  CheckpointContent c;
  for (const at::ScalarType dtype : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf,
                                     at::kBFloat16, at::kFloat, at::kDouble})
    c.module.emplace_back(std::string("layer.") + c10::toString(dtype), at::arange(6).reshape({2, 3}).to(dtype));
  c.module.emplace_back("scalar", at::full({}, 0.1, at::kDouble));
  c.module.emplace_back("empty", at::full({0, 4}, 0.0, at::kFloat));
  c.aliases = {{"tied.weight", "layer.Float"}};
  c.optimizers = StateTree::List{StateTree::map(
      {{"class", "Adam"}, {"lr", 1e-3}, {"step", 1000}, {"exp_avg", at::full({2, 3}, 0.25, at::kFloat)}})};
  c.state["progress"] = StateTree::map({{"global_step", 1000}, {"epoch", 3}});
  c.state["rng"] = at::arange(16).to(at::kByte);
  c.state["numbers"] = StateTree::List{-5,
                                       UINT64_MAX,
                                       0.1,
                                       1.0,
                                       -0.0,
                                       std::numeric_limits<double>::infinity(),
                                       std::numeric_limits<double>::quiet_NaN(),
                                       true,
                                       nullptr};
  c.state["words"] = StateTree::map({{"__float__", "nan"}});
  c.state["text"] = "ü\n\"";
  c.origin = {.config_hash = "0123456789abcdef",
              .world_size = 2,
              .device = "cpu",
              .threads = 1,
              .deterministic = true,
              .save_counter = 4,
              .fulgur = "0.1.0",
              .libtorch = "2.11.0"};
  return c;
}

std::string hash_of_tensor(const Tensor& tensor) {
  return hash_text(hash_of({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()}));
}

std::map<std::string, std::string> hashes_of(const CheckpointContent& c) {
  std::map<std::string, std::string> hashes;
  for (const auto& [name, tensor] : c.module) hashes.emplace(name, hash_of_tensor(tensor));
  hashes.emplace("optimizer", hash_of_tensor(c.optimizers.as_list()[0].at("exp_avg").tensor()));
  hashes.emplace("rng", hash_of_tensor(c.state.at("rng").tensor()));
  return hashes;
}

}  // namespace

TEST_CASE("F15 a checkpoint of format 1 loads, equal to what was recorded of it") {
  const fs::path path = fixture("v1/epoch=3-step=1000.ckpt");
  REQUIRE(verify_checkpoint(path).describe().empty());
  const CheckpointContent c = read_checkpoint(path);
  const std::map<std::string, std::string> recorded{
      {"empty", "2d06800538d394c2"},       {"layer.BFloat16", "4b7d1e38a5a789c3"}, {"layer.Bool", "fbb3d6b52b949ddd"},
      {"layer.Byte", "a6584d1d9a6ae704"},  {"layer.Char", "a6584d1d9a6ae704"},     {"layer.Double", "a80113a10db8b763"},
      {"layer.Float", "dcd21c42ccaa9d2a"}, {"layer.Half", "c28d8a54e5cc669a"},     {"layer.Int", "5932abeb2d2d5854"},
      {"layer.Long", "3940f46318223a2f"},  {"layer.Short", "5b8941c9810ed71e"},    {"optimizer", "50677d2f6f3c35c1"},
      {"rng", "8355e3a6f61770db"},         {"scalar", "c9d73e6076fe03cd"}};
  CHECK(hashes_of(c) == recorded);
  const CheckpointContent expected = content_of_v1();
  REQUIRE(c.module.size() == expected.module.size());
  for (size_t i = 0; i < c.module.size(); ++i) {
    CHECK(c.module[i].first == expected.module[i].first);
    CHECK(c.module[i].second.scalar_type() == expected.module[i].second.scalar_type());
    CHECK(c.module[i].second.equal(expected.module[i].second));
  }
  CHECK(c.aliases == expected.aliases);
  CHECK(c.origin == expected.origin);
  CHECK(c.optimizers.as_list()[0].at("lr").as_double() == 1e-3);
  const auto& numbers = c.state.at("numbers").as_list();
  CHECK(numbers[0].as_int() == -5);
  CHECK(numbers[1].as_uint() == UINT64_MAX);
  CHECK(numbers[2].as_double() == 0.1);
  CHECK(numbers[3].holds<double>());
  CHECK(std::signbit(numbers[4].as_double()));
  CHECK(std::isinf(numbers[5].as_double()));
  CHECK(std::isnan(numbers[6].as_double()));
  CHECK(numbers[7].as_bool());
  CHECK(numbers[8].is_null());
  CHECK(c.state.at("words").at("__float__").as_string() == "nan");
  CHECK(c.state.at("text").as_string() == "ü\n\"");
  const CheckpointSummary summary = summarize_checkpoint(path);
  CHECK(summary.global_step == 1000);
  CHECK(summary.epoch == 3);
}

// How the fixture was made: FULGUR_FIXTURE=FOLDER test_checkpoint '[write-fixture]'. It is not made again.
TEST_CASE("writes a checkpoint like the fixture of the newest format", "[.][write-fixture]") {
  const char* folder = std::getenv("FULGUR_FIXTURE");
  REQUIRE(folder != nullptr);
  const CheckpointContent c =
      read_checkpoint(write_checkpoint(fs::path(folder) / "epoch=3-step=1000.ckpt", content_of_v1()));
  for (const auto& [name, hash] : hashes_of(c)) std::cout << "      {\"" << name << "\", \"" << hash << "\"},\n";
}

}  // namespace fixture_test
