#include "saving/checkpoint_store.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <fstream>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "support/expect_error.h"
#include "support/fake_run_context.h"
#include "support/temporary_folder.h"
#include "support/thread_collectives.h"

namespace checkpoint_store_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using fulgur::detail::CheckpointStore;
namespace fs = std::filesystem;

namespace {

/// A store without a run: its state is one number.
class Stored : public fulgur::detail::CheckpointHost {
 public:
  explicit Stored(const fs::path& folder,
                  CheckpointStore::Settings settings = {.async = false, .stops_on_error = false},
                  Collectives* collectives = nullptr)
      : store(run, *this, settings) {
    run.folder = folder;
    run.collectives_of_ranks = collectives;
    if (run.is_global_zero()) fs::create_directories(run.checkpoint_dir());
  }

  CheckpointContent collect(bool weights_only, StateTree store_state) override {
    CheckpointContent content;
    content.module = {{"weight", at::full({4}, value)}};
    content.state["progress"] = run.now.state();
    content.state["weights_only"] = weights_only;
    content.state["checkpoints"] = std::move(store_state);
    content.optimizers = nullptr;
    return content;
  }
  std::function<void(CheckpointContent&)> late_values() override {
    return [](CheckpointContent&) {};
  }
  void write_rows(bool) override {}
  void settle_steps() override {}
  void when_rows_are_written(std::function<void()> then) override { then(); }
  void check_ranks() override {}
  std::unique_ptr<WholeParameters> whole_parameters() override { return nullptr; }
  bool divides_parameters() const override { return false; }
  bool saves_parts() const override { return false; }
  Tensor weight_norm() override { return {}; }
  std::optional<std::string> bad_weight() override { return bad; }
  bool take_save_done() override { return false; }
  bool allows_saves() const override { return allowed; }
  bool is_alone() const override { return alone; }
  void published(const CheckpointInfo& info) override { paths.push_back(info.path.filename().string()); }
  void failed(const CheckpointInfo&, const CheckpointError& error) override { failures.emplace_back(error.what()); }

