#include <algorithm>
#include <csignal>
#include <iterator>
#include <optional>
#include <set>

#include "fulgur/core/text/text.h"
#include "relation_parts.h"
#include "result.h"

namespace fulgur::test {
namespace fs = std::filesystem;

namespace {

using Kind = Verdict::Kind;

// How far runs may differ that sum up in another order. LBFGS divides by differences of gradients that are nearly
// equal.
double rounding_of(const Plan& plan) {
  return value_at<std::string>(plan, "/optimizer/class_path", "") == "LBFGS" ? 1e-4 : 1e-6;
}

// An evaluation is divided among all ranks.
Plan with_batches_of(Plan plan, int64_t shares, int64_t ranks) {
  plan["data"]["batch_size"] = value_at<int64_t>(plan, "/data/batch_size", 2) * shares;
  plan["data"]["eval_batch_size"] = value_at<int64_t>(plan, "/data/eval_batch_size", 2) * ranks;
  for (Plan& each : plan["callbacks"])
    if (each["class_path"] == "BatchSizeScheduler")
      each["init_args"]["max"] = each["init_args"]["max"].get<int64_t>() * shares;
  return plan;
}

// Whether a step may have several batches.
bool accumulates(const Plan& plan) {
  return plan.at("trainer").contains("accumulate_grad_batches") ||
         std::ranges::any_of(plan.at("callbacks"), [](const Plan& each) {
           return each["class_path"] == "GradientAccumulationScheduler" ||
                  value_at<std::string>(each, "/init_args/by", "") == "accumulation";
         });
}

// A loss that stays the same, since no step was made yet, differs in its last bit: that must not decide.
void without_stops_by_rounding(Plan& plan) {
  for (Plan& each : plan["callbacks"])
    if (each["class_path"] == "EarlyStopping") each["init_args"]["min_delta"] = 1e-9;
}

// Adds a second training loader. With it, the length of an epoch in samples is not known, so a schedule cannot convert
// lengths in samples.
void with_second_loader(Plan& plan, SplitMix64& random) {
  static constexpr const char* kModes[] = {"max_size", "sequential", "max_size_cycle"};
  plan["data"]["second"] = 1 + static_cast<int64_t>(random.below(14));
  plan["data"]["mode"] = kModes[random.below(std::size(kModes))];
  if (value_at(plan, "/lr_scheduler/init_args/step_size", Plan()).is_string())
    plan["lr_scheduler"]["init_args"]["step_size"] = 2;
}

// Ranks and batch sizes of the two parts of a run.
struct Change {
  int64_t from, to, batch, batch_to;
};

Change change_of(const Plan& plan, SplitMix64& random, SplitMix64& of_batches) {
  const auto from = 1 + static_cast<int64_t>(random.below(3));
  // The batches of a batch sampler have one size, for one number of ranks.
  const bool fixed = value_at(plan, "/data/batches", false);
  const auto batch = value_at<int64_t>(plan, "/data/batch_size", 2);
  const int64_t other_batch = 1 + (batch + static_cast<int64_t>(of_batches.below(5))) % 6,
                batch_to = fixed || of_batches.below(2) == 0 ? batch : other_batch;
  const bool same_ranks = fixed || (batch_to != batch && of_batches.below(3) > 0);
  const int64_t other = 1 + (from + static_cast<int64_t>(random.below(2))) % 3;
  return {.from = from, .to = same_ranks ? from : other, .batch = batch, .batch_to = batch_to};
}

// Leaves out what has other samples, or other numbers of them, by design.
Plan with_the_same_samples(Plan plan) {
  without_limit(plan);
  for (const char* key : {"max_steps", "min_steps", "min_epochs", "on_nonfinite", "check_every"})
    plan["trainer"].erase(key);
  for (const char* key : {"skip_epoch", "nan_every", "no_loss_every", "norm"}) plan["model"].erase(key);
  without_times(plan);
  for (const char* key : {"kind", "drop_last"}) plan["data"].erase(key);
  plan["events"].erase("stop_at");
  if (value_at<std::string>(plan, "/data/order", "") == "weighted") plan["data"]["order"] = "shuffled";
  without_callback(plan, "EarlyStopping");
  // An interval in batches must not be longer than the new epochs.
  if (value_at(plan, "/trainer/val_check_interval", Plan()).is_number_integer())
    plan["trainer"]["val_check_interval"] = 1;
  plan["trainer"]["max_epochs"] = value_at<int64_t>(plan, "/trainer/max_epochs", 2);
  return plan;
}

// A part that is killed at or after batch `save`, and one that resumes from there.
Verdict run_parts(const Plan& plan, const Change& change, int64_t save, SplitMix64& random, const fs::path& folder) {
  Plan before = config_of(plan, folder, change.from);
  Plan& events = before["trainer"]["callbacks"][0]["init_args"];
  events["save_at"] = Plan::array({save});
  events["kill_at"] = save + static_cast<int64_t>(random.below(3));
  events["kill_place"] = random.below(2) == 0 ? "batch_end" : "published";
  const Ended first = fit(before, folder, change.from);
  if (first.hung) return {Kind::hung, "the first part hung\n" + tail(first.text)};
  if (first.all(0)) return {};
  if (std::ranges::find(first.codes, -SIGKILL) == first.codes.end())
    return allowed({trouble("the first part", first)->kind, first.text});
  Plan after = config_of(plan, folder, change.to);
  after["ckpt_path"] = "auto";
  if (change.batch_to != change.batch) after["data"]["init_args"]["batch_size"] = change.batch_to;
  const auto bad = trouble("the second part", fit(after, folder, change.to));
  return bad ? allowed(*bad) : Verdict{};
}

// Whether each sample was seen in each epoch, and no more than `most_surplus` samples once more.
Verdict seen_in_each_epoch(const fs::path& folder, int64_t samples, int64_t epochs,
                           std::optional<int64_t> most_surplus) {
  const auto seen = seen_in(folder);
  int64_t surplus = 0;
  std::string wrong;
  for (int64_t sample = 0; sample < samples; ++sample) {
    const auto times = seen.contains(sample) ? seen.at(sample) : 0;
    if (times < epochs) wrong += cat(" ", sample, " (", times, " times)");
    surplus += times - epochs;
  }
  if (!wrong.empty())
    return {Kind::differs, cat("samples seen less than ", epochs, " times:", wrong, '\n', lives_in(folder))};
  if (most_surplus && surplus > *most_surplus)
    return {Kind::differs,
            cat(surplus, " samples were seen once more, at most ", *most_surplus, " may be\n", lives_in(folder))};
  return {};
}

}  // namespace

Verdict other_ranks_or_batches_see_each_sample_once(const Plan& given, const fs::path& folder) {
  Plan plan = with_the_same_samples(given);
  SplitMix64 random = random_of(plan, 9), of_batches = random_of(plan, 19);
  const Change change = change_of(plan, random, of_batches);
  if (value_at<int64_t>(plan, "/data/second", 0) == 0 && of_batches.below(3) == 0) with_second_loader(plan, of_batches);
  const auto of_second = value_at<int64_t>(plan, "/data/second", 0);
  // A shorter loader begins again with `max_size_cycle`, and ends the epoch early with `min_size`.
  std::string mode = value_at<std::string>(plan, "/data/mode", "max_size_cycle");
  if (mode == "min_size" || (mode == "max_size_cycle" && change.to != change.from)) mode = "max_size";
  const bool repeats = of_second > 0 && mode == "max_size_cycle";
  if (of_second > 0) plan["data"]["mode"] = mode;
  const auto epochs = value_at<int64_t>(plan, "/trainer/max_epochs", 2);
  const int64_t samples = value_at<int64_t>(plan, "/data/num_train", 12) + of_second;
  const int64_t batches = epochs * (samples / (change.from * change.batch) + 1);
  const auto save = 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(batches)));
  Verdict verdict = run_parts(plan, change, save, random, folder);
  // What does not divide is filled up: with samples that come once more.
  const int64_t most_surplus =
      (of_second > 0 ? 2 : 1) * (epochs * (std::max(change.from, change.to) - 1) + change.to - 1);
  if (verdict.kind == Kind::holds)
    verdict = seen_in_each_epoch(folder, samples, epochs, repeats ? std::nullopt : std::optional(most_surplus));
  if (verdict.kind != Kind::holds)
    verdict.text = cat(change.from, " ranks with batches of ", change.batch, " until batch ", save, ", then ",
                       change.to, " with batches of ", change.batch_to, "\n", verdict.text);
  return verdict;
}

