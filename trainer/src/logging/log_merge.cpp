// Merges the values of all ranks in a row of metrics.
#include <map>
#include <unordered_map>
#include <utility>

#include "fulgur/core/state/state_bytes.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "logging/log_store.h"
#include "logging/rank_numbers.h"

namespace fulgur::detail {

namespace {

std::string_view hook_of(LogScope scope) {
  if (scope == LogScope::train_step) return "a step or batch hook of training";
  if (scope == LogScope::train_epoch) return "an epoch hook of training";
  return scope == LogScope::evaluation_step ? "a step or batch hook of an evaluation"
                                            : "an epoch hook of an evaluation";
}

std::string option_text(const std::string& option, const StateTree& value) {
  constexpr std::string_view kReduce[] = {"mean", "sum", "min", "max", "last"};
  if (option == "reduce_fx") return std::string(kReduce[static_cast<size_t>(value.as_int())]);
  return value.is_null() ? "not set" : value.as_bool() ? "true" : "false";
}

/// Throws a DistributedError that names the difference and the ranks if two ranks logged a metric with different
/// options.
void require_same_options(const std::vector<StateTree>& ranks) {
  struct First {
    int64_t rank;
    const StateTree* item;
  };
  std::map<std::pair<std::string, int64_t>, First> known;
  for (size_t r = 0; r < ranks.size(); ++r)
    for (const StateTree& item : ranks[r].as_list()) {
      const auto rank = static_cast<int64_t>(r);
      const std::string& name = item.at("name").as_string();
      const int64_t scope = item.at("scope").as_int();
      const auto [found, is_new] = known.try_emplace({name, scope}, First{rank, &item});
      if (is_new) continue;
      const First& first = found->second;
      for (const auto& [key, value] : item.at("options").as_map()) {
        const std::string option = key == "reduce" ? "reduce_fx" : key;
        const std::string there = option_text(option, first.item->at("options").at(key)),
                          here = option_text(option, value);
        if (there == here) continue;
        throw DistributedError(
            cat("[module.log] '", escape_controls(name), "' must be logged with the same options on all ranks; in ",
                hook_of(static_cast<LogScope>(scope)), ", ", option, " is ", there, " on rank ", first.rank, " and ",
                here, " on rank ", rank, ". Do not let options of log() depend on the rank."));
      }
    }
}

}  // namespace

/// The metrics of a stage, in an order that does not depend on who logs first.
struct LogStore::Plan {
  struct Item {
    std::shared_ptr<Slot> slot;
    const Accumulator* own;  // null if this rank has no value in the window
  };
  std::map<std::pair<std::string_view, LogScope>, Item> items;  // names are the slots'
  bool epoch = false;

  void add(std::shared_ptr<Slot> slot, const Accumulator* own) {
    const std::pair<std::string_view, LogScope> key(slot->name, slot->scope);
    items.try_emplace(key, Item{std::move(slot), own});
  }

  /// Equal on two ranks only if they exchange the same numbers.
  std::string text() const {
    StateTree::List list;
    for (const auto& [key, item] : items)
      list.push_back(StateTree::map({{"name", item.slot->name},
                                     {"scope", static_cast<int64_t>(item.slot->scope)},
                                     {"options", log_options_state(item.slot->options)}}));
    return pack_state(list);
  }

  bool has(const Slot& slot) const { return epoch ? slot.on_epoch : slot.on_step; }

  /// One value for all ranks, since callbacks on all of them base decisions on it: without sync_dist, that of the first
  /// rank.
  RankNumber::Merge merge_of(const Slot& slot) const {
    if (!epoch && !slot.options.sync_dist) return RankNumber::Merge::first;
    using Merge = RankNumber::Merge;
    static constexpr Merge kMerges[] = {Merge::sum, Merge::sum, Merge::min, Merge::max, Merge::first};
    return kMerges[static_cast<size_t>(slot.options.reduce_fx)];
  }

  bool has_weight(const Slot& slot) const {
    return slot.options.reduce_fx == Reduce::mean && merge_of(slot) == RankNumber::Merge::sum;
  }

  /// `counts`: values that are added are added for this rank, too.
  std::vector<RankNumber> numbers(bool counts) const {
    std::vector<RankNumber> numbers;
    for (const auto& [key, item] : items) {
      if (!has(*item.slot)) continue;
      const RankNumber::Merge merge = merge_of(*item.slot);
      std::optional<double> value, weight;
      if (item.own && (counts || merge != RankNumber::Merge::sum)) {
        // With one rank a mean is sent as it is; with several, its components are sent.
        value = merge == RankNumber::Merge::first ? finish(*item.own, item.slot->options.reduce_fx) : item.own->value;
        weight = item.own->weight;
      }
      numbers.push_back({merge, value});
      if (has_weight(*item.slot)) numbers.push_back({merge, weight});
    }
    return numbers;
  }

