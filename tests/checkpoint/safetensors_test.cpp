#include "fulgur/checkpoint/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "checkpoint/fault_calls.h"
#include "formats/safetensors_header.h"
#include "fulgur/checkpoint/safetensors_writer.h"
#include "fulgur/core/text/errors.h"
#include "support/full_speed.h"
#include "support/temporary_folder.h"

namespace safetensors_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

std::string with_header(const std::string& json, size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return file + json + std::string(data_bytes, 'x');
}

}  // namespace

TEST_CASE("safetensors: every dtype, scalars, empty and strided tensors come back as they were") {
  TemporaryFolder folder;
  NamedTensors tensors;
  for (const at::ScalarType dtype : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf,
                                     at::kBFloat16, at::kFloat, at::kDouble})
    tensors.emplace_back(std::string("t.") + c10::toString(dtype), at::arange(6).reshape({2, 3}).to(dtype));
  tensors.emplace_back("scalar", at::scalar_tensor(0.1, at::kDouble));
  tensors.emplace_back("empty", at::empty({0, 4}));
  tensors.emplace_back("transposed", at::arange(6).reshape({2, 3}).t());
  tensors.emplace_back("name with \"quotes\" and ü", at::full({1}, 3));
  write_safetensors(folder / "t.safetensors", tensors, {{"key", "value"}});
  const SafetensorsFile file = read_safetensors(folder / "t.safetensors");
  REQUIRE(file.tensors.size() == tensors.size());
  CHECK(file.metadata.at("key") == "value");
  std::map<std::string, Tensor> by_name(file.tensors.begin(), file.tensors.end());
  for (const auto& [name, tensor] : tensors) {
    REQUIRE(by_name.contains(name));
    CHECK(by_name[name].scalar_type() == tensor.scalar_type());
    CHECK(by_name[name].sizes() == tensor.sizes());
    CHECK(by_name[name].equal(tensor));
  }
}

TEST_CASE("safetensors: a file written in blocks is that of one written at once, also if writes stop short") {
  const TemporaryFolder folder;
  const NamedTensors tensors{
      {"a", at::arange(60).reshape({10, 2, 3}).to(at::kFloat)}, {"none", at::empty({10, 0})}, {"b", at::arange(10)}};
  write_safetensors(folder / "whole", tensors);
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, value] : tensors) entries.push_back({name, value.scalar_type(), value.sizes().vec()});
  int calls = 0;
  FaultCalls faults([&](std::string_view name, const auto& call) -> long {
    if (name == "pwrite" && ++calls % 2 == 0) return errno = EINTR, -1;
    return call();
  });
  faults.shorten = [](size_t bytes) { return std::min<size_t>(bytes, 7); };
  SafetensorsWriter writer(folder / "blocks", entries);
  for (const int64_t first : {6, 0, 3})
    for (size_t i = 0; i < tensors.size(); ++i)
      writer.write(i, first, tensors[i].second.narrow(0, first, first == 6 ? 4 : 3));
  writer.commit();
  CHECK(calls > 30);
  CHECK(read_text(folder / "blocks") == read_text(folder / "whole"));
}

TEST_CASE("safetensors: a writer in blocks names the disk's error, and refuses what the format cannot hold") {
  const TemporaryFolder folder;
  {
    const FaultCalls full([&](std::string_view name, const auto& call) -> long {
      return name == "pwrite" ? (errno = ENOSPC, -1) : call();
    });
    SafetensorsWriter writer(folder / "full", {{"a", at::kLong, {4}}});
    CHECK_THROWS_WITH(writer.write(0, 0, at::arange(4)),
                      ContainsSubstring("full") && ContainsSubstring("No space left"));
  }
  CHECK_THROWS_WITH(SafetensorsWriter(folder / "full", {{"a", at::kLong, {4}}}), ContainsSubstring("File exists"));
  CHECK_THROWS_WITH(SafetensorsWriter::check({{"a", at::kComplexFloat, {4}}}), ContainsSubstring("cannot hold"));
  CHECK_THROWS_WITH(SafetensorsWriter::check({{"a", at::kLong, {4}}, {"a", at::kLong, {4}}}),
                    ContainsSubstring("two tensors have the name"));
}