  /// Saves now, after one more step.
  void save(CheckpointRequest request) {
    value = static_cast<double>(++run.now.global_step);
    request.owner = request.owner.empty() ? "keeper" : request.owner;
    store.request(std::move(request));
    store.act_on_requests();
  }
  void release(const std::string& name) { store.release(run.checkpoint_dir() / name, "keeper"); }
  /// Checkpoints on disk, without links.
  std::vector<std::string> on_disk() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(run.checkpoint_dir()))
      if (!fs::is_symlink(entry.path())) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  fulgur::test::FakeRunContext run;
  double value = 0;
  std::optional<std::string> bad;
  bool allowed = true, alone = false;
  std::vector<std::string> paths, failures;
  CheckpointStore store;
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("CheckpointStore: saves what was requested, and links the newest and the best") {
  const fulgur::test::TemporaryFolder folder;
  Stored stored(folder.path(), {.async = GENERATE(false, true), .stops_on_error = false});
  stored.save({.name = "a", .reason = "test", .best = true, .owner = "ranks", .score = 1.0});
  stored.save({.name = "b", .reason = "test"});
  stored.store.wait_for_save();
  CHECK(stored.paths == Names{"a.ckpt", "b.ckpt"});
  CHECK(stored.store.last()->filename().string() == "b.ckpt");
  CHECK(stored.store.best()->filename().string() == "a.ckpt");
  CHECK(fs::read_symlink(stored.run.checkpoint_dir() / "last.ckpt").string() == "b.ckpt");
  CHECK(stored.store.is_saved());
  CHECK(read_checkpoint(*stored.store.last()).module.front().second.sum().item<double>() == 8);
  ++stored.run.now.global_step;
  CHECK_FALSE(stored.store.is_saved());
}

TEST_CASE("CheckpointStore: weights alone are not the newest checkpoint") {
  const fulgur::test::TemporaryFolder folder;
  Stored stored(folder.path());
  stored.save({.name = "whole", .reason = "test"});
  stored.save({.name = "weights", .reason = "test", .weights_only = true});
  CHECK(stored.store.last()->filename().string() == "whole.ckpt");
  CHECK_FALSE(stored.store.is_saved());
  CHECK(stored.on_disk() == Names{"weights.ckpt", "whole.ckpt"});
}

TEST_CASE("CheckpointStore: removes what nobody keeps, once the next one is safe") {
  const fulgur::test::TemporaryFolder folder;
  Stored stored(folder.path());
  stored.save({.name = "a", .reason = "test"});
  stored.release("a.ckpt");
  stored.store.act_on_requests();
  // The newest stays.
  CHECK(stored.on_disk() == Names{"a.ckpt"});
  stored.save({.name = "b", .reason = "test", .keep = false});
  CHECK(stored.on_disk() == Names{"b.ckpt"});
  stored.save({.name = "c", .reason = "test", .best = true, .keep = false});
  stored.save({.name = "d", .reason = "test"});
  CHECK(stored.on_disk() == Names{"c.ckpt", "d.ckpt"});
}

TEST_CASE("CheckpointStore: of two rankings, `best` follows the one by a metric, and of those the first") {
  const fulgur::test::TemporaryFolder folder;
  Stored stored(folder.path());
  stored.save({.name = "newest", .reason = "test", .best = true, .owner = "newest"});
  CHECK(stored.store.best()->filename().string() == "newest.ckpt");
  stored.save({.name = "by_loss", .reason = "test", .best = true, .owner = "loss", .score = 0.5});
  stored.save({.name = "by_accuracy", .reason = "test", .best = true, .owner = "accuracy", .score = 0.9});
  stored.save({.name = "newest2", .reason = "test", .best = true, .owner = "newest"});
  CHECK(stored.store.best()->filename().string() == "by_loss.ckpt");
}

TEST_CASE("CheckpointStore: weights that are not finite are not written") {
  const fulgur::test::TemporaryFolder folder;
  Stored stored(folder.path());
  stored.bad = "layer.weight";
  stored.save({.name = "bad", .reason = "test"});
  CHECK(stored.on_disk().empty());
  REQUIRE(stored.failures.size() == 1);
  CHECK_THAT(stored.failures.front(), ContainsSubstring("'layer.weight' is not finite"));
}

TEST_CASE("CheckpointStore: a save that fails is reported, and ends the run only if asked to") {
  const bool stops = GENERATE(false, true);
  const fulgur::test::TemporaryFolder folder;
  Stored stored(folder.path(), {.async = false, .stops_on_error = stops});
  const CheckpointRequest into_a_file{.name = stored.run.folder / "file" / "a", .reason = "test", .owner = "keeper"};
  std::ofstream(stored.run.folder / "file") << "not a folder";
  if (stops)
    CHECK_THROWS_AS(stored.save(into_a_file), CheckpointError);
  else
    CHECK_NOTHROW(stored.save(into_a_file));
  CHECK(stored.failures.size() == 1);
  CHECK_FALSE(stored.store.is_saved());
  CHECK_FALSE(stored.store.last().has_value());
}

TEST_CASE("CheckpointStore: saves nothing once a policy has ended the run, or the other ranks take no part") {
  const fulgur::test::TemporaryFolder folder;
  Stored stored(folder.path());
  const bool ended_by_policy = GENERATE(false, true);
  (ended_by_policy ? stored.allowed : stored.alone) = !ended_by_policy;
  stored.save({.name = "a", .reason = "test"});
  CHECK(stored.on_disk().empty());
  CHECK_FALSE(stored.store.has_requests());
}

TEST_CASE("CheckpointStore: a resumed run knows what its checkpoint's run kept") {
  const fulgur::test::TemporaryFolder folder;
  Stored before(folder.path());
  before.save({.name = "a", .reason = "test", .best = true, .score = 1.0});
  before.save({.name = "b", .reason = "test", .keep = false});
  // Made after the checkpoint that the run resumes from: it is made again.
  before.save({.name = "weights", .reason = "test", .weights_only = true});
  Stored after(folder.path());
  after.run.now = before.run.now;
  const fs::path resumed = before.run.checkpoint_dir() / "b.ckpt";
  const CheckpointContent content = read_checkpoint(resumed);
  after.store.resumed_from({.path = resumed, .same_run = true}, content.origin, content.state.at("checkpoints"));
  after.store.publish_resumed();
  CHECK(after.paths == Names{"b.ckpt"});
  CHECK((after.store.last() == resumed));
  CHECK(after.store.best()->filename().string() == "a.ckpt");
  CHECK(after.store.is_saved());
  CHECK(after.on_disk() == Names{"a.ckpt", "b.ckpt"});
  // `b` was kept by nobody: it goes with the next.
  after.save({.name = "c", .reason = "test"});
  CHECK(after.on_disk() == Names{"a.ckpt", "c.ckpt"});
  after.release("a.ckpt");
  after.save({.name = "d", .reason = "test", .best = true, .score = 2.0});
  CHECK(after.on_disk() == Names{"c.ckpt", "d.ckpt"});
}

TEST_CASE("CheckpointStore: a checkpoint of another run stays, also under a name that this run has used") {
  const fulgur::test::TemporaryFolder folder, other_folder, shared;
  const fs::path path = shared / "a.ckpt";
  Stored before(folder.path());
  before.save({.name = shared / "a", .reason = "test"});
  before.save({.name = "b", .reason = "test"});
  CHECK(before.store.owns(path));
  const fs::path resumed = before.run.checkpoint_dir() / "b.ckpt";
  const CheckpointContent content = read_checkpoint(resumed);
  const bool replaced = GENERATE(false, true);
  if (replaced) {
    remove_checkpoint(path);
    Stored other(other_folder.path());
    other.save({.name = shared / "a", .reason = "test"});
    CHECK(other.store.owns(path));
  }
  Stored after(folder.path());
  after.run.now = before.run.now;
  after.store.resumed_from({.path = resumed, .same_run = true}, content.origin, content.state.at("checkpoints"));
  after.store.publish_resumed();
  CHECK(after.store.owns(path) != replaced);
  after.release(path);
  after.save({.name = "c", .reason = "test"});
  CHECK(fs::exists(path) == replaced);
}

TEST_CASE("CheckpointStore: rank 0 writes, and all ranks report the same") {
  const bool async = GENERATE(false, true);
  const bool fails = GENERATE(false, true);
  const fulgur::test::TemporaryFolder folder;
  std::ofstream(folder.path() / "file") << "not a folder";
  std::vector<std::string> seen(3);
  fulgur::test::run_ranks(3, [&](Collectives& collectives) {
    Stored stored(folder.path(), {.async = async, .stops_on_error = false}, &collectives);
    collectives.barrier("the folder");
    stored.save({.name = fails ? folder.path() / "file" / "a" : fs::path("a"), .reason = "test"});
    stored.store.wait_for_save();
    std::string& own = seen[static_cast<size_t>(collectives.rank())];
    for (const std::string& path : stored.paths) own += path;
    for (const std::string& failure : stored.failures) own += failure;
  });
  CHECK(seen[0] == seen[1]);
  CHECK(seen[1] == seen[2]);
  if (fails)
    CHECK_THAT(seen[0], ContainsSubstring("file"));
  else
    CHECK(seen[0] == "a.ckpt");
}

}  // namespace checkpoint_store_test
