// How the values of ranks become a row, and what that costs a rank. Ranks are threads.
#include <bit>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "logging/log_store.h"
#include "setup/rank_consistency.h"
#include "support/counting_collectives.h"
#include "support/thread_collectives.h"

namespace row_merge_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using fulgur::detail::LogScope;
using fulgur::detail::LogStore;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

using Counting = CountingCollectives;

/// What a rank has of one row, and what the row cost it.
struct Row {
  Metrics values;
  int64_t bytes = 0, gathers = 0;
};

// NaN is equal to NaN, -0.0 is not 0.0. The order of a row is that in which its rank logs.
bool same_bits(Metrics a, Metrics b) {
  for (Metrics* row : {&a, &b}) std::sort(row->begin(), row->end(), [](auto& x, auto& y) { return x.first < y.first; });
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && std::bit_cast<int64_t>(x.second) == std::bit_cast<int64_t>(y.second);
  });
}

/// Logs a rank's part of row `row` into its store.
using Log = std::function<void(LogStore&, int64_t rank, int64_t row)>;

/// The rows of rank 0; throws if another rank has other values.
std::vector<Row> rows_of(int64_t ranks, int64_t rows, const Log& log, bool epoch = false,
                         RunningStage stage = RunningStage::train) {
  std::vector<std::vector<Row>> all(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Collectives& inner) {
    LogStore store;
    Counting collectives(inner);
    for (int64_t row = 0; row < rows; ++row) {
      log(store, inner.rank(), row);
      LogStore::Window window = epoch ? store.close_epoch(stage) : store.close_step_window(stage);
      collectives.bytes = collectives.gathers = 0;
      Metrics values = store.take(std::move(window), &collectives);
      all[static_cast<size_t>(inner.rank())].push_back({std::move(values), collectives.bytes, collectives.gathers});
    }
  });
  for (const std::vector<Row>& rank : all)
    for (size_t row = 0; row < rank.size(); ++row) {
      REQUIRE(same_bits(rank[row].values, all[0][row].values));
      REQUIRE(rank[row].gathers == all[0][row].gathers);
    }
  return all[0];
}

/// The one row of an epoch in which rank r has logged values[r]; nothing for a rank without one.
Metrics merged(const std::vector<std::optional<double>>& values, Reduce reduce, double weight = 1) {
  const auto log = [&](LogStore& store, int64_t rank, int64_t) {
    const auto value = values[static_cast<size_t>(rank)];
    if (value)
      store.log("v", LogScope::train_step, RunningStage::train, *value, weight,
                {.on_epoch = true, .reduce_fx = reduce});
  };
  Metrics row = rows_of(static_cast<int64_t>(values.size()), 1, log, /*epoch=*/true)[0].values;
  // By another way: with others in the row, and after a row that has made the metric known.
  const auto crowded = [&](LogStore& store, int64_t rank, int64_t r) {
    for (int i = 0; i < 5; ++i)
      store.log(cat("a", i), LogScope::train_step, RunningStage::train, 1.0 / 3, 1, {.on_epoch = true});
    if (r == 1 || rank == 0) log(store, rank, r);
  };
  const auto rows = rows_of(static_cast<int64_t>(values.size()), 2, crowded, /*epoch=*/true);
  for (const auto& value : rows[1].values)
    if (value.first == "v_epoch") REQUIRE(same_bits({value}, row));
  return row;
}

double value_of(const Metrics& row) {
  REQUIRE(row.size() == 1);
  return row[0].second;
}

void log_much(LogStore& store, int64_t rank, int64_t row) {
  const auto value = static_cast<double>(rank * 7 + row);
  for (int i = 0; i < 8; ++i)
    store.log(cat("synced_", i), LogScope::train_step, RunningStage::train, value + i, 3, {.sync_dist = true});
  store.log("own", LogScope::train_step, RunningStage::train, value, 3, {});
  for (const Reduce reduce : {Reduce::sum, Reduce::min, Reduce::max, Reduce::last})
    store.log(cat("reduced_", static_cast<int64_t>(reduce)), LogScope::train_step, RunningStage::train, value, 3,
              {.on_epoch = true, .reduce_fx = reduce, .sync_dist = true});
}

}  // namespace

TEST_CASE("what a row costs a rank does not grow with the number of ranks") {
  const bool epoch = GENERATE(false, true);
  std::vector<int64_t> bytes;
  for (const int64_t ranks : {8, 64, 512, 1024}) {
    const std::vector<Row> rows = rows_of(ranks, 3, log_much, epoch);
    for (const Row& row : rows) {
      CHECK(row.values.size() == (epoch ? 4u : 13u));
      CHECK(row.gathers == 0);
      bytes.push_back(row.bytes);
    }
  }
  CAPTURE(bytes);
  CHECK(std::all_of(bytes.begin(), bytes.end(), [&](int64_t row) { return row == bytes.front() && row < 4096; }));
}