TEST_CASE("F9 a safetensors file cut at any length is refused") {
  TemporaryFolder folder;
  write_safetensors(folder / "whole", {{"a", at::arange(5)}, {"b", at::arange(3).to(at::kFloat)}});
  const std::string whole = read_text(folder / "whole");
  for (size_t length = 0; length < whole.size(); ++length) {
    write_text(folder / "cut", whole.substr(0, length));
    CHECK_THROWS_AS(read_safetensors(folder / "cut"), CheckpointError);
  }
  write_text(folder / "cut", whole + "x");
  CHECK_THROWS_AS(read_safetensors(folder / "cut"), CheckpointError);
}

TEST_CASE("F11 what is not a safetensors file is refused with what it looks like, and a FIFO does not hang") {
  TemporaryFolder folder;
  const auto refuse = [&](const std::string& text, const std::string& expected) {
    write_text(folder / "file", text);
    CHECK_THROWS_WITH(read_safetensors(folder / "file"), ContainsSubstring(expected));
  };
  refuse("", "truncated: it has 0");
  refuse("", "It is empty");
  refuse("version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer: run `git lfs pull`");
  refuse("PK\x03\x04zipzipzip", "zip archive");
  refuse("\x80\x02}q\x01X\x03zzz", "Python pickle");
  refuse("\x89PNG\r\n\x1a\n....", "PNG image");
  refuse(with_header("[1, 2]", 0), "start with '{'");
  CHECK_THROWS_AS(read_safetensors(folder.path()), CheckpointError);
  CHECK_THROWS_WITH(read_safetensors(folder / "absent"), ContainsSubstring("No such file"));
  REQUIRE(mkfifo((folder / "fifo").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(read_safetensors(folder / "fifo"), ContainsSubstring("not a regular file"));
}

TEST_CASE("F12 hostile headers are refused before memory is allocated") {
  const auto refuse = [](const std::string& json, uint64_t data, const std::string& expected) {
    CHECK_THROWS_WITH(fulgur::detail::parse_safetensors_header(json, data), ContainsSubstring(expected));
  };
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
  };
  CHECK(fulgur::detail::parse_safetensors_header(one("F32", "[2]", "[0,8]"), 8).entries.size() == 1);
  refuse(one("F32", "[2]", "[0,8]"), 12, "end at byte 8, but the file has 12");
  refuse(one("F32", "[2]", "[4,12]"), 12, "instead of 0");
  refuse(one("F32", "[2]", "[0,16]"), 8, "ends at byte 16 of 8");
  refuse(one("F32", "[2]", "[8,0]"), 8, "ends at byte 0");
  refuse(one("F32", "[3]", "[0,8]"), 8, "its shape needs 12");
  refuse(one("F32", "[-1]", "[0,8]"), 8, "not a whole number");
  refuse(one("F32", "[4294967296,4294967296,4]", "[0,8]"), 8, "overflows");
  refuse(one("F31", "[2]", "[0,8]"), 8, "unknown dtype");
  refuse(one("F32", "[2.0]", "[0,8]"), 8, "not a whole number");
  refuse(
      "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_"
      "offsets\":[1,2]}}",
      2, "twice");
  refuse(
      "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_"
      "offsets\":[1,3]}}",
      3, "begins at byte 1");
  refuse("{\"__metadata__\":{\"a\":1}}", 0, "strings only");
  refuse("{\"a\":", 0, "not JSON");
  refuse("{\"a\":" + std::string(100000, '['), 0, "must have exactly");
  refuse("{\"a\":" + std::string(100000, '{'), 0, "not JSON");
  refuse("{\"\xff\":1}", 0, "UTF-8");
  refuse("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "twice");
  refuse("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice");
  refuse("[]", 0, "start with '{'");
  refuse("{\"a\":1}", 0, "must have exactly");
  refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":1}}", 1, "must have exactly");
  refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "must have exactly");
  refuse(one("F32", "[2]", "[0,8,8]"), 8, "not two numbers");
  refuse(one("F32", "[2]", "[0]"), 8, "not two numbers");
  refuse(one("F32", "[0,4611686018427387904,4611686018427387904]", "[0,0]"), 0, "overflows");
  refuse(one("F32", "[9223372036854775808]", "[0,8]"), 8, "not a whole number");
  std::string dimensions = "1";
  for (int i = 0; i < 64; ++i) dimensions += ",1";
  refuse(one("F32", "[" + dimensions + "]", "[0,4]"), 4, "more than 64 dimensions");
  refuse("{\"" + std::string(1 << 20, 'n') + "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         "has 1048576 bytes");
  TemporaryFolder folder;
  std::string huge = with_header("{}", 0);
  huge[7] = '\x7f';
  write_text(folder / "huge", huge);
  CHECK_THROWS_WITH(read_safetensors(folder / "huge"), ContainsSubstring("at most 100000000"));
}

TEST_CASE("F12 a header of a million tensors is refused without much memory or time") {
  std::string json = "{";
  for (int i = 0; i < 1000000; ++i)
    json += "\"t" + std::to_string(i) + "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},";
  json.back() = '}';
  const auto resident_bytes = [] {
    std::ifstream file("/proc/self/statm");
    size_t pages = 0, resident = 0;
    file >> pages >> resident;
    return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  };
  const size_t before = resident_bytes();
  const std::clock_t start = std::clock();
  try {
    fulgur::detail::parse_safetensors_header(json, 0);
    FAIL("nothing was thrown");
  } catch (const CheckpointError& error) {
    CHECK_THAT(error.what(), ContainsSubstring("more than 262144 tensors"));
  }
  const std::clock_t took = std::clock() - start;  // of processor time
  // The text itself is here before; of it a file is read whole.
  const size_t most = before + json.size() + (16u << 20);
  CHECK((!kRunsAtFullSpeed || (took < CLOCKS_PER_SEC && resident_bytes() < most)));
}

TEST_CASE("what the format cannot hold is refused by name when it is written") {
  TemporaryFolder folder;
  const auto refuse = [&](const NamedTensors& tensors, const std::string& expected) {
    CHECK_THROWS_WITH(write_safetensors(folder / "file", tensors), ContainsSubstring(expected));
    CHECK_FALSE(std::filesystem::exists(folder / "file"));
  };
  refuse({{"a", at::arange(2)}, {"a", at::arange(3)}}, "two tensors have the name 'a'");
  refuse({{"__metadata__", at::arange(2)}}, "'__metadata__'");
  refuse({{"a", Tensor()}}, "'a' is undefined");
  refuse({{"a", at::arange(2).to_sparse()}}, "'a' is a sparse tensor");
  refuse({{"a", at::arange(2).to(at::kComplexFloat)}}, "'a' has dtype ComplexFloat");
  refuse({{"\xff", at::arange(2)}}, "UTF-8");
}

TEST_CASE("F5 a full device is an error with path and reason, not an abort") {
  CHECK_THROWS_WITH(write_safetensors("/dev/full", {{"a", at::arange(3)}}), ContainsSubstring("/dev/full"));
}

TEST_CASE("Python's safetensors reads the file") {
  const char* python = std::getenv("FULGUR_TEST_PYTHON");
  if (python == nullptr)
    SKIP("FULGUR_TEST_PYTHON names no Python with safetensors (scripts/test.sh makes one beside the CUDA LibTorch)");
  TemporaryFolder folder;
  write_safetensors(folder / "t.safetensors", {{"x", at::arange(4).to(at::kFloat)}, {"y", at::full({2, 2}, 7)}},
                    {{"format", "pt"}});
  const std::string command =
      std::string(python) + " -c \"from safetensors.numpy import load_file; t=load_file('" +
      (folder / "t.safetensors").string() +
      "'); assert t['x'].tolist()==[0,1,2,3] and t['y'].shape==(2,2) and t['y'].dtype=='int64'\"";
  CHECK(std::system(command.c_str()) == 0);
}

}  // namespace safetensors_test
