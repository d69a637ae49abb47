// The table of what a checkpoint holds against what is saved and what docs/checkpoints.md says.
#include "checkpointing/checkpoint_table.h"

#include <catch2/catch_test_macros.hpp>
#include <set>
#include <sstream>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "support/source_text.h"
#include "trainer/boring.h"

namespace checkpoint_table_test {

using namespace fulgur;
using namespace fulgur::test;
using Keys = std::set<std::string>;

namespace {

Keys keys_of(const std::function<bool(const fulgur::detail::CheckpointEntry&)>& wanted) {
  Keys keys;
  for (const fulgur::detail::CheckpointEntry& entry : fulgur::detail::checkpoint_entries())
    if (wanted(entry)) keys.emplace(entry.key);
  return keys;
}

Keys keys_of(const StateTree& state) {
  Keys keys;
  for (const auto& [key, value] : state.as_map()) keys.insert(key);
  return keys;
}

}  // namespace

TEST_CASE("each key of a checkpoint is in the table once, and is loaded unless others read it") {
  const auto entries = fulgur::detail::checkpoint_entries();
  CHECK(keys_of([](const auto&) { return true; }).size() == entries.size());
  for (const fulgur::detail::CheckpointEntry& entry : entries) {
    CAPTURE(entry.key);
    CHECK((entry.save == nullptr) == (entry.key == "imported"));  // `import` writes it
    CHECK((entry.of_rank == nullptr || entry.per_rank));
    CHECK((entry.load == nullptr) == (entry.phase == fulgur::detail::LoadPhase::facts));
  }
}

TEST_CASE("a checkpoint has the keys of the table, and one of weights only has fewer") {
  for (const bool weights_only : {false, true}) {
    CAPTURE(weights_only);
    const TemporaryFolder folder;
    ModelCheckpoint::Options saving;
    saving.save_weights_only = weights_only;
    saving.filename = "saved";
    TrainerComponents components;
    components.add(std::make_shared<ModelCheckpoint>(saving));
    const FitReport report =
        Trainer(quiet(folder), components).fit(std::make_shared<SelfPlanned>(), regression_data(8, 0));
    const StateTree state = read_checkpoint(report.run_dir / "checkpoints/saved.ckpt").state;
    CHECK(keys_of(state) == keys_of([&](const auto& entry) {
            return entry.save && !entry.own_file && (entry.with_weights || !weights_only);
          }));
  }
}

TEST_CASE("docs/checkpoints.md has a row for each key of the state") {
  const std::string docs = text_of("docs/checkpoints.md");
  const std::string head = "\n| key | what it holds |\n|---|---|\n";
  const size_t begin = docs.find(head);
  REQUIRE(begin != std::string::npos);
  std::istringstream lines(docs.substr(begin + head.size()));
  Keys named;
  for (std::string line; std::getline(lines, line) && line.starts_with("| `");)
    named.insert(line.substr(3, line.find('`', 3) - 3));
  Keys expected = keys_of([](const auto& entry) { return !entry.own_file; });
  expected.insert("ranks");
  CHECK(named == expected);
}

}  // namespace checkpoint_table_test