TEST_CASE("what the check at the start costs a rank does not grow with the number of ranks") {
  for (const int64_t ranks : {8, 64, 512, 1024}) {
    CAPTURE(ranks);
    std::vector<int64_t> bytes(static_cast<size_t>(ranks));
    run_ranks(ranks, [&](Collectives& inner) {
      Counting collectives(inner);
      fulgur::detail::Facts facts;
      for (int i = 0; i < 50; ++i) facts[cat("parameter layers.", i, ".weight")] = "Float [256, 256]";
      fulgur::detail::check_same_on_all_ranks(collectives, facts);
      bytes[static_cast<size_t>(inner.rank())] = collectives.bytes;
    });
    CHECK(std::all_of(bytes.begin(), bytes.end(), [](int64_t of_rank) { return of_rank <= 64; }));
  }
}

TEST_CASE("what ranks do not have in common is named on all of them") {
  std::vector<std::string> messages(4);
  run_ranks(4, [&](Collectives& collectives) {
    const int64_t rank = collectives.rank();
    fulgur::detail::Facts facts{{"config a", "1"}, {"config b", rank == 2 ? "3" : "2"}};
    if (rank == 3) facts["config c"] = "4";
    try {
      fulgur::detail::check_same_on_all_ranks(collectives, facts);
    } catch (const DistributedError& error) {
      messages[static_cast<size_t>(rank)] = error.what();
    }
  });
  for (const std::string& message : messages) {
    CHECK_THAT(message, ContainsSubstring("config b: '2' on rank 0, '3' on rank 2"));
    CHECK_THAT(message, ContainsSubstring("config c: nothing on rank 0, '4' on rank 3"));
    CHECK_THAT(message, !ContainsSubstring("config a:"));
  }
}

TEST_CASE("step values are of all ranks with sync_dist, else rank 0's") {
  const std::vector<Row> rows = rows_of(3, 2, [](LogStore& store, int64_t rank, int64_t row) {
    const auto value = static_cast<double>(rank + 10 * row);
    const auto weight = static_cast<double>(rank + 1);
    store.log("own", LogScope::train_step, RunningStage::train, value, weight, {});
    for (const Reduce reduce : {Reduce::mean, Reduce::sum, Reduce::min, Reduce::max, Reduce::last})
      store.log(cat("r", static_cast<int64_t>(reduce)), LogScope::train_step, RunningStage::train, value, weight,
                {.reduce_fx = reduce, .sync_dist = true});
  });
  for (const int64_t row : {0, 1}) {
    const auto base = static_cast<double>(10 * row);
    // (0·1 + 1·2 + 2·3) / 6
    CHECK(
        rows[static_cast<size_t>(row)].values ==
        Metrics{
            {"own", base}, {"r0", base + 8.0 / 6}, {"r1", 3 * base + 3}, {"r2", base}, {"r3", base + 2}, {"r4", base}});
    CHECK(rows[static_cast<size_t>(row)].gathers == 0);
  }
}

TEST_CASE("a metric logged by only one rank costs one gather, then none") {
  const int64_t only = GENERATE(0, 3);
  const bool sync_dist = GENERATE(false, true);
  const std::vector<Row> rows = rows_of(5, 4, [&](LogStore& store, int64_t rank, int64_t row) {
    store.log("all", LogScope::train_step, RunningStage::train, 1, 1, {});
    if (rank == only && row != 2)
      store.log("alone", LogScope::train_step, RunningStage::train, static_cast<double>(row + 5), 1,
                {.sync_dist = sync_dist});
  });
  for (const size_t row : {0u, 1u, 3u}) {
    CHECK(rows[row].values == Metrics{{"all", 1}, {"alone", static_cast<double>(row + 5)}});
    CHECK(rows[row].gathers == (row == 0 ? 1 : 0));
  }
  // What no rank has logged is not in the row.
  CHECK(rows[2].values == Metrics{{"all", 1}});
  CHECK(rows[2].gathers == 0);
}

TEST_CASE("ranks may log in another order, and each its own metrics") {
  const std::vector<Row> rows = rows_of(
      3, 2,
      [](LogStore& store, int64_t rank, int64_t) {
        store.log(cat("of_rank_", rank), LogScope::train_step, RunningStage::train, static_cast<double>(rank), 1, {});
        for (const int64_t i : {rank, 1 - rank})
          if (i >= 0) store.log(cat("b", i % 2), LogScope::train_step, RunningStage::train, 1, 1, {.sync_dist = true});
      },
      false);
  CHECK(rows[0].gathers == 1);
  CHECK(rows[1].gathers == 0);
  // Rank 0's order; what it did not know comes last.
  CHECK(rows[1].values == Metrics{{"of_rank_0", 0}, {"b0", 1}, {"b1", 1}, {"of_rank_1", 1}, {"of_rank_2", 2}});
}

