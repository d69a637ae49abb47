#include "steps/spike_rule.h"

#include <catch2/catch_test_macros.hpp>
#include <limits>

namespace spike_rule_test {

using namespace fulgur;
using fulgur::detail::SpikeRule;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Which of the losses are spikes, as `.` or `!`, `A` if the action is taken, `N` for a new level.
std::string judged(SpikeRule& rule, const std::vector<double>& losses) {
  std::string text;
  for (const double loss : losses) {
    const SpikeRule::Verdict verdict = rule.judge(loss);
    text += verdict.new_level ? 'N' : verdict.act ? 'A' : verdict.spike ? '!' : verdict.known ? '.' : '-';
  }
  return text;
}

std::string judged(const SpikeDetection::Options& options, const std::vector<double>& losses) {
  SpikeRule rule(options);
  return judged(rule, losses);
}

}  // namespace

TEST_CASE("SpikeRule: the range names the mean and the bounds, all of which a spike reaches") {
  SpikeRule rule({.warmup = 4, .atol = 1.0, .rtol = 2.0});
  CHECK(judged(rule, {1, 3, 1, 3, 100}) == "----A");
  CHECK(rule.range() ==
        "the mean of the last 4 steps is 2.0, and a spike is at least 3.0 (atol 1.0) and 6.0 (rtol 2.0)");
}

TEST_CASE("SpikeRule: a spike is as far above the mean as rtol, atol and z say, all of them that are set") {
  // The mean of the four is 2, their standard deviation is 2 / sqrt(3) = 1.1547.
  const std::vector<double> before{1, 3, 1, 3};
  const auto last = [&](SpikeDetection::Options options, double loss) {
    options.warmup = 4;
    std::vector<double> losses = before;
    losses.push_back(loss);
    return judged(options, losses).back();
  };
  CHECK(last({.rtol = 2.0}, 6) == 'A');
  CHECK(last({.rtol = 2.0}, 5.99) == '.');
  CHECK(last({.atol = 1.5, .rtol = {}}, 3.5) == 'A');
  CHECK(last({.atol = 1.5, .rtol = {}}, 3.49) == '.');
  CHECK(last({.rtol = {}, .z = 2.0}, 4.31) == 'A');
  CHECK(last({.rtol = {}, .z = 2.0}, 4.30) == '.');
  CHECK(last({.atol = 1.5, .rtol = 2.0}, 4) == '.');
  CHECK(last({.atol = 10.0, .rtol = 2.0}, 7) == '.');
  CHECK(last({.atol = 1.5, .rtol = 2.0, .z = 2.0}, 6) == 'A');
  // A small loss is no spike.
  CHECK(last({.atol = 0.1, .rtol = {}}, -100) == '.');
}

TEST_CASE("SpikeRule: equal losses have no deviation, and are no spikes") {
  CHECK(judged({.warmup = 3, .rtol = {}, .z = 3.0}, {2, 2, 2, 2, 2, 2.1}) == "---..A");
}

TEST_CASE("SpikeRule: the first losses are recorded only, and the mean is that of the last ones in range") {
  CHECK(judged({.window = 2, .warmup = 3}, {1, 100, 1, 100}) == "---.");        // mean 50.5
  CHECK(judged({.window = 2, .warmup = 1}, {1, 1, 2, 2, 5.9, 6}) == "-.....");  // 6 is above 3.95
  CHECK(judged({.window = 2, .warmup = 1}, {1, 1, 9, 1, 9}) == "-.A.A");        // a spike is not recorded
}

TEST_CASE("SpikeRule: the action is taken after patience spikes in a row") {
  CHECK(judged({.window = 9, .patience = 3}, {1, 9, 9, 1, 9, 9, 9, 9, 1}) == "-!!.!!AA.");
}

TEST_CASE("SpikeRule: after window actions in a row, the range begins again") {
  SpikeRule rule({.window = 3, .patience = 2});
  CHECK(judged(rule, {1, 1, 9, 9, 9, 9, 9, 9, 30}) == "-.!AAAN.!");
  CHECK(rule.spikes() == 6);
}

TEST_CASE("SpikeRule: a loss that is not finite changes nothing") {
  CHECK(judged({.patience = 2}, {1, 1, 9, kNan, 9, kNan, 1}) == "-.!-A-.");
}

TEST_CASE("SpikeRule: it continues from its state, and after a rollback with the range of the checkpoint") {
  const SpikeDetection::Options options{.window = 3, .warmup = 2, .patience = 2};
  const std::vector<double> losses{1, 1.5, 0.25, 9, 1, 9, 9, 2, 30, 31};
  SpikeRule whole(options);
  const std::string expected = judged(whole, losses);
  for (size_t i = 0; i < losses.size(); ++i) {
    SpikeRule first(options), second(options);
    std::string text = judged(first, {losses.begin(), losses.begin() + static_cast<std::ptrdiff_t>(i)});
    second.load_state(first.state());
    text += judged(second, {losses.begin() + static_cast<std::ptrdiff_t>(i), losses.end()});
    CHECK(text == expected);
    CHECK(second.spikes() == whole.spikes());
  }
  SpikeRule rule({.window = 3});
  CHECK(judged(rule, {10, 10}) == "-.");
  const StateTree saved = rule.state();
  CHECK(judged(rule, {1, 1, 1, 9}) == "...A");
  rule.return_to(saved);
  CHECK(rule.spikes() == 1);
  CHECK(judged(rule, {9, 25}) == "..");
}

}  // namespace spike_rule_test