Verdict shares_equal_one(const Plan& given, int64_t shares, int64_t ranks, const fs::path& folder) {
  const std::string optimizer = value_at<std::string>(given, "/optimizer/class_path", "");
  // Lion steps by signs and Muon rounds to bfloat16: both make much of rounding errors.
  if (optimizer == "Lion" || optimizer == "Muon" || value_at<double>(given, "/model/dropout", 0) > 0) return kNoMatter;
  // Each rank's average is of its share of a batch.
  if (value_at(given, "/model/average", false)) return kNoMatter;
  // One rank sees a loss at once, several see the gradients of all, when the window ends.
  const bool rolls_back = value_at<std::string>(given, "/trainer/on_nonfinite", "") == "rollback";
  if (rolls_back && accumulates(given)) return kNoMatter;
  Plan plan = shared_out(given, shares, true);
  plan["trainer"]["precision"] = "64-true";
  without_stops_by_rounding(plan);
  const fs::path one = folder / "one", several = folder / "several";
  if (auto bad = trouble("one rank", fit(config_of(with_batches_of(plan, shares, ranks), one), one)))
    return allowed(*bad);
  if (auto bad = trouble(cat(ranks, " ranks"), fit(config_of(plan, several, ranks), several, ranks)))
    return allowed(*bad);
  // So several may have logged norms of a step that they undo.
  std::set<std::string> own = {"metrics.rank_mean", "counted."};
  if (rolls_back) own.insert({"metrics.grad_", "metrics.weight_", "metrics.nonfinite_gradients"});
  const Verdict verdict = compared(cat("one rank and ", ranks), one, several, rounding_of(plan), own);
  if (verdict.bad()) return verdict;
  // A value of each rank, logged when the epoch of validation has ended: no rank counts for more than another.
  const auto result = result_in(several);
  const auto mean = result->numbers.find("metrics.rank_mean");
  if (mean != result->numbers.end() && mean->second != static_cast<double>(ranks - 1) / 2)
    return {Kind::differs, cat("the mean of the ranks' numbers is ", mean->second)};
  return compared_checkpoints(cat("one rank and ", ranks), one, several);
}

