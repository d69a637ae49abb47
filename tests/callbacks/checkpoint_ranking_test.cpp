#include "checkpoint_ranking.h"

#include <catch2/catch_test_macros.hpp>
#include <limits>
#include <span>
#include <string>

namespace checkpoint_ranking_test {

using fulgur::detail::CheckpointRanking;
using Paths = std::vector<std::filesystem::path>;
using Scores = std::vector<std::optional<double>>;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::nullopt_t kNone = std::nullopt;

CheckpointRanking smallest(int64_t top_k) { return {true, fulgur::MonitorMode::min, top_k}; }
CheckpointRanking largest(int64_t top_k) { return {true, fulgur::MonitorMode::max, top_k}; }
CheckpointRanking newest(int64_t top_k) { return {false, fulgur::MonitorMode::min, top_k}; }

/// What became of checkpoints that were written one after the other, named 0, 1, …
struct Course {
  std::string places;    // B: the best, K: kept, -: not kept
  std::string released;  // names
  void save(CheckpointRanking& ranking, std::span<const std::optional<double>> scores) {
    for (const auto& score : scores) {
      const CheckpointRanking::Place place = ranking.place_of(score);
      places += !place.keep ? '-' : place.best ? 'B' : 'K';
      const uint64_t ticket = places.size();
      ranking.requested(ticket, place);
      for (const auto& path : ranking.published(ticket, std::to_string(ticket - 1))) released += path.string();
    }
  }
};

std::string kept_by(const CheckpointRanking& ranking) {
  std::string names;
  for (const auto& item : ranking.standing().kept) names += item.path.string();
  return names;
}

struct Case {
  std::string rule;
  CheckpointRanking ranking;
  Scores scores;
  std::string places;
  std::string kept;  // best first
  std::string released;
};

std::vector<Case> cases() {
  return {
      {"the smallest score", smallest(1), {3, 2, 2.5, 1}, "BB-B", "3", "01"},
      {"the largest score", largest(1), {1, 2, 1.5, 3}, "BB-B", "3", "01"},
      {"of equal scores the first", smallest(1), {2, 2}, "B-", "0", ""},
      {"max: of equal scores the first", largest(1), {2, 2}, "B-", "0", ""},

      {"three of them", smallest(3), {5, 1, 4, 2, 3}, "BBKKK", "134", "02"},
      {"max: three of them", largest(3), {1, 5, 2, 4, 3}, "BBKKK", "134", "02"},
      {"equal scores keep their order", smallest(3), {2, 2, 1, 2}, "BKB-", "201", ""},
      {"none", smallest(0), {3, 2}, "--", "", ""},
      {"all", smallest(-1), {3, 1, 2}, "BBK", "120", ""},

      {"any score is better than a NaN", smallest(1), {kNan, 3}, "BB", "1", "0"},
      {"a NaN is better than none", smallest(1), {3, kNan}, "B-", "0", ""},
      {"a NaN is as bad as infinity", smallest(2), {kNan, kInf, 3}, "BKB", "20", "1"},
      {"max: a NaN is the worst", largest(1), {kNan, -kInf, -5}, "B-B", "2", "0"},
      {"nothing is better than -infinity", smallest(1), {-kInf, -5, -kInf}, "B--", "0", ""},
      {"max: nothing is better than infinity", largest(1), {kInf, 5, kInf}, "B--", "0", ""},

      {"without a score it is not ranked", smallest(1), {kNone, 2, kNone}, "-B-", "1", ""},
      {"nor where all are kept", smallest(-1), {kNone, 2, kNone}, "-B-", "1", ""},

      {"without scores the newest", newest(1), {kNone, kNone, kNone}, "BBB", "2", "01"},
      {"without scores: all", newest(-1), {kNone, kNone, kNone}, "BBB", "210", ""},
      {"without scores: none", newest(0), {kNone, kNone}, "--", "", ""},
  };
}

}  // namespace

TEST_CASE("CheckpointRanking: scores in, what is kept and released out") {
  for (Case& c : cases()) {
    INFO(c.rule);
    Course course;
    course.save(c.ranking, c.scores);
    CHECK(course.places == c.places);
    CHECK(kept_by(c.ranking) == c.kept);
    CHECK(course.released == c.released);
    CHECK(c.ranking.standing().pending.empty());
  }
}

TEST_CASE("CheckpointRanking: another one goes on from its standing, after any checkpoint") {
  for (const Case& c : cases())
    for (size_t before = 0; before <= c.scores.size(); ++before) {
      INFO(c.rule << ", after " << before);
      const std::span<const std::optional<double>> scores = c.scores;
      CheckpointRanking first = c.ranking, second = c.ranking;
      Course course;
      course.save(first, scores.first(before));
      second.restore(first.standing());
      course.save(second, scores.subspan(before));
      CHECK(course.places == c.places);
      CHECK(kept_by(second) == c.kept);
      CHECK(course.released == c.released);
    }
}

