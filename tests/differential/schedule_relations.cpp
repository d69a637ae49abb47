#include <cmath>
#include <map>
#include <sstream>
#include <utility>

#include "fulgur/core/text/text.h"
#include "relation_parts.h"
#include "result.h"
#include "support/temporary_folder.h"

namespace fulgur::test {
namespace fs = std::filesystem;

namespace {

using Kind = Verdict::Kind;

// The rate that each number of samples was trained with.
std::map<int64_t, double> rates_in(const fs::path& folder) {
  std::map<int64_t, double> rates;
  std::istringstream lines(read_text(folder / "rates"));
  int64_t samples = 0, step = 0;
  double rate = 0;
  while (lines >> samples >> step >> rate) rates.emplace(samples, rate);
  return rates;
}

// A fit with windows of `before` batches, which resumes with windows of `after` batches.
struct Windows {
  int64_t before, after;
  int64_t batch, batches, epochs;  // samples of a batch, batches of an epoch
  // Otherwise the last window of an epoch is shorter. Then only schedules of epochs and of the run are exact, at the
  // ends of epochs.
  bool divides;
  bool scales;  // with scale_lr, rates also follow the samples of a step
};

Plan schedule_plan(Plan plan) {
  for (const char* key : {"skip_epoch", "no_loss_every", "nan_every", "manual", "manual_steps"})
    plan["model"].erase(key);
  without_limit(plan);
  for (const char* key : {"max_steps", "max_time", "min_epochs", "min_steps", "on_nonfinite"})
    plan["trainer"].erase(key);
  for (const char* key : {"kind", "second", "mode", "drop_last"}) plan["data"].erase(key);
  for (const char* key : {"lr_scheduler_monitor", "lr_scheduler_strict", "lr_scheduler_frequency"}) plan.erase(key);
  plan["events"] = Plan::object();
  plan["callbacks"] = Plan::array();
  plan["optimizer"] = Plan{{"class_path", "SGD"}, {"init_args", {{"lr", 0.01}, {"momentum", 0.5}}}};
  plan["lr_scheduler_interval"] = "step";
  return plan;
}

// Adds a schedule and lengths to the plan.
Windows add_windows(Plan& plan, SplitMix64& random) {
  const auto before = static_cast<int64_t>(1 + random.below(4)),
             after = 1 + (before + static_cast<int64_t>(random.below(3))) % 4;
  const auto batch = value_at<int64_t>(plan, "/data/batch_size", 2);
  const int64_t batches = one_of(random, {12, 12, 13, 10, 7}).get<int64_t>();
  const bool divides = batches % before == 0 && batches % after == 0;
  const auto epochs = static_cast<int64_t>((divides ? 2 : 3) + random.below(3));
  plan["data"]["num_train"] = batch * batches;
  plan["trainer"]["max_epochs"] = epochs;
  const Plan unit = divides
                        ? one_of(random, {Plan(cat(6 * batch, "sa")), "1ep", "0.25dur", Plan(cat(18 * batch, "sa"))})
                        : one_of(random, {"1ep", "0.25dur"});
  plan["lr_scheduler"] =
      one_of(random, {
                         Plan{{"class_path", "StepLR"}, {"init_args", {{"step_size", unit}, {"gamma", 0.5}}}},
                         Plan{{"class_path", "CosineAnnealingLR"}},
                         Plan{{"class_path", "OneCycleLR"}, {"init_args", {{"max_lr", 0.02}}}},
                         Plan{{"class_path", "WarmupLR"},
                              {"init_args", {{"length", unit}, {"after", {{"class_path", "CosineAnnealingLR"}}}}}},
                         Plan{{"class_path", "LinearLR"}, {"init_args", {{"total_iters", unit}}}},
                     });
  const bool scales = random.below(3) == 0;
  if (scales) {
    plan["trainer"]["scale_lr"] = "linear";
    plan["trainer"]["base_batch_size"] = 4 * batch;
  }
  plan["trainer"]["accumulate_grad_batches"] = before;
  return {before, after, batch, batches, epochs, divides, scales};
}

// Compares the rates after the change, which is at the end of an epoch.
Verdict compared_rates(const Windows& windows, int64_t epochs_before, const std::map<int64_t, double>& expected,
                       const std::map<int64_t, double>& got) {
  const auto& [before, after, batch, batches, epochs, divides, scales] = windows;
  const int64_t change = epochs_before * batches;
  int64_t count = 0;
  for (const auto& [samples, rate] : got) {
    // Between the windows of either, rates are those of the window.
    const bool between =
        samples % (batch * before) != 0 || (samples > change * batch && samples % (batch * after) != 0);
    if (divides ? between : samples % (batch * batches) != 0) continue;
    if (!expected.contains(samples)) continue;
    if (samples > change * batch) ++count;
    const double scaled =
        scales && samples >= change * batch ? static_cast<double>(after) / static_cast<double>(before) : 1;
    if (std::abs(rate - scaled * expected.at(samples)) > 1e-9)
      return {Kind::differs, cat("accumulation ", before, ", then ", after, " in epochs of ", batches,
                                 " batches: after ", samples, " samples the rate is ", rate, ", without a change ",
                                 expected.at(samples), scales ? cat(" × ", scaled) : "")};
  }
  // At least the rate after the last step, and that of each epoch's first step if only these are exact.
  if (count < (divides ? 1 : epochs - epochs_before))
    return {Kind::failed, "there are no rates to compare after the change"};
  return {};
}

}  // namespace

// A run that resumes with other windows of accumulation has the rates that it would have had by then. If the windows do
// not divide the epochs, it has them at the end of each epoch.
Verdict schedules_follow_samples(const Plan& given, const fs::path& folder) {
  SplitMix64 random = random_of(given, 14);
  Plan plan = schedule_plan(given);
  const Windows windows = add_windows(plan, random);
  const fs::path whole = folder / "whole", changed = folder / "changed";
  if (auto bad = trouble("the whole run", fit(config_of(plan, whole), whole))) return *bad;
  // At the end of an epoch both have whole windows. The last one before it may be open, and ends as it began; if
  // windows do not divide the epoch, the change comes exactly at its end.
  const int64_t epochs_before =
      windows.divides ? 1 : 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(windows.epochs - 2)));
  const auto open = windows.divides ? static_cast<int64_t>(random.below(static_cast<uint64_t>(windows.before))) : 0;
  Plan first = config_of(plan, changed), second = first;
  Plan& events = first["trainer"]["callbacks"][0]["init_args"];
  events["kill_at"] = epochs_before * windows.batches - open;
  events["kill_by"] = "SIGTERM";
  const Ended cut = fit(first, changed);
  if (!ended_by(first, cut)) return {Kind::failed, "the first part was not cut\n" + tail(cut.text)};
  second["ckpt_path"] = "auto";
  second["trainer"]["accumulate_grad_batches"] = windows.after;
  if (auto bad = trouble("the second part", fit(second, changed))) return *bad;
  auto expected = rates_in(whole), got = rates_in(changed);
  for (const auto& [where, rates] : {std::pair(&whole, &expected), std::pair(&changed, &got)}) {
    const auto result = result_in(*where);
    if (!result) return {Kind::failed, "no result of a run"};
    rates->emplace(static_cast<int64_t>(result->numbers.at("facts.samples_seen")), result->numbers.at("facts.rates.0"));
  }
  return compared_rates(windows, epochs_before, expected, got);
}

}  // namespace fulgur::test
