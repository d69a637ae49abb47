#include "fulgur/checkpoint/checkpoint_folder.h"

#include <ATen/ops/arange.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>

#include "fulgur/core/errors.h"
#include "support/temporary_folder.h"

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

CheckpointContent content() {
  CheckpointContent c;
  c.module = {{"w", at::arange(4).to(at::kFloat)}};
  c.optimizers = StateTree::List{StateTree::map({{"class", "SGD"}, {"momentum", at::arange(4)}})};
  c.state["progress"] = StateTree::map({{"global_step", 12}, {"epoch", 3}});
  c.state["rng"] = at::arange(9);
  return c;
}

size_t entries(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("a checkpoint folder comes back with every value exactly") {
  TemporaryFolder folder;
  CheckpointContent c = content();
  c.state["big"] = UINT64_MAX;
  c.state["negative"] = int64_t{-5};
  c.state["third"] = 1.0 / 3;
  c.state["one"] = 1.0;
  c.state["nan"] = std::nan("");
  c.state["inf"] = -std::numeric_limits<double>::infinity();
  c.state["text"] = "ü\n\"";
  c.state["none"] = nullptr;
  c.state["list"] = StateTree::List{1, true, 0.5};
  const fs::path path = write_checkpoint(folder / "epoch=3-step=12.ckpt", c);
  CHECK(path == folder / "epoch=3-step=12.ckpt");
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) CHECK(fs::exists(path / name));
  const CheckpointContent back = read_checkpoint(path);
  CHECK(back.module[0].second.equal(c.module[0].second));
  CHECK(back.optimizers.as_list()[0].at("momentum").tensor().equal(at::arange(4)));
  CHECK(back.state.at("rng").tensor().equal(at::arange(9)));
  CHECK(back.state.at("big").as_uint() == UINT64_MAX);
  CHECK(back.state.at("negative").as_int() == -5);
  CHECK(back.state.at("third").as_double() == 1.0 / 3);
  CHECK(back.state.at("one").holds<double>());
  CHECK(std::isnan(back.state.at("nan").as_double()));
  CHECK(back.state.at("inf").as_double() == -std::numeric_limits<double>::infinity());
  CHECK(back.state.at("text").as_string() == "ü\n\"");
  CHECK(back.state.at("none").is_null());
  CHECK(back.state.at("list").as_list()[1].as_bool());
  CHECK(summarize_checkpoint(path).global_step == 12);
  CHECK(entries(folder.path()) == 1);  // nothing temporary is left
}

TEST_CASE("a name is never reused, links are replaced") {
  TemporaryFolder folder;
  const fs::path first = write_checkpoint(folder / "a.ckpt", content());
  const fs::path second = write_checkpoint(folder / "a.ckpt", content());
  CHECK(second.filename() == "a-v1.ckpt");
  CHECK(write_checkpoint(folder / "a.ckpt", content()).filename() == "a-v2.ckpt");
  link_checkpoint(folder / "last.ckpt", first);
  link_checkpoint(folder / "last.ckpt", second);
  CHECK(fs::read_symlink(folder / "last.ckpt") == "a-v1.ckpt");
  CHECK(read_checkpoint(folder / "last.ckpt").module.size() == 1);
  remove_checkpoint(first);
  CHECK_FALSE(fs::exists(first));
  CHECK(entries(folder.path()) == 3);
}

TEST_CASE("leftovers of a writer that died are removed, checkpoints are not") {
  TemporaryFolder folder;
  write_checkpoint(folder / "a.ckpt", content());
  fs::create_directories(folder / ".b.ckpt.tmp-1234-1");
  test::write_text(folder / ".b.ckpt.tmp-1234-1/model.safetensors", "half");
  remove_leftovers(folder.path());
  CHECK(entries(folder.path()) == 1);
  CHECK(fs::exists(folder / "a.ckpt"));
}

TEST_CASE("F7 a folder that cannot be written is an error with path and reason, and leaves nothing") {
  TemporaryFolder folder;
  test::write_text(folder / "file", "");
  CHECK_THROWS_WITH(write_checkpoint(folder / "file/a.ckpt", content()), ContainsSubstring("file"));
  CheckpointContent bad = content();
  bad.state["text"] = "\xff\xfe";
  CHECK_THROWS_WITH(write_checkpoint(folder / "b.ckpt", bad), ContainsSubstring("UTF-8"));
  CHECK(entries(folder.path()) == 1);
}

TEST_CASE("F11 F15 what is no checkpoint, or one of a newer version, is refused with what it is") {
  TemporaryFolder folder;
  CHECK_THROWS_WITH(read_checkpoint(folder / "absent"), ContainsSubstring("does not exist"));
  test::write_text(folder / "file.ckpt", "x");
  CHECK_THROWS_WITH(read_checkpoint(folder / "file.ckpt"), ContainsSubstring("a checkpoint is a folder"));
  const fs::path path = write_checkpoint(folder / "a.ckpt", content());
  std::string text = test::read_text(path / "state.json");
  text.replace(text.find("\"format_version\": 1"), 19, "\"format_version\": 9");
  test::write_text(path / "state.json", text);
  CHECK_THROWS_WITH(read_checkpoint(path), ContainsSubstring("format version 9; this program reads up to 1"));
  test::write_text(path / "state.json", "{");
  CHECK_THROWS_WITH(read_checkpoint(path), ContainsSubstring("damaged"));
  fs::remove(path / "state.json");
  CHECK_THROWS_WITH(read_checkpoint(path), ContainsSubstring("state.json"));
}
