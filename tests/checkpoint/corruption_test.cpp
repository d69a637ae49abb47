#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <random>

#include "checked_folder.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "io/hash.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace corruption_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

const char* const kFiles[] = {"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json",
                              "state.safetensors"};

fs::path small_checkpoint(const fs::path& folder) {
  CheckpointContent c;
  c.module = {{"first.weight", at::arange(6).to(at::kFloat)}, {"second.bias", at::arange(3)}};
  c.optimizers = StateTree::List{StateTree::map({{"class", "SGD"}, {"momentum", at::arange(4)}})};
  c.state["progress"] = StateTree::map({{"global_step", 12}, {"epoch", 3}});
  c.state["rng"] = at::arange(5);
  c.state["note"] = "text";
  return write_checkpoint(folder / "epoch=3-step=12.ckpt", c);
}

fs::path big_checkpoint(const fs::path& folder) {
  CheckpointContent c;
  c.module = {{"big", at::arange(1 << 18)}, {"other", at::arange(1 << 16).to(at::kFloat)}};
  return write_checkpoint(folder / "big.ckpt", c);
}

std::string read_error(const fs::path& path) {
  return message_of<CheckpointError>([&] { read_checkpoint(path); });
}

}  // namespace

TEST_CASE("F9 a checkpoint with a file cut at any length is refused with both lengths") {
  TemporaryFolder folder;
  const fs::path path = small_checkpoint(folder.path());
  int refused = 0;
  for (const char* name : kFiles) {
    const std::string whole = read_text(path / name);
    for (size_t length = whole.size(); length-- > 0;) {
      fs::resize_file(path / name, length);
      const std::string error = read_error(path);
      REQUIRE_THAT(error, ContainsSubstring(name));
      if (name != std::string("manifest.json"))
        REQUIRE_THAT(error, ContainsSubstring(cat("truncated: it has ", length, " of ", whole.size(), " bytes")));
      REQUIRE_FALSE(verify_checkpoint(path).ok());
      ++refused;
    }
    write_text(path / name, whole + "x");
    CHECK_THAT(read_error(path), ContainsSubstring(name));
    write_text(path / name, whole);
  }
  CHECK(refused > 1500);
  CHECK(verify_checkpoint(path).ok());
}

TEST_CASE("F9 a large file cut at 200 random lengths is refused") {
  TemporaryFolder folder;
  const fs::path file = big_checkpoint(folder.path()) / "model.safetensors";
  const auto size = fs::file_size(file);
  const std::string whole = read_text(file);
  std::mt19937_64 random(7);
  std::vector<uint64_t> lengths;
  for (int i = 0; i < 200; ++i) lengths.push_back(random() % size);
  std::sort(lengths.rbegin(), lengths.rend());
  for (const uint64_t length : lengths) {
    fs::resize_file(file, length);
    CHECK_THAT(read_error(file.parent_path()),
               ContainsSubstring(cat("truncated: it has ", length, " of ", size, " bytes")));
  }
  write_text(file, whole);
  CHECK(verify_checkpoint(file.parent_path()).ok());
}

TEST_CASE(
    "F10 every byte of a checkpoint changed by one bit, two bits in turn, is detected, and its tensor or field named") {
  TemporaryFolder folder;
  const fs::path path = small_checkpoint(folder.path());
  const fulgur::detail::Manifest manifest = fulgur::detail::CheckedFolder(path).manifest();
  int changed = 0, detected = 0;
  for (const char* name : kFiles) {
    const std::string whole = read_text(path / name);
    // The part that each byte belongs to; the manifest is one.
    std::vector<std::string> part_of(whole.size());
    if (const auto record = manifest.files.find(name); record != manifest.files.end()) {
      size_t place = 0;
      for (const auto& part : record->second.parts)
        for (uint64_t i = 0; i < part.bytes; ++i) part_of.at(place++) = cat(name, ": '", part.name, "'");
      REQUIRE(place == whole.size());
    }
    const int fd = open((path / name).c_str(), O_WRONLY | O_CLOEXEC);
    REQUIRE(fd >= 0);
    for (size_t i = 0; i < whole.size(); ++i)
      for (const int bit : {static_cast<int>(i % 8), static_cast<int>((i + 3) % 8)}) {
        const char damaged = static_cast<char>(whole[i] ^ (1 << bit));
        REQUIRE(pwrite(fd, &damaged, 1, static_cast<off_t>(i)) == 1);
        const VerifyReport report = verify_checkpoint(path);
        ++changed;
        if (report.problems.size() == 1 &&
            report.describe().find(part_of[i].empty() ? "manifest" : part_of[i]) != std::string::npos)
          ++detected;
        REQUIRE(pwrite(fd, &whole[i], 1, static_cast<off_t>(i)) == 1);
      }
    close(fd);
  }
  CHECK(detected == changed);
  CHECK(changed > 3000);
  CHECK(verify_checkpoint(path).ok());
}

