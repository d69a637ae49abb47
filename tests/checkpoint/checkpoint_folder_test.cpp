#include "fulgur/checkpoint/checkpoint_folder.h"

#include <sys/stat.h>

#include <ATen/ops/arange.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>

#include "checkpoint/fault_calls.h"
#include "io/hash.h"
#include "support/temporary_folder.h"

namespace checkpoint_folder_test {

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
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"})
    CHECK(fs::exists(path / name));
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

TEST_CASE("what a checkpoint comes from comes back") {
  TemporaryFolder folder;
  CheckpointContent c = content();
  c.origin = {.config_hash = "ab12",
              .world_size = 4,
              .device = "cuda NVIDIA H200",
              .threads = 3,
              .deterministic = true,
              .save_counter = 7,
              .run = "/runs/version_0/checkpoints",
              .fulgur = "9.9.9",
              .libtorch = "2.99"};
  const fs::path path = write_checkpoint(folder / "a.ckpt", c);
  CHECK(read_checkpoint(path).origin == c.origin);
  CHECK(summarize_checkpoint(path).origin == c.origin);
  CHECK(content().origin.fulgur == fulgur_version());
  CHECK(content().origin.libtorch.starts_with("2."));
}

TEST_CASE(
    "weights and state are read without the optimizers, and without their file if only what is needed is verified") {
  TemporaryFolder folder;
  const fs::path path = write_checkpoint(folder / "a.ckpt", content());
  CHECK(read_checkpoint(path, CheckpointParts::weights_and_state).optimizers.is_null());
  fs::remove(path / "optimizer.safetensors");
  CHECK_THROWS_WITH(read_checkpoint(path, CheckpointParts::weights_and_state),
                    ContainsSubstring("optimizer.safetensors is missing"));
  CHECK(read_checkpoint(path, CheckpointParts::weights_and_state, Verify::needed).module.size() == 1);
  CHECK(verify_checkpoint(path, Verify::needed).ok());
  CHECK_FALSE(verify_checkpoint(path).ok());
  CHECK_THROWS_WITH(read_checkpoint(path, CheckpointParts::all, Verify::needed),
                    ContainsSubstring("optimizer.safetensors"));
}

TEST_CASE("a checkpoint of only weights, and one without any tensor, come back") {
  TemporaryFolder folder;
  CheckpointContent c = content();
  c.optimizers = nullptr;
  const fs::path weights = write_checkpoint(folder / "weights.ckpt", c);
  CHECK(summarize_checkpoint(weights).weights_only);
  CHECK(read_checkpoint(weights).optimizers.is_null());
  const fs::path empty = write_checkpoint(folder / "empty.ckpt", {});
  CHECK(read_checkpoint(empty).module.empty());
  CHECK(read_checkpoint(empty).state.as_map().empty());
  CHECK_FALSE(summarize_checkpoint(empty).weights_only);
  CHECK(summarize_checkpoint(empty).global_step == 0);
}

TEST_CASE("a state that is one of the format's own words, or no map at all, comes back") {
  TemporaryFolder folder;
  CheckpointContent c;
  c.state = StateTree::map({{"__float__", "nan"}});
  c.optimizers = StateTree::map({{"__tensor__", at::arange(3)}});
  const CheckpointContent back = read_checkpoint(write_checkpoint(folder / "a.ckpt", c));
  CHECK(back.state.at("__float__").as_string() == "nan");
  CHECK(back.optimizers.at("__tensor__").tensor().equal(at::arange(3)));
  c.state = StateTree::List{1, at::arange(2)};
  CHECK(read_checkpoint(write_checkpoint(folder / "b.ckpt", c)).state.as_list()[1].tensor().equal(at::arange(2)));
}

TEST_CASE("the hash of a file is that of its bytes, as other programs compute it") {
  TemporaryFolder folder;
  const fs::path path = write_checkpoint(folder / "a.ckpt", content());
  const std::string manifest = read_text(path / "manifest.json");
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json", "state.safetensors"})
    CHECK_THAT(manifest, ContainsSubstring(fulgur::detail::hash_text(fulgur::detail::hash_of(read_text(path / name)))));
  // xxhsum -H3 of the empty input.
  CHECK(fulgur::detail::hash_text(fulgur::detail::hash_of("")) == "2d06800538d394c2");
}

TEST_CASE("a bare name is a checkpoint in the working folder") {
  TemporaryFolder folder;
  const int status = in_child([&] {
    fs::current_path(folder.path());
    const fs::path path = write_checkpoint("a.ckpt", content());
    link_checkpoint("last.ckpt", path);
    return path == "a.ckpt" && fs::read_symlink("last.ckpt") == "a.ckpt" &&
                   read_checkpoint("last.ckpt").module.size() == 1
               ? 42
               : 1;
  });
  CHECK(exited(status, 42));
  CHECK(entries(folder.path()) == 2);
}

TEST_CASE("Python reads every file of a checkpoint") {
  const char* python = std::getenv("FULGUR_TEST_PYTHON");
  if (python == nullptr)
    SKIP("FULGUR_TEST_PYTHON names no Python with safetensors (scripts/test.sh makes one beside the CUDA LibTorch)");
  TemporaryFolder folder;
  const fs::path path = write_checkpoint(folder / "a.ckpt", content());
  write_text(folder / "read.py",
             "import json, os, sys\n"
             "from safetensors.numpy import load_file\n"
             "os.chdir(sys.argv[1])\n"
             "assert load_file('model.safetensors')['w'].tolist() == [0, 1, 2, 3]\n"
             "assert load_file('optimizer.safetensors')['0.momentum'].dtype == 'int64'\n"
             "state = json.load(open('state.json'))\n"
             "assert state['state']['progress'] == {'epoch': 3, 'global_step': 12}\n"
             "assert load_file('state.safetensors')[state['state']['rng']['__tensor__']].shape == (9,)\n"
             "files = json.load(open('manifest.json'))['files']\n"
             "assert all(os.path.getsize(name) == file['bytes'] == sum(part['bytes'] for part in file['parts']) for "
             "name, file in files.items())\n");
  CHECK(std::system((std::string(python) + " " + (folder / "read.py").string() + " " + path.string()).c_str()) == 0);
}

TEST_CASE("F46 files are 0644 and folders 0755, less the umask") {
  TemporaryFolder folder;
  const auto modes = [&](mode_t mask, const char* name) {
    const mode_t before = umask(mask);
    const fs::path path = write_checkpoint(folder / name, content());
    umask(before);
    std::set<unsigned> seen{static_cast<unsigned>(fs::status(path).permissions())};
    for (const auto& entry : fs::directory_iterator(path))
      seen.insert(static_cast<unsigned>(entry.status().permissions()));
    return seen;
  };
  CHECK(modes(022, "a.ckpt") == std::set<unsigned>{0755, 0644});
  CHECK(modes(077, "b.ckpt") == std::set<unsigned>{0700, 0600});
}

}  // namespace checkpoint_folder_test
