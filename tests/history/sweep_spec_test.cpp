// Reading a sweep file: what is accepted, and what each mistake says.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/text/errors.h"
#include "history/sweep_plan.h"

namespace sweep_spec_test {

using namespace fulgur;
using namespace fulgur::test;
using namespace fulgur::history;
using Catch::Matchers::ContainsSubstring;

namespace {

std::string error_of(const std::string& yaml) {
  try {
    spec_of(yaml);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

const std::string kGrid = "method: grid\nmetric: val_loss\n";
const std::string kRandom = "method: random\nmetric: val_loss\ntrials: 2\n";

}  // namespace

TEST_CASE("sweep file: all keys") {
  const SweepSpec spec = spec_of(R"(
method: random
trials: 20
seed: 7
metric: val_acc
mode: max
value: last
space:
  optimizer.lr: {min: 1e-4, max: 0.1, scale: log}
  model.hidden: [[32], [64]]
  data.batch_size: {min: 16, max: 128, integer: true, step: 16}
seeds: [3, 5]
halving: {factor: 4, min_steps: 10, promotion: async}
)");
  CHECK(spec.method == SweepMethod::random);
  CHECK(spec.trials == 20);
  CHECK(spec.seed == 7);
  CHECK(spec.metric == "val_acc");
  CHECK(spec.mode == MonitorMode::max);
  CHECK(spec.value == CountedValue::last);
  REQUIRE(spec.space.axes.size() == 3);
  CHECK(spec.space.axes[0].range->scale == RangeScale::log);
  CHECK(spec.space.axes[0].range->min == 1e-4);
  CHECK(spec.space.axes[1].values.size() == 2);
  CHECK(spec.space.axes[2].range->integer);
  CHECK(spec.space.axes[2].range->step == 16.0);
  CHECK(spec.seeds.values == std::vector<uint64_t>{3, 5});
  CHECK(spec.halving->factor == 4);
  CHECK(spec.halving->min_steps == 10);
  CHECK(spec.halving->promotion == Promotion::async);
  CHECK(spec_of(kGrid + "space: {a: [1]}\nseeds: 3").seeds.values == std::vector<uint64_t>{1, 2, 3});
}

TEST_CASE("sweep file: mistakes are reported with their place and a suggestion") {
  CHECK_THAT(error_of("method: grid\nmetrik: x\nspace: {a: [1]}"), ContainsSubstring("did you mean 'metric'?"));
  CHECK_THAT(error_of("method: grid\nmetrik: x\nspace: {a: [1]}"), ContainsSubstring("s.yaml:2:1"));
  CHECK_THAT(error_of("method: gird\nmetric: x\nspace: {a: [1]}"), ContainsSubstring("grid"));
  CHECK_THAT(error_of("metric: x\nspace: {a: [1]}"), ContainsSubstring("method"));
  CHECK_THAT(error_of(kRandom + "space: {a: {min: 0, max: 1, scal: log}}"), ContainsSubstring("did you mean 'scale'?"));
  CHECK_THAT(error_of(kRandom + "space: {a: {min: 0, max: 1, scale: log}}"), ContainsSubstring("min must be above 0"));
  CHECK_THAT(error_of(kRandom + "space: {a: {min: 1, max: 1}}"), ContainsSubstring("min must be below max"));
  CHECK_THAT(error_of(kRandom + "space: {a: {min: 1}}"), ContainsSubstring("space.a.max"));
  CHECK_THAT(error_of(kRandom + "space: {a: {min: 0.5, max: 2, integer: true}}"), ContainsSubstring("whole numbers"));
  CHECK_THAT(error_of(kRandom + "space: {a: {min: 1, max: 2, scale: log, step: 1}}"), ContainsSubstring("step is for"));
  CHECK_THAT(error_of(kRandom + "space: {a: {min: 1, max: 2, step: 0}}"), ContainsSubstring("step must be above 0"));
  CHECK_THAT(error_of(kRandom + "space: {a: 3}"), ContainsSubstring("takes a list of values, or a range"));
  CHECK_THAT(error_of(kGrid + "space: {a: []}"), ContainsSubstring("at least one value"));
  CHECK_THAT(error_of(kGrid + "space: {a: [1, 2, 1]}"), ContainsSubstring("may occur once"));
  CHECK_THAT(error_of(kGrid + "space: {}"), ContainsSubstring("at least one option"));
  CHECK_THAT(error_of(kGrid + "space: {a: {min: 0, max: 1}}"), ContainsSubstring("a grid takes lists"));
  CHECK_THAT(error_of(kGrid + "trials: 3\nspace: {a: [1]}"), ContainsSubstring("a grid has all its points"));
  CHECK_THAT(error_of("method: random\nmetric: x\nspace: {a: [1, 2]}"), ContainsSubstring("number of its points"));
  CHECK_THAT(error_of("method: random\ntrials: 3\nmetric: x\nspace: {a: [1, 2]}"), ContainsSubstring("has only 2"));
  CHECK_THAT(error_of(kGrid + "space: {a: [1]}\nseeds: 0"), ContainsSubstring("at least 1"));
  CHECK_THAT(error_of(kGrid + "space: {a: [1]}\nseeds: [1, 1]"), ContainsSubstring("a seed may occur once"));
  CHECK_THAT(error_of(kGrid + "space: {data.fold: [1/2]}\nfolds: 2"), ContainsSubstring("remove one of the two"));
  CHECK_THAT(error_of(kGrid + "space: {a: [1]}\nfolds: 1"), ContainsSubstring("folds"));
  CHECK(error_of(kGrid + "space: {}\nfolds: 5").empty());
  CHECK(error_of(kGrid + "space: {}\nseeds: 5").empty());
  CHECK_THAT(error_of(kGrid + "space: {seed_everything: [1]}\nseeds: 2"), ContainsSubstring("remove one of the two"));
  CHECK_THAT(error_of(kGrid + "space: {trainer.default_root_dir: [x]}"), ContainsSubstring("sets this option itself"));
  CHECK_THAT(error_of(kGrid + "space: {trainer.max_epochs: [1, 2]}\nhalving: {min_epochs: 1}"),
             ContainsSubstring("the same length"));
  CHECK_THAT(error_of(kGrid + "space: {a: [1]}\nhalving: {factor: 1, min_epochs: 1}"),
             ContainsSubstring("halving.factor"));
  CHECK_THAT(error_of(kGrid + "space: {a: [1]}\nhalving: {}"), ContainsSubstring("one of min_epochs and min_steps"));
  CHECK_THAT(error_of(kGrid + "space: {a: [1]}\nhalving: {min_epochs: 1, min_steps: 1}"),
             ContainsSubstring("one of min_epochs and min_steps"));
  CHECK_THAT(error_of("3"), ContainsSubstring("a sweep file is a map"));
}

TEST_CASE("sweep file: a sweep has at most ten thousand trials") {
  std::string values = "[0";
  for (int i = 1; i < 200; ++i) values += "," + std::to_string(i);
  values += "]";
  CHECK_THAT(error_of(kGrid + "space: {a: " + values + ", b: " + values + "}"),
             ContainsSubstring("at most 10000 trials"));
  CHECK_THAT(error_of(kGrid + "space: {a: " + values + "}\nseeds: 100"), ContainsSubstring("at most 10000 trials"));
  CHECK(error_of(kGrid + "space: {a: " + values + "}\nseeds: 50").empty());
}

}  // namespace sweep_spec_test
