#include "fulgur/checkpoint/pytorch_file.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_real.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "fulgur/checkpoint/weights_file.h"
#include "fulgur/core/text/errors.h"
#include "support/temporary_folder.h"

namespace pytorch_file_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

fs::path here() { return fs::path(__FILE__).parent_path(); }
fs::path fixture(const char* name) { return here() / "fixtures/pytorch" / name; }

// As plain() of pytorch_exchange.py.
NamedTensors plain_tensors() {
  const std::pair<const char*, at::ScalarType> dtypes[] = {{"bool", at::kBool},
                                                           {"uint8", at::kByte},
                                                           {"int8", at::kChar},
                                                           {"int16", at::kShort},
                                                           {"int32", at::kInt},
                                                           {"int64", at::kLong},
                                                           {"float16", at::kHalf},
                                                           {"bfloat16", at::kBFloat16},
                                                           {"float32", at::kFloat},
                                                           {"float64", at::kDouble},
                                                           {"uint16", at::kUInt16},
                                                           {"uint32", at::kUInt32},
                                                           {"uint64", at::kUInt64},
                                                           {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                                           {"float8_e5m2", at::kFloat8_e5m2},
                                                           {"complex64", at::kComplexFloat},
                                                           {"complex128", at::kComplexDouble}};
  NamedTensors tensors;
  for (const auto& [name, dtype] : dtypes)
    tensors.emplace_back(std::string("dtype.").append(name), at::arange(6).reshape({2, 3}).to(dtype));
  tensors.emplace_back("scalar", at::full({}, 0.1, at::kDouble));
  tensors.emplace_back("empty", at::empty({0, 4}));
  tensors.emplace_back("nan", at::tensor({std::nanf(""), HUGE_VALF, -0.0F}));
  return tensors;
}

NamedTensors without_complex(NamedTensors tensors) {
  std::erase_if(tensors, [](const auto& item) { return item.second.is_complex(); });
  return tensors;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.resolve_conj().contiguous(), y = b.resolve_conj().contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

void check_same(const NamedTensors& got, const NamedTensors& expected) {
  const std::map<std::string, Tensor> by_name(got.begin(), got.end());
  CHECK(got.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    INFO(name);
    REQUIRE(by_name.contains(name));
    CHECK(same_bits(by_name.at(name), tensor));
  }
}

std::map<std::string, Tensor> read_map(const fs::path& path) {
  const PytorchFile file = read_pytorch_file(path);
  return {file.tensors.begin(), file.tensors.end()};
}

// Exit code of the Python side. Not inside a CHECK: it may skip.
int python(const std::string& verb, const fs::path& folder) {
  const char* interpreter = std::getenv("FULGUR_TEST_PYTHON");
  if (interpreter == nullptr)
    SKIP(
        "FULGUR_TEST_PYTHON names no Python with torch and safetensors (scripts/test.sh makes one beside the CUDA "
        "LibTorch)");
  const std::string command = std::string("'")
                                  .append(interpreter)
                                  .append("' '")
                                  .append(here() / "pytorch_exchange.py")
                                  .append("' ")
                                  .append(verb)
                                  .append(" '")
                                  .append(folder)
                                  .append("'");
  const int code = WEXITSTATUS(std::system(command.c_str()));
  if (code == 77) SKIP("the Python of FULGUR_TEST_PYTHON has no torch, or no safetensors");
  return code;
}

}  // namespace

TEST_CASE("torch.save: every dtype, a scalar, an empty tensor and NaN are read bit for bit") {
  const PytorchFile file = read_pytorch_file(fixture("plain.pt"));
  check_same(file.tensors, plain_tensors());
  CHECK(file.left_out.empty());
}

TEST_CASE("torch.save: views keep their strides and share memory") {
  auto t = read_map(fixture("views.pt"));
  REQUIRE(t.size() == 7);
  CHECK(t["base"].equal(at::arange(12, at::kFloat)));
  CHECK(t["row"].equal(at::arange(4, 8, at::kFloat)));
  CHECK(t["transposed"].equal(at::arange(12, at::kFloat).reshape({3, 4}).t()));
  CHECK(t["transposed"].strides() == at::IntArrayRef({1, 4}));
  CHECK(t["every_third"].equal(at::tensor({1.F, 4.F, 7.F, 10.F})));
  CHECK(t["expanded"].equal(at::full({2, 3}, 2.F)));
  CHECK(t["parameter"].equal(at::arange(2, at::kFloat)));
  CHECK_FALSE(t["parameter"].requires_grad());
  CHECK(t["empty_at_end"].sizes() == at::IntArrayRef({0}));
  t["base"][4] = 40;
  CHECK(t["row"][0].item<float>() == 40);
}

TEST_CASE("torch.save: BatchNorm's buffers and tied weights") {
  auto t = read_map(fixture("network.pt"));
  CHECK(t.size() == 8);
  CHECK(t.at("1.num_batches_tracked").item<int64_t>() == 1);
  CHECK(t.at("1.num_batches_tracked").dim() == 0);
  CHECK(t.at("1.running_var").sizes() == at::IntArrayRef({4}));
  CHECK(t.at("0.weight").const_data_ptr() == t.at("2.weight").const_data_ptr());
}

TEST_CASE("torch.save: pickle protocols 3, 4 and 5 hold what protocol 2 does") {
  const NamedTensors expected = read_pytorch_file(fixture("network.pt")).tensors;
  for (const char* name : {"protocol3.pt", "protocol4.pt", "protocol5.pt"}) {
    CAPTURE(name);
    check_same(read_pytorch_file(fixture(name)).tensors, expected);
  }
}

TEST_CASE("torch.save: conjugated and negated views have their own values") {
  auto t = read_map(fixture("lazy.pt"));
  REQUIRE(t.size() == 2);
  CHECK(at::view_as_real(t["conjugated"]).equal(at::tensor({0.F, -1.F, 2.F, -3.F}).reshape({2, 2})));
  CHECK_FALSE(t["conjugated"].is_conj());
  CHECK(t["negated"].equal(at::tensor({-1.F, -3.F})));
  CHECK_FALSE(t["negated"].is_neg());
}

TEST_CASE("the state_dict of a Lightning checkpoint is read, and what is left out is named") {
  const PytorchFile file = read_pytorch_file(fixture("lightning.ckpt"));
  CHECK(file.tensors.size() == 8);
  CHECK(file.tensors.front().first == "model.0.weight");
  CHECK(file.left_out.size() == 9);
  CHECK(std::find(file.left_out.begin(), file.left_out.end(), "'optimizer_states' (a list)") != file.left_out.end());
}

TEST_CASE("what torch.save writes of other things is refused with what to do") {
  CHECK_THROWS_WITH(read_pytorch_file(fixture("whole_module.pt")),
                    ContainsSubstring("names 'torch.nn.modules.linear.Linear'") &&
                        ContainsSubstring("torch.save(model.state_dict(), FILE)"));
  CHECK_THROWS_WITH(read_pytorch_file(fixture("legacy.pt")), ContainsSubstring("torch before 1.6"));
  CHECK_THROWS_WITH(read_pytorch_file(fixture("plain.safetensors")), ContainsSubstring("not a file of torch.save"));
  CHECK_THROWS_WITH(read_pytorch_file(fixture("absent.pt")), ContainsSubstring("No such file"));
  CHECK_THROWS_WITH(read_pytorch_file(here()), ContainsSubstring("folder"));
}

TEST_CASE("what is written as .pt comes back, and the same tensors give the same bytes") {
  TemporaryFolder folder;
  NamedTensors tensors = plain_tensors();
  tensors.emplace_back("transposed", at::arange(6).reshape({2, 3}).t());
  tensors.emplace_back("conjugated", at::full({2}, 1.0, at::kComplexFloat).mul(c10::complex<float>(0, 1)).conj());
  tensors.emplace_back("name with \"quotes\" and ü", at::full({1}, 3));
  tensors.emplace_back("many", at::arange(100'000));
  write_pytorch_file(folder / "a.pt", tensors);
  write_pytorch_file(folder / "b.pt", tensors);
  check_same(read_pytorch_file(folder / "a.pt").tensors, tensors);
  CHECK(read_text(folder / "a.pt") == read_text(folder / "b.pt"));
  CHECK_THROWS_WITH(write_pytorch_file(folder / "a.pt", tensors), ContainsSubstring("a.pt: File exists"));
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("tied parameters are written under each of their names") {
  TemporaryFolder folder;
  write_pytorch_file(folder / "t.pt", {{"a", at::arange(3)}}, {{"b", "a"}});
  auto t = read_map(folder / "t.pt");
  REQUIRE(t.size() == 2);
  CHECK(t["a"].const_data_ptr() == t["b"].const_data_ptr());
  CHECK_THROWS_WITH(write_pytorch_file(folder / "u.pt", {{"a", at::arange(3)}}, {{"b", "c"}}),
                    ContainsSubstring("'b' cannot be an alias of 'c'"));
}

TEST_CASE("tensors that .pt cannot hold are refused, and nothing is left") {
  TemporaryFolder folder;
  const auto refuse = [&](const NamedTensors& tensors, const std::string& expected) {
    CHECK_THROWS_WITH(write_pytorch_file(folder / "file", tensors), ContainsSubstring(expected));
    CHECK(fs::is_empty(folder.path()));
  };
  refuse({{"a", at::arange(2)}, {"a", at::arange(3)}}, "two tensors have the name 'a'");
  refuse({{"a", Tensor()}}, "'a' is undefined");
  refuse({{"a", at::arange(2).to_sparse()}}, "'a' is a sparse tensor");
  refuse({{"\xff", at::arange(2)}}, "UTF-8");
}

TEST_CASE("F9 a .pt file cut at any length, or with any byte changed, is refused or as it was") {
  TemporaryFolder folder;
  write_pytorch_file(folder / "whole.pt", {{"a", at::arange(5)}, {"b", at::arange(3).to(at::kFloat)}});
  const std::string whole = read_text(folder / "whole.pt");
  const NamedTensors expected = read_pytorch_file(folder / "whole.pt").tensors;
  for (size_t length = 0; length < whole.size(); ++length) {
    write_text(folder / "cut", whole.substr(0, length));
    CHECK_THROWS_AS(read_pytorch_file(folder / "cut"), CheckpointError);
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x40);
    write_text(folder / "changed", changed);
    NamedTensors got;
    try {
      got = read_pytorch_file(folder / "changed").tensors;
    } catch (const CheckpointError&) {
      continue;
    }
    // Padding, dates and the like.
    INFO("byte " << i);
    check_same(got, expected);
  }
}

TEST_CASE("F5 a .pt file that finds no room is an error, not an abort, and what was there stays") {
  TemporaryFolder folder;
  write_weights_file(
      folder / "w.pt",
      {.format = WeightsFormat::pytorch, .tensors = {{"a", at::arange(3)}}, .aliases = {}, .left_out = {}});
  const std::string before = read_text(folder / "w.pt");
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{64 << 10, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    write_weights_file(
        folder / "w.pt",
        {.format = WeightsFormat::pytorch, .tensors = {{"a", at::arange(100'000)}}, .aliases = {}, .left_out = {}},
        true);
  } catch (const CheckpointError& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  CHECK_THAT(message, ContainsSubstring("File too large"));
  CHECK(read_text(folder / "w.pt") == before);
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("weights files: the format is determined by the first bytes, and an output is not replaced unasked") {
  TemporaryFolder folder;
  const WeightsFile weights{
      .format = WeightsFormat::safetensors, .tensors = {{"a", at::arange(3)}}, .aliases = {{"b", "a"}}, .left_out = {}};
  write_weights_file(folder / "sub/w.bin", weights);
  const WeightsFile back = read_weights_file(folder / "sub/w.bin");
  CHECK(back.format == WeightsFormat::safetensors);
  CHECK(back.aliases == weights.aliases);
  check_same(back.tensors, weights.tensors);
  CHECK(read_weights_file(fixture("plain.pt")).format == WeightsFormat::pytorch);
  CHECK_THROWS_WITH(write_weights_file(folder / "sub/w.bin", weights), ContainsSubstring("exists already"));
  CHECK_NOTHROW(write_weights_file(folder / "sub/w.bin", weights, true));
  CHECK_THROWS_WITH(write_weights_file(folder / "sub", weights, true), ContainsSubstring("is a folder"));
  write_text(folder / "text", "hello, world");
  CHECK_THROWS_WITH(read_weights_file(folder / "text"), ContainsSubstring("it is neither"));
}

TEST_CASE("exchange: Python reads what C++ writes, with weights_only, mapped or not") {
  TemporaryFolder folder;
  write_pytorch_file(folder / "ours.pt", plain_tensors(), {{"tied", "dtype.float32"}});
  write_safetensors(folder / "ours.safetensors", without_complex(plain_tensors()), {{"format", "pt"}});
  const int code = python("check", folder.path());
  CHECK(code == 0);
}

TEST_CASE("exchange: C++ reads what this Python writes") {
  TemporaryFolder folder;
  const int code = python("write", folder.path());
  REQUIRE(code == 0);
  check_same(read_pytorch_file(folder / "plain.pt").tensors, plain_tensors());
  check_same(read_safetensors(folder / "plain.safetensors").tensors, without_complex(plain_tensors()));
  check_same(read_pytorch_file(folder / "views.pt").tensors, read_pytorch_file(fixture("views.pt")).tensors);
  check_same(read_pytorch_file(folder / "network.pt").tensors, read_pytorch_file(fixture("network.pt")).tensors);
  for (const char* name : {"protocol3.pt", "protocol4.pt", "protocol5.pt", "lazy.pt"}) {
    CAPTURE(name);
    check_same(read_pytorch_file(folder / name).tensors, read_pytorch_file(fixture(name)).tensors);
  }
  CHECK(read_pytorch_file(folder / "lightning.ckpt").tensors.size() == 8);
}

}  // namespace pytorch_file_test
