// Malicious files of torch.save, or files damaged in ways that matter.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <zip.h>

#include "formats/pytorch_archive.h"
#include "formats/zip_writer.h"
#include "fulgur/checkpoint/pytorch_file.h"
#include "fulgur/core/text/errors.h"
#include "support/temporary_folder.h"

namespace pytorch_hostile_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using fulgur::detail::read_state_dict_pickle;
using Entries = std::vector<std::pair<std::string, std::string>>;

namespace {

const std::string kStart("\x80\x02", 2);

std::string text(const std::string& value) {
  std::string out = "X";
  for (int i = 0; i < 4; ++i) out += static_cast<char>(value.size() >> (8 * i) & 0xff);
  return out + value;
}

std::string number(uint32_t value) {
  std::string out = "J";
  for (int i = 0; i < 4; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

std::string repeated(const std::string& part, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += part;
  return out;
}

std::string storage(const std::string& key, const std::string& count,
                    const std::string& type = "ctorch\nFloatStorage\n") {
  return std::string("(")
      .append(text("storage"))
      .append(type)
      .append(text(key))
      .append(text("cpu"))
      .append(count)
      .append("tQ");
}

// A tensor of `storage`; the rest as instructions.
std::string tensor(const std::string& of, const std::string& offset, const std::string& sizes,
                   const std::string& strides) {
  return std::string("ctorch._utils\n_rebuild_tensor_v2\n(")
      .append(of)
      .append(offset)
      .append(sizes)
      .append(strides)
      .append(
          "\x89"
          "ccollections\nOrderedDict\n)RtR");
}

std::string dict_of(const std::string& value, const std::string& name = "w") {
  return std::string(kStart).append("}").append(text(name)).append(value).append("s.");
}

void refuse(const std::string& pickle, const std::string& expected) {
  CHECK_THROWS_WITH(read_state_dict_pickle(pickle), ContainsSubstring(expected));
}

void write_zip(const std::filesystem::path& path, const Entries& entries, bool compressed = false) {
  zip_t* zip = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, nullptr);
  for (const auto& [name, bytes] : entries) {
    const auto index = static_cast<zip_uint64_t>(
        zip_file_add(zip, name.c_str(), zip_source_buffer(zip, bytes.data(), bytes.size(), 0), 0));
    zip_set_file_compression(zip, index, compressed ? ZIP_CM_DEFLATE : ZIP_CM_STORE, 0);
  }
  REQUIRE(zip_close(zip) == 0);
}

// One float tensor `w` of shape [2].
std::string good_pickle() {
  return dict_of(tensor(storage("0", "K\x02"), std::string("K\0", 2), "K\x02\x85", "K\x01\x85"));
}

Entries good_entries() { return {{"a/data.pkl", good_pickle()}, {"a/data/0", "12345678"}, {"a/version", "3\n"}}; }

std::string replaced(std::string bytes, const std::string& from, const std::string& to) {
  for (size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at + to.size()))
    bytes.replace(at, from.size(), to);
  return bytes;
}

}  // namespace

