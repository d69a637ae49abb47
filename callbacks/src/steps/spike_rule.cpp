#include "steps/spike_rule.h"

#include <cmath>
#include <vector>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {

// In the order of the steps, so that a resumed run gets the same bits.
double SpikeRule::mean() const {
  double sum = 0;
  for (const double loss : losses_) sum += loss;
  return sum / static_cast<double>(losses_.size());
}

double SpikeRule::deviation(double mean) const {
  double sum = 0;
  for (const double loss : losses_) sum += (loss - mean) * (loss - mean);
  return std::sqrt(sum / static_cast<double>(losses_.size() - 1));
}

bool SpikeRule::is_out_of_range(double loss) const {
  const double middle = mean(), above = loss - middle;
  if (!(above > 0)) return false;
  if (options_.atol && above < *options_.atol) return false;
  if (options_.rtol && above < *options_.rtol * std::abs(middle)) return false;
  return !options_.z || above >= *options_.z * deviation(middle);
}

// A spike reaches all of them.
std::string SpikeRule::bounds() const {
  const double middle = mean();
  std::vector<std::string> bounds;
  if (options_.atol) bounds.push_back(cat(middle + *options_.atol, " (atol ", *options_.atol, ")"));
  if (options_.rtol) bounds.push_back(cat(middle + *options_.rtol * std::abs(middle), " (rtol ", *options_.rtol, ")"));
  if (options_.z) bounds.push_back(cat(middle + *options_.z * deviation(middle), " (z ", *options_.z, ")"));
  return join(bounds, " and ");
}

void SpikeRule::record(double loss) {
  losses_.push_back(loss);
  if (static_cast<int64_t>(losses_.size()) > options_.window) losses_.pop_front();
  ++seen_;
}

SpikeRule::Verdict SpikeRule::judge(double loss) {
  if (!std::isfinite(loss)) return {};
  const size_t least = options_.z ? 2 : 1;
  if (seen_ < options_.warmup || losses_.size() < least) {
    record(loss);
    return {};
  }
  Verdict verdict{.known = true, .spike = is_out_of_range(loss), .act = false, .new_level = false};
  if (!verdict.spike) {
    in_a_row_ = 0;
    record(loss);
    return verdict;
  }
  range_ = cat("the mean of the last ", counted(static_cast<int64_t>(losses_.size()), "step"), " is ", mean(),
               ", and a spike is at least ", bounds());
  ++spikes_;
  verdict.act = ++in_a_row_ >= options_.patience;
  // After as many actions as the range has losses, it says nothing about the current losses any more.
  if (in_a_row_ >= options_.patience + options_.window) {
    verdict.act = false;
    verdict.new_level = true;
    losses_.clear();
    seen_ = in_a_row_ = 0;
    record(loss);
  }
  return verdict;
}

StateTree SpikeRule::state() const {
  StateTree::List losses;
  for (const double loss : losses_) losses.emplace_back(loss);
  return StateTree::map({{"losses", std::move(losses)}, {"seen", seen_}, {"in_a_row", in_a_row_}, {"spikes", spikes_}});
}

void SpikeRule::load_state(const StateTree& state) {
  std::deque<double> losses;
  for (const StateTree& loss : state.at("losses").as_list()) losses.push_back(loss.as_double());
  const int64_t seen = state.at("seen").as_int(), in_a_row = state.at("in_a_row").as_int();
  const int64_t spikes = state.at("spikes").as_int();
  // The option may have become smaller.
  while (static_cast<int64_t>(losses.size()) > options_.window) losses.pop_front();
  losses_ = std::move(losses);
  seen_ = seen;
  in_a_row_ = in_a_row;
  spikes_ = spikes;
}

void SpikeRule::return_to(const StateTree& state) {
  const int64_t spikes = spikes_;
  load_state(state);
  spikes_ = spikes;
  in_a_row_ = 0;
}

}  // namespace fulgur::detail