TEST_CASE("CheckpointRanking: the score that a checkpoint gets") {
  CHECK(smallest(1).place_of(0.5).score == 0.5);
  CHECK(smallest(1).place_of(kNan).score == kInf);
  CHECK(largest(1).place_of(kNan).score == -kInf);
  CHECK(smallest(0).place_of(kNan).score == kInf);  // saved for last.ckpt
  CHECK_FALSE(smallest(1).place_of(kNone).score);
  CHECK_FALSE(newest(1).place_of(kNone).score);
}

TEST_CASE("CheckpointRanking: requests that are written later, in another order") {
  CheckpointRanking ranking = smallest(1);
  const auto request = [&](uint64_t ticket, double score) {
    const auto place = ranking.place_of(score);
    ranking.requested(ticket, place);
    return std::pair(place.keep, place.best);
  };
  CHECK(request(1, 3) == std::pair(true, true));
  CHECK(request(2, 2) == std::pair(true, true));
  // As if the others had been written already.
  CHECK(request(3, 4) == std::pair(false, false));
  CHECK(request(4, 2) == std::pair(false, false));
  CHECK(ranking.standing().pending.size() == 2);
  CheckpointRanking resumed = smallest(1);
  resumed.restore(ranking.standing());
  for (CheckpointRanking* one : {&ranking, &resumed}) {
    CHECK(one->published(1, "a").empty());
    CHECK(one->published(3, "c").empty());
    CHECK(one->published(2, "b") == Paths{"a"});
    CHECK(one->published(2, "b").empty());  // not twice
    CHECK(one->published(9, "x").empty());  // another's
    CHECK(kept_by(*one) == "b");
  }
}

TEST_CASE("CheckpointRanking: a request that fails leaves what was written before") {
  CheckpointRanking ranking = smallest(2);
  ranking.requested(1, ranking.place_of(3));
  ranking.failed(1);
  CHECK(ranking.standing() == CheckpointRanking::Standing{});
  Course course;
  course.save(ranking, Scores{3, 4});
  ranking.requested(9, ranking.place_of(1));
  CHECK_FALSE(ranking.place_of(2).best);
  ranking.failed(9);
  CHECK(ranking.standing().best_score == 3);
  CHECK(ranking.place_of(2).best);
  CHECK(ranking.published(9, "x").empty());
  CHECK(kept_by(ranking) == "01");
}

TEST_CASE("CheckpointRanking: requests of a run that has ended are forgotten, not their score") {
  CheckpointRanking ranking = smallest(1);
  ranking.requested(1, ranking.place_of(3));
  ranking.forget_pending();
  CHECK(ranking.published(1, "a").empty());
  CHECK(ranking.standing().kept.empty());
  CHECK(ranking.standing().best_score == 3);
}

TEST_CASE("CheckpointRanking: fewer to keep than in the run before") {
  const CheckpointRanking::Standing three{.kept = {{"a", 1}, {"b", 2}, {"c", 3}}, .pending = {}, .best_score = 1};
  CheckpointRanking ranking = smallest(1);
  ranking.restore(three);
  ranking.requested(1, ranking.place_of(0.5));
  CHECK(ranking.published(1, "d") == Paths{"c", "b", "a"});
  CHECK(kept_by(ranking) == "d");
  ranking.restore(three);
  CHECK_FALSE(ranking.place_of(2.5).keep);
  CHECK(ranking.place_of(0.5).keep);
}

TEST_CASE("CheckpointRanking: in a folder that was moved, those that are there count") {
  CheckpointRanking ranking = smallest(2);
  ranking.restore({.kept = {{"old/a", 1}, {"old/b", 2}}, .pending = {}, .best_score = 1});
  const auto nothing = [](const std::filesystem::path&) { return false; };
  CHECK(ranking.move_to("new", [](const std::filesystem::path& path) { return path == "new/b"; }));
  CHECK(kept_by(ranking) == "new/b");
  CHECK(ranking.standing().best_score == 1);
  ranking.requested(1, ranking.place_of(0.5));
  CHECK(ranking.move_to("newer", nothing));  // one is still to come
  CHECK(ranking.standing().best_score == 0.5);
  ranking.forget_pending();
  CHECK_FALSE(ranking.move_to("newest", nothing));
  CHECK(ranking.standing() == CheckpointRanking::Standing{});
}

}  // namespace checkpoint_ranking_test