TEST_CASE("the last value is that of the first rank that has one") {
  CHECK(value_of(merged({5, 6, 7}, Reduce::last)) == 5);
  CHECK(value_of(merged({std::nullopt, 6, 7}, Reduce::last)) == 6);
  CHECK(value_of(merged({std::nullopt, std::nullopt, -0.0}, Reduce::last)) == 0);
  CHECK(std::isnan(value_of(merged({kNaN, 6, 7}, Reduce::last))));
  CHECK(value_of(merged({5, kNaN, 7}, Reduce::last)) == 5);
  CHECK(merged({std::nullopt, std::nullopt}, Reduce::last).empty());
}

TEST_CASE("NaN and infinity of one rank stay visible") {
  for (const Reduce reduce : {Reduce::mean, Reduce::sum, Reduce::min, Reduce::max}) {
    CAPTURE(static_cast<int>(reduce));
    for (const auto& values : {std::vector<std::optional<double>>{1, kNaN, 2},
                               {kNaN, 1, 2},
                               {1, 2, -kNaN},
                               {kNaN, std::nullopt, -kInfinity},
                               {kNaN, kInfinity, -kInfinity}})
      CHECK(std::isnan(value_of(merged(values, reduce))));
  }
  for (const Reduce reduce : {Reduce::mean, Reduce::sum}) {
    CHECK(value_of(merged({1, kInfinity, 2}, reduce)) == kInfinity);
    CHECK(value_of(merged({1, -kInfinity, std::nullopt}, reduce)) == -kInfinity);
    CHECK(std::isnan(value_of(merged({kInfinity, -kInfinity, 2}, reduce))));
  }
  CHECK(value_of(merged({1, kInfinity, -kInfinity}, Reduce::min)) == -kInfinity);
  CHECK(value_of(merged({1, kInfinity, -kInfinity}, Reduce::max)) == kInfinity);
  CHECK(value_of(merged({kInfinity, kInfinity}, Reduce::min)) == kInfinity);
}

TEST_CASE("minima and maxima of ranks are exact") {
  constexpr double kLeast = std::numeric_limits<double>::denorm_min(), kMost = std::numeric_limits<double>::max();
  for (const auto& [values, least, most] :
       {std::tuple<std::vector<std::optional<double>>, double, double>{{1, -2, 3}, -2, 3},
        {{std::nullopt, -2, -3}, -3, -2},
        {{kLeast, 0.0, -kLeast}, -kLeast, kLeast},
        {{kMost, -kMost}, -kMost, kMost},
        {{std::nullopt, 4}, 4, 4}}) {
    CHECK(value_of(merged(values, Reduce::min)) == least);
    CHECK(value_of(merged(values, Reduce::max)) == most);
  }
  CHECK(merged({std::nullopt, std::nullopt}, Reduce::min).empty());
  CHECK(std::signbit(value_of(merged({0.0, -0.0}, Reduce::min))));
  CHECK_FALSE(std::signbit(value_of(merged({-0.0, 0.0}, Reduce::max))));
}

TEST_CASE("sums of ranks are rounded once, whatever the order of the ranks") {
  constexpr double kLeast = std::numeric_limits<double>::denorm_min(), kMost = std::numeric_limits<double>::max();
  const double large = std::ldexp(1, 60);
  // Added in the order of ranks, the 1 would be lost.
  CHECK(value_of(merged({large, 1, -large}, Reduce::sum)) == 1);
  CHECK(value_of(merged({0.1, 0.2, 0.3}, Reduce::sum)) == value_of(merged({0.3, 0.1, 0.2}, Reduce::sum)));
  CHECK(value_of(merged({0.1, 0.2}, Reduce::sum)) == 0.1 + 0.2);
  CHECK(value_of(merged({-1.5, 0.25}, Reduce::sum)) == -1.25);
  CHECK(value_of(merged({kLeast, -3 * kLeast, kLeast}, Reduce::sum)) == -kLeast);
  CHECK(value_of(merged({kMost, -kMost, kLeast}, Reduce::sum)) == 0);
  CHECK(value_of(merged({kMost, std::nullopt}, Reduce::sum)) == kMost);
  CHECK(value_of(merged({kMost, kMost}, Reduce::sum)) == kInfinity);
  CHECK(value_of(merged({0.0, -0.0}, Reduce::sum)) == 0);
  // More than float64 can count one by one.
  CHECK(value_of(merged({9007199254740993.0, 1, 1}, Reduce::sum)) == 9007199254740992.0 + 2);
  CHECK(merged({std::nullopt, std::nullopt}, Reduce::sum).empty());
  CHECK(value_of(merged({1, std::nullopt, 4}, Reduce::mean)) == 2.5);
  CHECK(std::abs(value_of(merged({1, 2, 4}, Reduce::mean, 0.1)) - 7.0 / 3) < 1e-15);
  // No weight at all.
  CHECK(std::isnan(value_of(merged({1, 2}, Reduce::mean, 0))));
}

