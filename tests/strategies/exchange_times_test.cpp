#include "fulgur/strategies/exchange_times.h"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>

#include "slow_networks/bucket_size.h"

namespace exchange_times_test {

using namespace fulgur::detail;
using Catch::Approx;

TEST_CASE("the cost of an exchange is fitted to its times") {
  std::vector<ExchangeTime> times;
  for (const int64_t bytes : {4, 4096, 1 << 20, 1 << 26})
    times.push_back({.bytes = bytes, .seconds = 20e-6 + static_cast<double>(bytes) / 5e9});
  const ExchangeCost cost = fit_cost(times);
  CHECK(cost.latency_s == Approx(20e-6));
  CHECK(cost.bytes_per_second == Approx(5e9));
  // A large time with a small relative error does not hide the latency.
  times.back().seconds *= 1.2;
  CHECK(fit_cost(times).latency_s == Approx(20e-6).epsilon(0.1));
}

TEST_CASE("the latency is an eighth of the time of a bucket") {
  const ExchangeCost cost{.latency_s = 10e-3, .bytes_per_second = 125e6};
  const double bytes = bucket_size(cost) * 1024 * 1024;
  CHECK(cost.latency_s / (cost.latency_s + bytes / cost.bytes_per_second) == Approx(1.0 / 8));
  CHECK(bucket_size({.latency_s = 1e-6, .bytes_per_second = 1e9}) == 1);
  CHECK(bucket_size({.latency_s = 1, .bytes_per_second = 1e9}) == 200);
}

}  // namespace exchange_times_test