  /// The merged `numbers` of all ranks. Omits metrics that no rank has logged.
  std::unordered_map<const Slot*, Accumulator> values(const std::vector<std::optional<double>>& merged) const {
    std::unordered_map<const Slot*, Accumulator> values;
    auto next = merged.begin();
    for (const auto& [key, item] : items) {
      if (!has(*item.slot)) continue;
      const std::optional<double> value = *next++;
      const std::optional<double> weight = has_weight(*item.slot) ? *next++ : 1;
      if (!value) continue;
      Accumulator& a = values[item.slot.get()];
      a.value = *value;
      a.weight = weight.value();
      a.count = 1;
    }
    return values;
  }
};

LogStore::Plan LogStore::plan_of(const std::vector<Running>& own, RunningStage stage, bool epoch) const {
  Plan plan;
  plan.epoch = epoch;
  for (const auto& [slot, a] : own) plan.add(slot, &a);
  // Includes metrics that cannot be in this row, so that all ranks detect differing options. Options known only from a
  // checkpoint may have changed.
  for (const auto& s : slots_)
    if (s->stage == stage && !s->of_checkpoint) plan.add(s, nullptr);
  return plan;
}

void LogStore::learn(const std::string& plan, RunningStage stage, Collectives& collectives) {
  std::vector<StateTree> ranks;
  for (const std::string& text : collectives.gather_text(plan)) ranks.push_back(unpack_state(text));
  require_same_options(ranks);
  for (const StateTree& known : ranks)
    for (const StateTree& item : known.as_list())
      (void)slot(item.at("name").as_string(), static_cast<LogScope>(item.at("scope").as_int()), stage,
                 log_options_from(item.at("options")));
}

std::optional<double> LogStore::monitored(std::string_view final_name, Collectives& collectives) {
  std::optional<double> own;
  const Slot* latest = latest_of(final_name, RunningStage::validate);
  if (const auto found = taken_.validated.find(final_name); !latest && found != taken_.validated.end())
    own = found->second;
  else if (!latest)
    latest = latest_of(final_name, RunningStage::train);
  if (latest)
    own = latest_value(*latest);
  else if (!own)
    own = written(final_name);
  if (collectives.world_size() == 1) return own;
  // Ranks may have logged different things: all exchange the same numbers.
  std::optional<double> sum, weight, least, most;
  if (latest && latest->options.sync_dist && (counts_ || latest->stage != RunningStage::train)) {
    const double samples = latest->latest.value.weight + latest->latest.value.device_weight;
    const Reduce reduce = latest->options.reduce_fx;
    if (reduce == Reduce::mean) sum = *own * samples, weight = samples;
    if (reduce == Reduce::sum) sum = *own, weight = 0;
    if (reduce == Reduce::min) least = own;
    if (reduce == Reduce::max) most = own;
  }
  using Merge = RankNumber::Merge;
  const auto merged = merge_numbers(
      collectives, hash_number(final_name),
      {{Merge::first, own}, {Merge::sum, sum}, {Merge::sum, weight}, {Merge::min, least}, {Merge::max, most}});
  if (!merged)
    throw DistributedError(cat("[trainer.monitored_metric] ranks ask for different metrics; this one asks for '",
                               escape_controls(final_name), "'. All ranks must ask for the same metric."));
  const auto& all = *merged;
  if (all[1]) return all[2].value() == 0 ? all[1] : std::optional(*all[1] / *all[2]);
  return all[3] ? all[3] : all[4] ? all[4] : all[0];
}

void LogStore::merge(Window& window, Collectives& collectives) {
  const std::vector<Running> own = std::exchange(window.values_, {});
  Plan plan = plan_of(own, window.stage_, window.epoch_);
  std::string text = plan.text();
  auto merged =
      merge_numbers(collectives, hash_number(text), plan.numbers(counts_ || window.stage_ != RunningStage::train));
  if (!merged) {
    // One rank has logged a metric that another has not. From here on, all ranks know it.
    learn(text, window.stage_, collectives);
    plan = plan_of(own, window.stage_, window.epoch_);
    text = plan.text();
    merged =
        merge_numbers(collectives, hash_number(text), plan.numbers(counts_ || window.stage_ != RunningStage::train));
  }
  std::unordered_map<const Slot*, Accumulator> values = plan.values(merged.value());
  const auto take = [&](const std::shared_ptr<Slot>& slot) {
    const auto found = values.find(slot.get());
    if (found == values.end()) return;
    window.values_.emplace_back(slot, found->second);
    slot->has_steps |= !window.epoch_;
    values.erase(found);
  };
  for (const auto& s : slots_) take(s);
  // A slot may have been reset since the window was closed.
  for (const auto& [slot, a] : own) take(slot);
}

}  // namespace fulgur::detail
