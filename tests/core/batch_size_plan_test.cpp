#include "fulgur/core/contracts/batch_size_plan.h"

#include <catch2/catch_test_macros.hpp>

namespace batch_size_plan_test {

using namespace fulgur;

namespace {

// The windows of a fit, one by one, as the loops make them.
int64_t steps_one_by_one(const BatchSizePlan& plan, int64_t epochs, int64_t own, int64_t accumulation,
                         int64_t samples) {
  int64_t steps = 0;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    const int64_t size = plan.size_of_epoch(epoch, steps, own), batches = (samples + size - 1) / size;
    for (int64_t done = 0; done < batches; ++steps) {
      const double position =
          plan.in_epochs ? static_cast<double>(epoch) + static_cast<double>(done) / static_cast<double>(batches)
                         : static_cast<double>(steps);
      done += plan.accumulates ? plan.accumulation_at(position, own) : accumulation;
    }
  }
  return steps;
}

}  // namespace

TEST_CASE("BatchSizePlan: the size at a position, and what is due in an epoch") {
  const BatchSizePlan plan{.changes = {{.at = 2, .batch_size = 8}, {.at = 5, .batch_size = 16}}};
  CHECK(plan.size_at(0, 4) == 4);
  CHECK(plan.size_at(1.999, 4) == 4);
  CHECK(plan.size_at(2, 4) == 8);
  CHECK(plan.size_at(100, 4) == 16);
  CHECK(plan.size_of_epoch(4, 1000, 4) == 8);
  CHECK(plan.accumulation_at(100, 4) == 1);
  CHECK(plan.sizes(4) == std::vector<int64_t>{4, 8, 16});
  CHECK(plan.sizes(8) == std::vector<int64_t>{8, 16});
  BatchSizePlan by_steps = plan;
  by_steps.in_epochs = false;
  CHECK(by_steps.size_of_epoch(4, 1, 4) == 4);
  CHECK(by_steps.size_of_epoch(0, 5, 4) == 16);
  BatchSizePlan accumulates = plan;
  accumulates.accumulates = true;
  CHECK(accumulates.size_of_epoch(4, 0, 4) == 4);
  CHECK(accumulates.accumulation_at(2, 4) == 2);
  CHECK(accumulates.sizes(4) == std::vector<int64_t>{4});
  // Rounding does not delay a change.
  CHECK(BatchSizePlan{.changes = {{.at = 0.1 + 0.2, .batch_size = 2}}}.size_at(0.3, 1) == 2);
}

TEST_CASE("BatchSizePlan: count_steps counts the windows that the loops make") {
  int64_t cases = 0;
  for (const bool accumulates : {false, true})
    for (const bool in_epochs : {false, true})
      for (const double scale : {1.0, 2.5, 7.0})
        for (const int64_t samples : {40, 43, 100})
          for (const int64_t accumulation : {1, 3}) {
            const double unit = in_epochs ? scale / 3 : scale * 2;
            const BatchSizePlan plan{.accumulates = accumulates,
                                     .in_epochs = in_epochs,
                                     .changes = {{.at = unit, .batch_size = 8},
                                                 {.at = 2 * unit, .batch_size = 20},
                                                 {.at = 3.3 * unit, .batch_size = 12}}};
            for (const int64_t epochs : {1, 2, 3, 9}) {
              CAPTURE(accumulates, in_epochs, scale, samples, accumulation, epochs);
              CHECK(plan.count_steps(epochs, 4, accumulation, -1, [&](int64_t size) {
                return (samples + size - 1) / size;
              }) == steps_one_by_one(plan, epochs, 4, accumulation, samples));
              ++cases;
            }
          }
  CHECK(cases == 288);
}

TEST_CASE("BatchSizePlan: a long fit is counted at once") {
  const BatchSizePlan plan{.accumulates = true, .in_epochs = false, .changes = {{.at = 1000, .batch_size = 8}}};
  const auto batches = [](int64_t) { return int64_t{1'000'000'000}; };
  CHECK(plan.count_steps(1'000'000, 4, 1, -1, batches) == 1000 + 499'999'500 + 999'999 * int64_t{500'000'000});
  // The count may end at the limit.
  CHECK(BatchSizePlan{.in_epochs = false, .changes = {{.at = 1e12, .batch_size = 8}}}.count_steps(
            1'000'000'000'000, 4, 1, 10, [](int64_t) { return int64_t{5}; }) == 10);
}

}  // namespace batch_size_plan_test
