#include "early_stopping_rule.h"

#include <catch2/catch_test_macros.hpp>
#include <limits>
#include <span>

namespace early_stopping_rule_test {

using namespace fulgur;
using fulgur::detail::EarlyStoppingRule;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// One letter a score: + an improvement, . none; a stop by T stopping_threshold, D divergence_threshold, P patience, N a
// value that is not finite.
std::string judged(EarlyStoppingRule& rule, std::span<const double> scores) {
  constexpr std::string_view kOfReasons = ".TDPN";  // in the order of EarlyStoppingReason
  std::string letters;
  for (const double score : scores) {
    const auto verdict = rule.judge(score);
    letters += verdict.improved ? '+' : kOfReasons.at(static_cast<size_t>(verdict.stop));
  }
  return letters;
}

struct Case {
  std::string rule;
  EarlyStopping::Options options;  // patience 3, mode min
  std::vector<double> scores;
  std::string verdicts;
  EarlyStoppingRule::Standing end;  // best score, wait count
};

std::vector<Case> cases() {
  return {
      {"patience counts scores without an improvement", {}, {3, 2, 2.5, 2.4, 2.3}, "++..P", {2, 3}},
      {"an improvement restarts the count", {.patience = 2}, {3, 4, 2, 3, 3}, "+.+.P", {2, 2}},
      {"patience 1 stops at the first", {.patience = 1}, {3, 2, 2}, "++P", {2, 1}},
      {"patience 0 does too", {.patience = 0}, {3, 2, 2}, "++P", {2, 1}},
      {"a run that may not stop yet continues", {.patience = 1}, {3, 3, 4, 2, 2}, "+PP+P", {2, 1}},
      {"an equal score is no improvement", {}, {2, 2, 2}, "+..", {2, 2}},

      {"max: larger is better", {.mode = MonitorMode::max}, {1, 2, 1.5}, "++.", {2, 1}},
      {"max: nor is an equal score", {.mode = MonitorMode::max}, {2, 2}, "+.", {2, 1}},

      {"a change of exactly min_delta is none", {.min_delta = 1}, {3, 2, 1.5}, "+.+", {1.5, 0}},
      {"small changes add up", {.min_delta = 0.5}, {3, 2.75, 2.5, 2.25}, "+..+", {2.25, 0}},
      {"max: min_delta", {.min_delta = 1, .mode = MonitorMode::max}, {1, 2, 3}, "+.+", {3, 0}},

      {"better than stopping_threshold", {.stopping_threshold = 0.5}, {3, 0.5, 0.4}, "++T", {0.5, 0}},
      {"by the first score", {.stopping_threshold = 5}, {3}, "T", {kInf, 0}},
      {"whatever min_delta is", {.min_delta = 10, .stopping_threshold = 1}, {3, 0.5}, "+T", {3, 0}},
      {"max: stopping_threshold",
       {.mode = MonitorMode::max, .stopping_threshold = 0.9},
       {0.5, 0.9, 1},
       "++T",
       {0.9, 0}},
      {"worse than divergence_threshold", {.divergence_threshold = 10}, {3, 10, 11}, "+.D", {3, 1}},
      {"which comes before patience", {.patience = 1, .divergence_threshold = 10}, {3, 11}, "+D", {3, 0}},
      {"max: divergence_threshold", {.mode = MonitorMode::max, .divergence_threshold = -1}, {3, -1, -2}, "+.D", {3, 1}},

      {"a NaN stops", {}, {3, kNan, 2}, "+N+", {2, 0}},
      {"an infinity does, also the better one", {}, {3, kInf, -kInf}, "+NN", {3, 0}},
      {"before a threshold", {.stopping_threshold = 1, .divergence_threshold = 9}, {-kInf, kInf}, "NN", {kInf, 0}},

      {"unchecked: a NaN is no improvement", {.check_finite = false}, {kNan, 3, kNan, 2}, ".+.+", {2, 0}},
      {"unchecked: and beyond no threshold",
       {.check_finite = false, .stopping_threshold = 5, .divergence_threshold = 9},
       {kNan, kNan, kNan},
       "..P",
       {kInf, 3}},
      {"unchecked: the worst infinity", {.check_finite = false}, {kInf, 3}, ".+", {3, 0}},
      {"unchecked: it diverges", {.check_finite = false, .divergence_threshold = 9}, {3, kInf}, "+D", {3, 0}},
      {"unchecked: the best infinity", {.check_finite = false}, {3, -kInf, 2}, "++.", {-kInf, 1}},
      {"unchecked: max", {.mode = MonitorMode::max, .check_finite = false}, {-kInf, kInf, 5}, ".+.", {kInf, 1}},
  };
}

}  // namespace

TEST_CASE("EarlyStoppingRule: scores in, verdicts out") {
  for (const Case& c : cases()) {
    INFO(c.rule);
    EarlyStoppingRule rule(c.options);
    CHECK(judged(rule, c.scores) == c.verdicts);
    CHECK(rule.standing().best_score == c.end.best_score);
    CHECK(rule.standing().wait_count == c.end.wait_count);
  }
}

TEST_CASE("EarlyStoppingRule: another one goes on from its standing, after any score") {
  for (const Case& c : cases())
    for (size_t before = 0; before <= c.scores.size(); ++before) {
      INFO(c.rule << ", after " << before);
      const std::span<const double> scores = c.scores;
      EarlyStoppingRule first(c.options), second(c.options);
      std::string verdicts = judged(first, scores.first(before));
      second.restore(first.standing());
      verdicts += judged(second, scores.subspan(before));
      CHECK(verdicts == c.verdicts);
      CHECK(second.standing() == c.end);
    }
}

}  // namespace early_stopping_rule_test
