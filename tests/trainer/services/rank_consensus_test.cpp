#include "services/rank_consensus.h"

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "support/thread_collectives.h"

namespace rank_consensus_test {

using fulgur::Collectives;
using fulgur::SingleProcessCollectives;
using fulgur::detail::LocalVotes;
using fulgur::detail::RankConsensus;

namespace {

/// What one rank knows. Exchanges through `consensus`.
struct Rank {
  std::optional<std::string> stop_reason;
  std::optional<int> signal;
  bool save = false, save_is_done = false;

  RankConsensus consensus{{.stop_reason = [this] { return stop_reason; },
                           .signal = [this] { return signal; },
                           .take_save_request = [this] { return std::exchange(save, false); },
                           .save_is_done = [this] { return save_is_done; }},
                          [this](std::string reason) { stop_reason = std::move(reason); }};
};

/// What `body` returns on each of three ranks, which exchange every `every` steps.
template <class Body>
std::vector<std::string> on_three_ranks(int64_t every, Body body) {
  std::vector<std::string> seen(3);
  fulgur::test::run_ranks(3, [&](Collectives& collectives) {
    Rank rank;
    rank.consensus.start(collectives, every);
    seen[static_cast<size_t>(collectives.rank())] = body(rank, collectives.rank());
  });
  return seen;
}

std::vector<std::string> same(const std::string& text) { return {text, text, text}; }

/// The first step after which `holds`, of twenty.
template <class Holds>
std::string first_step(Rank& rank, Holds holds) {
  for (int step = 1; step <= 20; ++step) {
    rank.consensus.step();
    if (holds()) return "step " + std::to_string(step);
  }
  return "never";
}

}  // namespace

TEST_CASE("RankConsensus: with one rank everything is agreed at once, and nothing is exchanged") {
  SingleProcessCollectives alone;
  Rank rank;
  rank.consensus.start(alone, std::nullopt);
  CHECK_FALSE(rank.consensus.stop_agreed());
  CHECK_FALSE(rank.consensus.signal());
  rank.stop_reason = "enough";
  rank.signal = 15;
  rank.save = true;
  CHECK(rank.consensus.stop_agreed());
  CHECK(rank.consensus.signal() == 15);
  CHECK(rank.consensus.take_save_request());
  CHECK_FALSE(rank.consensus.take_save_request());
  rank.save_is_done = true;
  rank.consensus.settle();
  CHECK_FALSE(rank.consensus.take_save_done());  // the writer itself is asked
}

TEST_CASE("RankConsensus: a stop of any rank is seen by all at the same step, with its reason") {
  CHECK(on_three_ranks(3, [](Rank& rank, int64_t number) {
          rank.consensus.settle();  // `every` counts from here
          if (number == 2) rank.stop_reason = "by rank 2";
          const std::string when = first_step(rank, [&] { return rank.consensus.stop_agreed(); });
          return when + ", " + rank.stop_reason.value_or("no reason");
        }) == same("step 6, by rank 2"));  // begun at step 3, read when the next exchange begins
}

TEST_CASE("RankConsensus: of two reasons all take that of the lower rank; a rank does not stop by its own alone") {
  CHECK(on_three_ranks(3, [](Rank& rank, int64_t number) {
          if (number > 0) rank.stop_reason = "by rank " + std::to_string(number);
          std::string before = rank.consensus.stop_agreed() ? "stops alone, " : "";
          rank.consensus.settle();
          return before + (rank.consensus.stop_agreed() ? rank.stop_reason.value_or("no reason") : "continues");
        }) == same("by rank 1"));
}

TEST_CASE("RankConsensus: a signal of one rank ends all, and stays") {
  CHECK(on_three_ranks(2, [](Rank& rank, int64_t number) {
          rank.consensus.settle();
          if (number == 1) rank.signal = 15;
          std::string text = first_step(rank, [&] { return rank.consensus.signal() == 15; });
          rank.signal.reset();
          rank.consensus.settle();
          return text + (rank.consensus.signal() == 15 ? ", stays" : ", gone");
        }) == same("step 4, stays"));
}

TEST_CASE("RankConsensus: a request to save is taken once, a save that is done is rank 0's to say") {
  CHECK(on_three_ranks(1, [](Rank& rank, int64_t number) {
          rank.save = number == 2;
          rank.save_is_done = number == 2;  // has no writer
          rank.consensus.settle();
          std::string text = rank.consensus.take_save_request() ? "saves" : "does not save";
          text += rank.consensus.take_save_request() ? " twice" : "";
          text += rank.consensus.take_save_done() ? ", done" : "";
          rank.save_is_done = number == 0;
          rank.consensus.settle();
          return text + (rank.consensus.take_save_done() ? ", then done" : "");
        }) == same("saves, then done"));
}

TEST_CASE("RankConsensus: the clock is rank 0's, as last agreed") {
  std::vector<double> clocks(3);
  fulgur::test::run_ranks(3, [&](Collectives& collectives) {
    Rank rank;
    rank.consensus.start(collectives, 4);
    collectives.barrier("start");
    rank.consensus.settle();
    clocks[static_cast<size_t>(collectives.rank())] = rank.consensus.clock_s();
  });
  CHECK(clocks[0] > 0);
  CHECK(clocks[1] == clocks[0]);
  CHECK(clocks[2] == clocks[0]);
}

TEST_CASE("RankConsensus: a change of pace reads what is under way and exchanges at the next step") {
  CHECK(on_three_ranks(10, [](Rank& rank, int64_t number) {
          rank.consensus.step();  // exchanges; the next would be ten steps later
          if (number == 0) rank.stop_reason = "by rank 0";
          rank.consensus.change_pace();
          rank.consensus.step();
          rank.consensus.change_pace();
          return std::string(rank.consensus.stop_agreed() ? "stops" : "continues");
        }) == same("stops"));
}

}  // namespace rank_consensus_test