TEST_CASE("F12 a pickle that names code is refused by that name") {
  refuse(kStart + "cposix\nsystem\n" + text("echo harm") + "\x85R.", "names 'posix.system'");
  refuse(kStart + "cos\nsystem\n.", "names 'os.system'");
  refuse(kStart + "c__builtin__\neval\n" + text("1") + "\x85R.", "names '__builtin__.eval'");
  refuse(kStart + "ctorch\nload\n.", "names 'torch.load'");
  refuse(kStart + "ctorch._utils\n_rebuild_tensor_v2.__globals__\n.", "code in a file is never run");
  refuse(kStart + "ctorch\n\n.", "names 'torch.'");
  refuse(kStart + "c" + std::string(100'000, 'x'), "has no end");
  refuse(kStart + "cev\x1b[2Jil\nx\n.", "names 'ev\\x1b[2Jil.x'");
  // By names that are texts, as protocol 4 has them.
  refuse(std::string("\x80\x04") + text("posix") + text("system") + "\x93.", "names 'posix.system'");
  refuse(std::string("\x80\x04") + text("posix") + "N\x93.", "the name of a class or function is not text");
  // Instructions that make objects in other ways: NEWOBJ, INST, OBJ, NEWOBJ_EX, EXT1.
  for (const char code : {'\x81', 'i', 'o', '\x92', '\x82'})
    refuse(kStart + std::string(1, code), "not one that torch.save writes");
}

TEST_CASE("F12 calls of what is not a function are refused") {
  refuse(kStart + text("print") + ")R.", "a text is called");
  refuse(kStart + "ccollections\nOrderedDict\n" + text("x") + "R.", "is called");
  refuse(kStart + "ccollections\nOrderedDict\n(K\x01tR.", "an OrderedDict is created with arguments");
  refuse(kStart + "ccollections\nOrderedDict\n(" + repeated("N", 100) + "tR.", "more arguments");
  refuse(kStart + "ctorch._utils\n_rebuild_tensor_v2\n)R.",
         "a tensor is not described as torch.save would describe it");
  refuse(kStart + "ctorch\nFloatStorage\n)R.", "a class is called");
  refuse(kStart + "]}b.", "attributes are set on a list");
  // Python would call these; here they are values without a meaning.
  const auto read =
      read_state_dict_pickle(kStart + "}(" + text("c") + "ccollections\nCounter\n}\x85R" + text("state_dict") +
                             good_pickle().substr(2, good_pickle().size() - 3) + "u.");
  CHECK(read.left_out == std::vector<std::string>{"'c' (an object)"});
}

TEST_CASE("F12 pickles that demand too much memory or time are refused") {
  refuse(kStart + repeated("(", 2000) + ".", "nested deeper than 1000 levels");
  refuse(kStart + "Nr\xff\xff\xff\xff.", "remembers a value as number 4294967295");
  refuse(kStart + "h\x05.", "recalls value 5, which it never stored");
  refuse(kStart + repeated("N", 5'000'000) + ".", "more than 4194304 values");
  // A list that is added to itself, doubled each time in Python.
  refuse(kStart + "]q" + std::string(1, '\0') + "(" + repeated(std::string("h\0", 2), 4'000'000) + "e(" +
             repeated(std::string("h\0", 2), 4'190'000) + "e(" + repeated(std::string("h\0", 2), 4'190'000) + "e.",
         "more than 4194304 values");
  refuse("X\xff\xff\xff\xff", "does not begin like a pickle");
  refuse(kStart + "X\xff\xff\xff\x7f" + "abc", "2147483647 bytes should follow, but only 3 do");
  // Deep values without marks: nothing walks down into them.
  CHECK_THROWS_AS(read_state_dict_pickle(kStart + "N" + repeated("\x85", 1'000'000) + "."), CheckpointError);
  // A list that holds itself.
  CHECK_THROWS_AS(read_state_dict_pickle(kStart + "]q" + std::string(1, '\0') + "h" + std::string(1, '\0') + "a."),
                  CheckpointError);
}

TEST_CASE("F12 what protocols 4 and 5 add is held against the pickle as well") {
  const std::string start("\x80\x04", 2), zeros(7, '\0');
  refuse(start + "\x95" + "\x10" + zeros + "}.", "a frame of 16 bytes should follow, but only 2 do");
  refuse(start + "\x8c\x05" + "abc", "5 bytes should follow, but only 3 do");
  refuse(start + "\x8d" + "\x05" + zeros + "abc", "5 bytes should follow, but only 3 do");
  refuse(start + "\x94.", "a value is missing");
  refuse(start + "\x93.", "a value is missing");
  // The metadata of a tensor: what is not known could change its values.
  const auto with = [&](const std::string& metadata) {
    return dict_of("ctorch._utils\n_rebuild_tensor_v2\n(" + storage("0", "K\x02") + std::string("K\0", 2) +
                   "K\x02\x85K\x01\x85\x89"
                   "ccollections\nOrderedDict\n)R" +
                   metadata + "tR");
  };
  CHECK(read_state_dict_pickle(with("}" + text("neg") + "\x88s")).tensors[0].negated);
  refuse(with("}" + text("zero") + "\x88s"), "a tensor has the property 'zero', which is unknown");
  refuse(with("}" + text("neg") + "Ns"), "a tensor has the property 'neg', which is unknown");
  refuse(with("N"), "a tensor is not described as torch.save would describe it");
}

TEST_CASE("F12 a pickle cut at any length is refused") {
  const std::string whole = good_pickle();
  REQUIRE(read_state_dict_pickle(whole).tensors.size() == 1);
  for (size_t length = 0; length < whole.size(); ++length)
    CHECK_THROWS_AS(read_state_dict_pickle(std::string_view(whole).substr(0, length)), CheckpointError);
  refuse(whole + "x", "1 bytes follow its end");
  refuse(replaced(whole, kStart, "\x80\x06"), "protocol 6");
}

TEST_CASE("F12 tensors that extend beyond their storage are refused") {
  const std::string zero("K\0", 2), two = storage("0", "K\x02");
  const auto of = [&](const std::string& offset, const std::string& sizes, const std::string& strides) {
    return dict_of(tensor(two, offset, sizes, strides));
  };
  CHECK(read_state_dict_pickle(of(zero, "K\x02\x85", "K\x01\x85")).tensors.size() == 1);
  refuse(of(zero, "K\x03\x85", "K\x01\x85"), "extends beyond storage '0', which has 2 elements");
  refuse(of("K\x01", "K\x02\x85", "K\x01\x85"), "extends beyond");
  refuse(of("J\xff\xff\xff\xff", "K\x02\x85", "K\x01\x85"), "extends beyond");
  refuse(of(zero, "K\x02\x85", number(1u << 30) + "\x85"), "extends beyond");
  refuse(of(zero, "(" + repeated(number(0x7fffffff), 5) + "t", "(" + repeated("K\x01", 5) + "t"), "extends beyond");
  refuse(of(zero, "(" + repeated(number(0x7fffffff), 5) + "t", "(" + repeated(zero, 5) + "t"), "extends beyond");
  refuse(of(zero, "(" + repeated("K\x01", 65) + "t", "(" + repeated("K\x01", 65) + "t"), "at most 64 sizes");
  refuse(of(zero, "K\x02\x85", "(K\x01K\x01t"), "more or fewer strides");
  refuse(of(zero, "J\xff\xff\xff\xff\x85", "K\x01\x85"), "not a size");
  refuse(of("K\x03", zero + "\x85", "K\x01\x85"), "extends beyond");
  refuse(dict_of(tensor(storage("0", "J\xff\xff\xff\xff"), zero, "K\x02\x85", "K\x01\x85")), "has -1 elements");
  refuse(dict_of(tensor(storage("0", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"), zero, "K\x02\x85", "K\x01\x85")),
         "elements");
  refuse(dict_of(tensor(storage(std::string(200, 'k'), "K\x02"), zero, "K\x02\x85", "K\x01\x85")),
         "longer than 100 bytes");
  // One storage, two sizes.
  refuse(kStart + "}(" + text("v") + tensor(two, zero, "K\x02\x85", "K\x01\x85") + text("w") +
             tensor(storage("0", "K\x03"), zero, "K\x02\x85", "K\x01\x85") + "u.",
         "described in two ways");
  refuse(kStart + "}(" + text("w") + tensor(two, zero, "K\x02\x85", "K\x01\x85") + text("w") +
             tensor(two, zero, "K\x02\x85", "K\x01\x85") + "u.",
         "'w' occurs twice");
}

TEST_CASE("what is not a state dict says what it is") {
  refuse(kStart + "K\x01.", "it holds a number");
  refuse(dict_of("K\x01"), "it has 'w' (a number)");
  refuse(kStart + "}K\x01" + tensor(storage("0", "K\x02"), std::string("K\0", 2), "K\x02\x85", "K\x01\x85") + "s.",
         "a tensor's name is a number");
}

TEST_CASE("F12 archives that are not from torch.save are refused") {
  TemporaryFolder folder;
  const auto path = folder / "f.pt";
  const auto refuse_zip = [&](const Entries& entries, const std::string& expected) {
    write_zip(path, entries);
    CHECK_THROWS_WITH(read_pytorch_file(path), ContainsSubstring(expected));
  };
  write_zip(path, good_entries());
  REQUIRE(read_pytorch_file(path).tensors.size() == 1);

  Entries entries = good_entries();
  entries.emplace_back("a/../../etc/passwd", "x");
  refuse_zip(entries, "'a/../../etc/passwd', which torch.save never writes");
  entries.back().first = "/etc/passwd";
  refuse_zip(entries, "'/etc/passwd'");
  entries.back().first = "b/data.pkl";
  refuse_zip(entries, "must be in one folder; 'b/data.pkl' is not");
  entries.back().first = "a\\b";
  refuse_zip(entries, "torch.save never writes");
  entries.back() = {"a/byteorder", "big"};
  refuse_zip(entries, "little-endian; the file says 'big'");
  entries.back() = {"a/constants.pkl", ""};
  refuse_zip(entries, "TorchScript");
  refuse_zip({{"a/version", "3\n"}}, "'a/data.pkl' is missing");
  refuse_zip({{"a/data.pkl", good_pickle()}}, "the storage of 'w' is missing");
  refuse_zip({{"a/data.pkl", good_pickle()}, {"a/data/0", "1234567"}}, "must have 8 bytes; 'a/data/0' has 7");
  refuse_zip({{"a/data.pkl", good_pickle()}, {"a/data/0", "123456789"}}, "must have 8 bytes; 'a/data/0' has 9");
}

TEST_CASE("F12 zip bombs are refused before they unfold") {
  TemporaryFolder folder;
  const auto path = folder / "f.pt";
  // 100 MB of zeros in 100 kB.
  write_zip(path, {{"a/data.pkl", std::string(100'000'000, '\0')}}, true);
  REQUIRE(std::filesystem::file_size(path) < 200'000);
  CHECK_THROWS_WITH(read_pytorch_file(path), ContainsSubstring("'a/data.pkl' is compressed"));
  // Overlapping entries: the central directory points twice to the same bytes.
  const std::string large(60'000, 'x');
  write_zip(path, {{"a/data.pkl", large}, {"a/b", large}});
  std::string bytes = read_text(path);
  const size_t directory = bytes.find("PK\x01\x02");
  const size_t second = bytes.find("PK\x01\x02", directory + 4);
  std::string overlapping = bytes.substr(0, bytes.find("PK\x03\x04", 4)) + bytes.substr(directory);
  overlapping.replace(overlapping.find("PK\x01\x02", overlapping.find("PK\x01\x02") + 4) + 42, 4, std::string(4, '\0'));
  const auto offset = static_cast<uint32_t>(overlapping.find("PK\x01\x02"));
  for (size_t i = 0; i < 4; ++i)
    overlapping[overlapping.find("PK\x05\x06") + 16 + i] = static_cast<char>(offset >> (8 * i) & 0xff);
  REQUIRE(second != std::string::npos);
  write_text(path, overlapping);
  CHECK_THROWS_WITH(read_pytorch_file(path), ContainsSubstring("more bytes than the file"));
}

TEST_CASE("F12 an entry that occurs twice in an archive, or with a wrong checksum, is refused") {
  TemporaryFolder folder;
  const auto path = folder / "f.pt";
  Entries entries = good_entries();
  entries.emplace_back("a/data/1", "87654321");
  write_zip(path, entries);
  const std::string bytes = read_text(path);
  write_text(path, replaced(bytes, "a/data/1", "a/data/0"));
  CHECK_THROWS_WITH(read_pytorch_file(path), ContainsSubstring("two entries named 'a/data/0'"));
  write_text(path, replaced(bytes, "12345678", "12345679"));
  CHECK_THROWS_WITH(read_pytorch_file(path),
                    ContainsSubstring("'a/data/0' is damaged") && ContainsSubstring("set_crc32_options"));
}

}  // namespace pytorch_hostile_test
