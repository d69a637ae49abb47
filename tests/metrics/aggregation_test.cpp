#include <ATen/ops/tensor.h>

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>

#include "fulgur/metrics/aggregation.h"

namespace aggregation_test {

using namespace fulgur;
using Catch::Approx;

TEST_CASE("mean, sum, smallest and largest of many numbers") {
  metrics::Mean mean;
  metrics::Sum sum;
  metrics::Min least;
  metrics::Max most;
  CHECK(std::isnan(mean.compute().item<double>()));
  for (const double value : {1.0, -4.0, 6.0}) {
    mean.update(value, 2);
    sum.update(value);
    least.update(value);
    most.update(value);
  }
  mean.update(at::tensor({10.0F, 20.0F}));
  CHECK(mean.compute().item<double>() == (2 * 3 + 30.0) / (6 + 2));
  CHECK(sum.compute().item<double>() == 3);
  CHECK(least.compute().item<double>() == -4);
  CHECK(most.compute().item<double>() == 6);
  metrics::Min other;
  other.update(-9.0);
  least.merge_state(other.state());
  CHECK(least.compute().item<double>() == -9);
  most.update(std::numeric_limits<double>::quiet_NaN());
  most.update(1.0);
  CHECK(std::isnan(most.compute().item<double>()));
  most.reset();
  CHECK(most.compute().item<double>() == -std::numeric_limits<double>::infinity());
}

TEST_CASE("a running mean keeps its last updates, also after a resume") {
  metrics::RunningMean running({.window = 3});
  for (int i = 0; i < 5; ++i) running.update(static_cast<double>(i));
  CHECK(running.compute().item<double>() == 3);
  metrics::RunningMean resumed({.window = 3});
  resumed.load_state(running.state());
  CHECK(resumed.compute().item<double>() == 3);
  resumed.update(8.0);
  CHECK(resumed.compute().item<double>() == (3 + 4 + 8) / 3.0);
  metrics::RunningMean next({.window = 3});
  next.update(8.0);
  running.merge_state(next.state());  // as a run does that resumes
  running.update(9.0);
  CHECK(running.compute().item<double>() == (4 + 8 + 9) / 3.0);
}

TEST_CASE("an exponential moving average halves the weight of a value within its half-life") {
  metrics::Ema ema({.half_life = 1});
  ema.update(1.0);
  CHECK(ema.compute().item<double>() == 1);
  ema.update(4.0);
  CHECK(ema.compute().item<double>() == Approx((0.5 * 1 + 4) / 1.5));
  metrics::Ema resumed({.half_life = 1});
  resumed.load_state(ema.state());
  ema.update(2.0);
  resumed.update(2.0);
  CHECK(ema.compute().equal(resumed.compute()));
}

}  // namespace aggregation_test
