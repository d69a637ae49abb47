#include "fulgur/core/state_tree.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/errors.h"
#include "fulgur/core/progress.h"

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