TEST_CASE("F10 reading reports what verifying reports, and every damaged part of it") {
  TemporaryFolder folder;
  const fs::path path = small_checkpoint(folder.path());
  for (const char* name : {"model.safetensors", "state.json"}) {
    std::string text = read_text(path / name);
    text[10] = static_cast<char>(text[10] ^ 1);
    text[text.size() - 1] = static_cast<char>(text.back() ^ 1);
    write_text(path / name, text);
  }
  const std::string error = read_error(path);
  for (const char* expected :
       {"is damaged", "model.safetensors: '(header)' has changed since it was written",
        "model.safetensors: 'second.bias' has changed since it was written",
        "state.json: 'optimizers' has changed since", "state.json: 'end' has changed since", "Use another checkpoint"})
    CHECK_THAT(error, ContainsSubstring(expected));
  CHECK(verify_checkpoint(path).problems.size() == 4);
}

TEST_CASE("F10 a block of zeros and two blocks that changed places are detected, with the tensor") {
  TemporaryFolder folder;
  const fs::path path = big_checkpoint(folder.path());
  const std::string whole = read_text(path / "model.safetensors");
  std::mt19937_64 random(11);
  for (int i = 0; i < 20; ++i) {
    std::string zeroed = whole, swapped = whole;
    const size_t a = 4096 * (1 + random() % 200), b = a + 4096 * (1 + random() % 200);
    zeroed.replace(a, 4096, std::string(4096, '\0'));
    swapped.replace(a, 4096, whole.substr(b, 4096));
    swapped.replace(b, 4096, whole.substr(a, 4096));
    for (const std::string& text : {zeroed, swapped}) {
      write_text(path / "model.safetensors", text);
      CHECK_THAT(read_error(path), ContainsSubstring("model.safetensors: 'big' has changed since it was written"));
    }
  }
}

TEST_CASE("F10 a file that is missing, too many or renamed is refused by name") {
  TemporaryFolder folder;
  const fs::path path = small_checkpoint(folder.path());
  for (const char* name : kFiles) {
    fs::rename(path / name, folder / "aside");
    CHECK_THAT(read_error(path), ContainsSubstring(cat(name, " is missing")));
    CHECK_FALSE(verify_checkpoint(path).ok());
    fs::rename(folder / "aside", path / name);
  }
  write_text(path / "more.safetensors", "x");
  CHECK_THAT(read_error(path), ContainsSubstring("more.safetensors does not belong to the checkpoint"));
  CHECK_THROWS_WITH(summarize_checkpoint(path), ContainsSubstring("more.safetensors"));
  fs::remove(path / "more.safetensors");
  fs::rename(path / "state.safetensors", path / "State.safetensors");
  CHECK_THAT(read_error(path), ContainsSubstring("state.safetensors is missing") &&
                                   ContainsSubstring("State.safetensors does not belong"));
  fs::rename(path / "State.safetensors", path / "state.safetensors");
  CHECK(read_checkpoint(path).module.size() == 2);
}

TEST_CASE("F10 files of two whole checkpoints do not mix") {
  TemporaryFolder folder;
  const fs::path path = small_checkpoint(folder.path());
  CheckpointContent c = read_checkpoint(path);
  c.module[0].second.add_(1);
  const fs::path other = write_checkpoint(folder / "other.ckpt", c);
  fs::copy_file(other / "model.safetensors", path / "model.safetensors", fs::copy_options::overwrite_existing);
  CHECK_THAT(read_error(path), ContainsSubstring("model.safetensors: 'first.weight' has changed since it was written"));
}

