#include "fulgur/core/state/state_tree.h"

#include <ATen/ops/full.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <type_traits>

#include "fulgur/core/state/late_number.h"
#include "fulgur/core/state/progress.h"
#include "fulgur/core/text/errors.h"

namespace state_tree_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("StateTree keeps types apart and says what it found") {
  StateTree tree;
  tree["a"]["b"] = 3;
  tree["big"] = UINT64_MAX;
  tree["x"] = 0.5;
  CHECK(tree.at("a").at("b").as_int() == 3);
  CHECK(tree.at("a").at("b").as_double() == 3.0);
  CHECK(tree.at("a").at("b").as_uint() == 3);
  CHECK(tree.at("big").as_uint() == UINT64_MAX);
  CHECK_THROWS_WITH(tree.at("big").as_int(), ContainsSubstring("expected an integer, got unsigned int"));
  CHECK_THROWS_WITH(tree.at("x").as_string(), ContainsSubstring("expected a string, got float"));
  CHECK_THROWS_AS(tree.at("missing"), CheckpointError);
}

TEST_CASE("StateTree: what a loop reads of a temporary outlives it") {
  const auto made = [] {
    return StateTree::map(
        {{"map", StateTree::map({{"a long enough name for the heap", 1}})}, {"list", StateTree::List{2, 3}}});
  };
  std::string names;
  for (const auto& [name, value] : made().as_map()) names += name + ";";
  CHECK(names == "list;map;");
  for (const auto& [name, value] : made().at("map").as_map()) names = name;
  CHECK(names == "a long enough name for the heap");
  int64_t sum = 0;
  for (const StateTree& item : made().at("list").as_list()) sum += item.as_int();
  CHECK(sum == 5);
  // No sanitizer is needed to see it: a temporary gives values, not references.
  static_assert(!std::is_reference_v<decltype(made().as_map())> && !std::is_reference_v<decltype(made().as_list())>);
  static_assert(!std::is_reference_v<decltype(made().at(""))> && !std::is_reference_v<decltype(made().tensor())>);
  static_assert(!std::is_reference_v<decltype(made().as_string())>);
}

TEST_CASE("Progress survives its state, and a damaged state changes nothing") {
  Progress progress;
  progress.epoch = 2;
  progress.global_step = 77;
  progress.batches.completed = 5;
  progress.batches_total.ready = 99;
  Progress copy;
  copy.load_state(progress.state());
  CHECK(copy.epoch == 2);
  CHECK(copy.global_step == 77);
  CHECK(copy.batches.completed == 5);
  CHECK(copy.batches_total.ready == 99);
  StateTree damaged = progress.state();
  damaged.as_map().erase("epochs");
  damaged["epoch"] = 9;
  CHECK_THROWS_AS(copy.load_state(damaged), CheckpointError);
  CHECK(copy.epoch == 2);
}

TEST_CASE("a late number on the CPU is a number; one that is still a tensor is read where a number is needed") {
  CHECK(late_number(at::full({}, 7, at::kInt)).holds<int64_t>());
  CHECK(late_number(at::full({1}, 0.5)).as_double() == 0.5);
  CHECK(late_number(at::full({}, true, at::kBool)).as_bool());
  // As one of a device is, until a checkpoint has copied it.
  const auto pending = [](const Tensor& scalar) { return StateTree::map({{"__number__", scalar}}); };
  CHECK(pending(at::full({}, 7, at::kLong)).as_int() == 7);
  CHECK(pending(at::full({}, 7, at::kLong)).as_uint() == 7);
  CHECK(pending(at::full({}, 0.5)).as_double() == 0.5);
  CHECK(pending(at::full({}, true, at::kBool)).as_bool());
  CHECK_THROWS_AS(pending(at::full({}, 0.5)).as_int(), CheckpointError);
  CHECK_FALSE(read_late_number(StateTree(at::full({}, 0.5))));
  CHECK_FALSE(read_late_number(StateTree::map({{"__number__", 3}})));
  CHECK_FALSE(read_late_number(pending(at::full({2}, 0.5))));
  CHECK_THROWS_AS(late_number(at::full({2}, 0.5)), Error);
}

}  // namespace state_tree_test
