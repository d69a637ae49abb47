#include "checkpoint_name.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/core/text/errors.h"

namespace checkpoint_name_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

namespace {

std::string fill(std::string_view pattern, bool names = true) {
  return fulgur::detail::fill_checkpoint_name(pattern, names, [](std::string_view field) -> std::optional<double> {
    if (field == "epoch") return 3;
    if (field == "step") return 400;
    if (field == "val_loss" || field == "val/loss") return 0.3149;
    return std::nullopt;
  });
}

}  // namespace

TEST_CASE("checkpoint names follow Lightning's templates") {
  CHECK(fill("{epoch}-{step}") == "epoch=3-step=400");
  CHECK(fill("{epoch:03d}-{val_loss:.2f}") == "epoch=003-val_loss=0.31");
  CHECK(fill("e{epoch}-{val/loss:.3f}", false) == "e3-0.315");
  CHECK(fill("{missing}") == "missing=0");
}

TEST_CASE("F44 a checkpoint name never leaves its folder") {
  CHECK(fill("../../etc/{epoch}") == "_._.._etc_epoch=3");
  CHECK(fill("{val/loss}").find('/') == std::string::npos);
  CHECK(fill(std::string(5000, 'a')).size() <= 200);
  CHECK(fill("a\nb") == "a_b");
}

TEST_CASE("an invalid template is refused when the callback is created") {
  CHECK_THROWS_WITH(fill("{epoch"), ContainsSubstring("without '}'"));
  CHECK_THROWS_WITH(fill("{epoch:%n}"), ContainsSubstring("unknown format"));
  ModelCheckpoint::Options options;
  options.filename = "{epoch:x}";
  CHECK_THROWS_AS(ModelCheckpoint(options), ConfigError);
}

TEST_CASE("triggers of ModelCheckpoint exclude each other, and top-k needs a monitor") {
  ModelCheckpoint::Options options;
  options.every_n_epochs = 1;
  options.every_n_train_steps = 5;
  CHECK_THROWS_WITH(ModelCheckpoint(options), ContainsSubstring("exclude each other"));
  ModelCheckpoint::Options ranked;
  ranked.save_top_k = 3;
  CHECK_THROWS_WITH(ModelCheckpoint(ranked), ContainsSubstring("needs a monitor"));
  ModelCheckpoint::Options timed;
  timed.train_time_interval = Interval{3, Interval::Unit::epochs};
  CHECK_THROWS_WITH(ModelCheckpoint(timed), ContainsSubstring("must be a time"));
}

}  // namespace checkpoint_name_test