TEST_CASE("other options on another rank are an error on all ranks") {
  const bool only_in_epochs = GENERATE(false, true);
  CAPTURE(only_in_epochs);
  std::vector<std::string> messages(3);
  run_ranks(3, [&](Collectives& collectives) {
    const int64_t rank = collectives.rank();
    LogOptions options;
    if (rank == 1 && only_in_epochs) options = {.on_step = false, .on_epoch = true};
    if (rank == 1 && !only_in_epochs) options = {.sync_dist = true};
    LogStore store;
    store.log("v", LogScope::train_step, RunningStage::train, 1, 1, options);
    try {
      (void)store.take(store.close_step_window(RunningStage::train), &collectives);
    } catch (const Error& error) {
      messages[static_cast<size_t>(rank)] = error.what();
    }
  });
  for (const std::string& message : messages)
    CHECK_THAT(message, ContainsSubstring("'v' must be logged with the same options on all ranks") &&
                            ContainsSubstring("on rank 0 and ") && ContainsSubstring("on rank 1"));
}

TEST_CASE("after a resume the current options count on all ranks, also on those that do not log any more") {
  std::vector<Metrics> rows(3);
  std::vector<int64_t> gathers(3);
  run_ranks(3, [&](Collectives& inner) {
    const auto rank = static_cast<size_t>(inner.rank());
    LogStore before;
    before.log("v", LogScope::train_step, RunningStage::train, 1, 1, {});
    before.log("w", LogScope::train_step, RunningStage::train, 1, 1, {});
    before.forget_running();
    LogStore store;
    store.load_state(before.state());
    Counting collectives(inner);
    for (int row = 0; row < 2; ++row) {
      if (rank != 0)
        store.log("v", LogScope::train_step, RunningStage::train, 2, 1, {.reduce_fx = Reduce::sum, .sync_dist = true});
      collectives.gathers = 0;
      rows[rank] = store.take(store.close_step_window(RunningStage::train), &collectives);
      gathers[rank] += collectives.gathers * (row == 0 ? 1 : 100);
    }
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    CHECK(rows[rank] == Metrics{{"v", 4}});
    CHECK(gathers[rank] == 1);
  }
}

TEST_CASE("a window whose slots were reset is merged") {
  std::vector<Metrics> rows(3);
  run_ranks(3, [&](Collectives& collectives) {
    const int64_t rank = collectives.rank();
    LogStore store;
    store.log("v", LogScope::evaluation_step, RunningStage::validate, static_cast<double>(rank), 1, {});
    if (rank == 1) store.log("w", LogScope::evaluation_step, RunningStage::validate, 5, 1, {});
    LogStore::Window window = store.close_epoch(RunningStage::validate);
    store.reset(RunningStage::validate);
    if (rank == 2) store.log("v", LogScope::evaluation_step, RunningStage::validate, 7, 1, {});
    rows[static_cast<size_t>(rank)] = store.take(std::move(window), &collectives);
  });
  for (const Metrics& row : rows) {
    CHECK(row.size() == 2);
    CHECK(std::find(row.begin(), row.end(), std::pair<std::string, double>("v", 1)) != row.end());
    CHECK(std::find(row.begin(), row.end(), std::pair<std::string, double>("w", 5)) != row.end());
  }
}

TEST_CASE("a row of more metrics than the first exchange has room for") {
  const std::vector<Row> rows = rows_of(3, 2, [](LogStore& store, int64_t rank, int64_t) {
    for (int i = 0; i < 100; ++i)
      store.log(cat("m", i), LogScope::train_step, RunningStage::train, static_cast<double>(i * (rank + 1)), 1,
                {.sync_dist = i % 2 == 0});
  });
  for (const Row& row : rows) {
    REQUIRE(row.values.size() == 100);
    for (size_t i = 0; i < 100; ++i) CHECK(row.values[i].second == static_cast<double>(i * (i % 2 == 0 ? 2 : 1)));
  }
}

}  // namespace row_merge_test