TEST_CASE("F10 tensors of the state of an earlier step are refused, unless they are the same bytes") {
  TemporaryFolder folder;
  const fs::path path = small_checkpoint(folder.path());
  CheckpointContent c = read_checkpoint(path);
  c.state["progress"]["global_step"] = 11;
  const fs::path same = write_checkpoint(folder / "same.ckpt", c);
  c.state["rng"] = at::arange(5).add(1);
  const fs::path other = write_checkpoint(folder / "other.ckpt", c);
  const auto swap_in = [&](const fs::path& from) {
    fs::copy_file(from / "state.safetensors", path / "state.safetensors", fs::copy_options::overwrite_existing);
  };
  // Generators that drew nothing between two steps have one state.
  swap_in(same);
  CHECK(verify_checkpoint(path).ok());
  swap_in(other);
  CHECK(fs::file_size(path / "state.safetensors") == fs::file_size(same / "state.safetensors"));
  CHECK_THAT(verify_checkpoint(path).describe(),
             ContainsSubstring("state.safetensors: 'rng' has changed since it was written"));
  CHECK_THAT(read_error(path), ContainsSubstring("state.safetensors: 'rng' has changed since it was written"));
}

TEST_CASE("F10 names of tensors that changed places in the header are detected") {
  TemporaryFolder folder;
  CheckpointContent c;
  c.module = {{"layer.0", at::arange(4)}, {"layer.1", at::full({4}, 7)}};
  const fs::path path = write_checkpoint(folder / "a.ckpt", c);
  std::string text = read_text(path / "model.safetensors");
  const size_t first = text.find("layer.0"), second = text.find("layer.1");
  std::swap(text[first + 6], text[second + 6]);
  write_text(path / "model.safetensors", text);
  CHECK(read_safetensors(path / "model.safetensors").tensors.size() == 2);  // the format itself sees nothing
  CHECK_THAT(read_error(path), ContainsSubstring("model.safetensors: '(header)' has changed since it was written"));
}