Verdict ranks_equal_one(const Plan& given, const fs::path& folder) {
  const int64_t ranks = 2 + static_cast<int64_t>(random_of(given, 7).below(2));
  return shares_equal_one(given, ranks, ranks, folder);
}

Verdict devices_equal_one(const Plan& given, const fs::path& folder) {
  SplitMix64 random = random_of(given, 12);
  static constexpr const char* kStrategies[] = {"dp", "model_parallel", "model_parallel", "hybrid"};
  const std::string strategy = kStrategies[random.below(std::size(kStrategies))];
  const auto parts = strategy == "model_parallel" ? static_cast<int64_t>(1 + random.below(2)) : int64_t{1};
  const bool manual = value_at(given, "/model/manual", false), cuts = strategy != "model_parallel" || parts > 1;
  Plan plan = given;
  without_stops_by_rounding(plan);
  if (cuts) {
    // As in `ranks_equal_one`: rounding; a part of a batch has other masks and statistics than the batch.
    const std::string optimizer = value_at<std::string>(given, "/optimizer/class_path", "");
    if (optimizer == "Lion" || optimizer == "Muon") return kNoMatter;
    // Nor is a batch cut whose entries have different numbers of samples.
    if (value_at(given, "/model/average", false)) return kNoMatter;
    if (strategy != "hybrid" &&
        (value_at(given, "/model/norm", false) || value_at<double>(given, "/model/dropout", 0) > 0 || manual ||
         value_at<int64_t>(given, "/data/second", 0) > 0))
      return kNoMatter;
    plan["trainer"]["precision"] = "64-true";
  }
  const auto devices = static_cast<int64_t>(2 + random.below(2));
  Plan placement = {{"last", devices - 1}};
  // Two layers that share a weight stay where they are.
  if (!value_at(given, "/model/tied", false))
    placement["middle"] = strategy == "hybrid" ? Plan::array({0, 1}) : Plan(1);
  Plan arguments = Plan::object();
  if (strategy != "dp") arguments["placement"] = placement;
  if (parts > 1) arguments["micro_batches"] = parts;
  const fs::path one = folder / "one", several = folder / "several";
  for (const bool all : {false, true}) {
    const fs::path& where = all ? several : one;
    Plan config = config_of(plan, where);
    config["trainer"]["accelerator"] = "virtual";
    config["trainer"]["devices"] = all ? devices : 1;
    if (all) config["trainer"]["strategy"] = {{"class_path", strategy}, {"init_args", arguments}};
    if (auto bad = trouble(all ? strategy : "one device", fit(config, where))) return all ? allowed(*bad) : *bad;
  }
  return compared(cat("one device and ", devices, " by ", strategy, " ", arguments.dump()), one, several,
                  cuts ? rounding_of(plan) : 0);
}

}  // namespace fulgur::test