TEST_CASE("F11 what is in the place of a file is refused with what it looks like, and nothing hangs") {
  TemporaryFolder folder;
  const fs::path path = small_checkpoint(folder.path());
  const std::pair<std::string, const char*> contents[] = {
      {"", "empty"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"},
      {"PK\x03\x04 archive/data.pkl", "zip archive"},
      {"\x80\x02}q\x01X\x03zzz", "Python pickle"},
      {"\x89PNG\r\n\x1a\n....", "PNG image"}};
  for (const char* name : kFiles) {
    const std::string whole = read_text(path / name);
    for (const auto& [text, expected] : contents) {
      write_text(path / name, text);
      CHECK_THAT(read_error(path), ContainsSubstring(name) && ContainsSubstring(expected));
      // Of the same size as the file was.
      std::string padded = text;
      padded.resize(whole.size(), '\n');
      if (text.empty() || text.size() > whole.size()) continue;
      write_text(path / name, padded);
      CHECK_THAT(read_error(path), ContainsSubstring(name) && ContainsSubstring(expected));
    }
    fs::remove(path / name);
    fs::create_directory(path / name);
    CHECK_THAT(read_error(path), ContainsSubstring(name) && ContainsSubstring("a folder"));
    fs::remove(path / name);
    fs::create_symlink(name, path / name);
    CHECK_THAT(read_error(path), ContainsSubstring(name) && ContainsSubstring("symbolic links"));
    fs::remove(path / name);
    REQUIRE(mkfifo((path / name).c_str(), 0600) == 0);
    CHECK_THAT(read_error(path), ContainsSubstring(name) && ContainsSubstring("not a regular file"));
    fs::remove(path / name);
    write_text(path / name, whole);
  }
  CHECK(verify_checkpoint(path).ok());
}

TEST_CASE("F11 what is not a checkpoint folder is refused with what it is") {
  TemporaryFolder folder;
  const auto refuse = [&](const char* name, const char* expected) {
    CHECK_THAT(read_error(folder / name), ContainsSubstring(expected));
    CHECK_THAT(verify_checkpoint(folder / name).describe(), ContainsSubstring(expected));
  };
  refuse("absent", "does not exist");
  write_text(folder / "file.ckpt", "PK\x03\x04zip");
  refuse("file.ckpt", "a checkpoint is a folder");
  refuse("file.ckpt", "zip archive");
  fs::create_symlink("nowhere", folder / "dangling");
  refuse("dangling", "is a link to a path that does not exist");
  fs::create_symlink("loop", folder / "loop");
  refuse("loop", "cannot be read");
  REQUIRE(mkfifo((folder / "fifo").c_str(), 0600) == 0);
  refuse("fifo", "not a checkpoint");
  fs::create_directory(folder / "empty");
  refuse("empty", "manifest.json is missing");
  fs::create_directories(folder / "run" / "checkpoints" / "last.ckpt");
  refuse("run", "is a folder of checkpoints, not a checkpoint; its newest is ");
  refuse("run", "run/checkpoints/last.ckpt");
  refuse("run/checkpoints", "run/checkpoints/last.ckpt");
}

namespace {

// A manifest with `change` made to its text and a hash that fits again.
void forge(const fs::path& path, std::string_view from, std::string_view to) {
  std::string text = read_text(path / "manifest.json");
  const size_t place = text.find(from);
  REQUIRE(place != std::string::npos);
  text.replace(place, from.size(), to);
  const size_t digits = text.size() - 20;
  text.replace(digits, 16, fulgur::detail::hash_text(fulgur::detail::hash_of(text.substr(0, digits))));
  write_text(path / "manifest.json", text);
}

}  // namespace

TEST_CASE("F12 a manifest that is forged throughout still points nowhere and allocates nothing") {
  TemporaryFolder folder;
  const auto refuse = [&](std::string_view from, std::string_view to, const char* expected) {
    const fs::path path = small_checkpoint(folder.path());
    forge(path, from, to);
    CHECK_THAT(read_error(path), ContainsSubstring(expected));
    CHECK_FALSE(verify_checkpoint(path).ok());
  };
  {
    // The forgery itself is sound: with nothing changed the checkpoint loads.
    const fs::path path = small_checkpoint(folder.path());
    forge(path, "\"epoch\"", "\"epoch\"");
    CHECK(verify_checkpoint(path).ok());
  }
  refuse("\"model.safetensors\"", "\"../model.safetensors\"", "which no checkpoint has");
  refuse("\"state.safetensors\"", "\"/etc/passwd\"", "which no checkpoint has");
  refuse("\"state.json\"", "\"state.safetensors\"", "does not name state.json");
  refuse("\"bytes\": ", "\"bytes\": 9223372036854775807, \"more\": ", "not the whole file");
  refuse("\"bytes\": ", "\"bytes\": -1, \"more\": ", "not a whole number");
  refuse("\"bytes\": ", "\"bytes\": 1.5, \"more\": ", "not a whole number");
  refuse("\"xxh3_64\": \"", "\"xxh3_64\": \"z", "16 hexadecimal digits");
  refuse("\"world_size\"", "\"worldsize\"", "a field is missing");
  refuse("\"epoch\": 3", "\"epoch\": \"3\"", "wrong type");
  refuse("\"fulgur-checkpoint\"", "\"fulgur-checkpint\"", "not the manifest of a checkpoint");
  refuse("\"origin\": {",
         std::string("\"deep\": ") + std::string(100000, '[') + std::string(100000, ']') + ", \"origin\": {",
         "nested too deeply");
}

TEST_CASE("F15 a checkpoint of a newer format is refused with the versions of both") {
  TemporaryFolder folder;
  const fs::path path = small_checkpoint(folder.path());
  forge(path, "\"fulgur\":\"" + fulgur_version() + "\"", "\"fulgur\":\"8.1.0\"");
  CHECK(read_checkpoint(path).origin.fulgur == "8.1.0");
  forge(path, "\"format_version\": 1", "\"format_version\": 4");
  CHECK_THAT(read_error(path),
             ContainsSubstring("format version 4, written by Fulgur 8.1.0") &&
                 ContainsSubstring(cat("this program (Fulgur ", fulgur_version(), ") reads format versions <= 3")));
  CHECK_THROWS_WITH(summarize_checkpoint(path), ContainsSubstring("format version 4"));
  forge(path, "\"format_version\": 4", "\"format_version\": 0");
  CHECK_THAT(read_error(path), ContainsSubstring("not the manifest of a checkpoint"));
}

}  // namespace corruption_test
