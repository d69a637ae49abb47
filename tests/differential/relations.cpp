#include "relations.h"

#include <set>

#include "forked.h"
#include "fulgur/core/text/text.h"
#include "hand_loop.h"
#include "relation_parts.h"
#include "result.h"

namespace fulgur::test {
namespace fs = std::filesystem;

Verdict equals_loop_by_hand(const Plan& given, const fs::path& folder) {
  Plan plan = given;
  plan["data"].erase("by_epoch");  // the loop keeps its loaders
  for (const char* name : {"SpikeDetection", "BatchSizeScheduler", "Finetuning", "WeightAveraging"})
    without_callback(plan, name);
  const fs::path trained = folder / "trainer", by_hand = folder / "by_hand";
  const Plan config = config_of(plan, trained);
  if (!can_train_by_hand(config)) return kNoMatter;
  if (auto bad = trouble("the Trainer", fit(config, trained))) return *bad;
  fs::create_directories(by_hand);
  const Ended ended = in_processes(1, by_hand / "log", [&](int64_t) { return train_by_hand(config, by_hand); });
  if (auto bad = trouble("the loop by hand", ended)) return *bad;
  return compared("the Trainer and a loop by hand", trained, by_hand, 0,
                  {"metrics.", "counted.", "facts.samples_seen", "facts.tokens_seen", "facts.validations"});
}

Verdict asynchronous_saves_equal_synchronous(const Plan& plan, const fs::path& folder) {
  const fs::path first = folder / "asynchronous", second = folder / "synchronous";
  for (const bool on : {true, false}) {
    Plan each = plan;
    each["trainer"]["async_checkpoint"] = on;
    const fs::path& where = on ? first : second;
    if (auto bad = trouble(on ? "asynchronous" : "synchronous", fit(config_of(each, where), where))) return *bad;
  }
  const Verdict verdict = compared("asynchronous and synchronous saves", first, second);
  if (verdict.bad()) return verdict;
  return compared_checkpoints("asynchronous and synchronous saves", first, second);
}

Verdict workers_equal_none(const Plan& plan, const fs::path& folder) {
  const fs::path first = folder / "workers", second = folder / "none";
  for (const int64_t workers : {3, 0}) {
    Plan each = plan;
    each["data"]["num_workers"] = workers;
    const fs::path& where = workers > 0 ? first : second;
    if (auto bad = trouble(cat(workers, " workers"), fit(config_of(each, where), where))) return *bad;
  }
  return compared("three workers and none", first, second);
}

Verdict metrics_equal_predictions(const Plan& given, const fs::path& folder) {
  if (value_at<int64_t>(given, "/data/num_val", 0) == 0) return kNoMatter;
  Plan plan = given;
  // Predictions are those of the weights that were trained.
  without_callback(plan, "WeightAveraging");
  plan["trainer"].erase("limit_val_batches");
  if (auto bad = trouble("the fit", fit(config_of(plan, folder), folder))) return *bad;
  // Without a step there is no checkpoint.
  if (result_in(folder)->numbers.at("facts.global_step") == 0) return kNoMatter;
  const auto ranks = 1 + static_cast<int64_t>(random_of(plan, 11).below(3));
  Plan config = config_of(plan, folder, ranks);
  // Rounding of outputs is not what is looked at.
  config["trainer"]["precision"] = "64-true";
  config["trainer"]["callbacks"] = Plan::array();
  const Ended ended = evaluate(config, folder, ranks);
  if (auto bad = trouble("evaluation", ended)) return *bad;
  return {};
}

namespace {

using Kind = Verdict::Kind;

// Which batch has no loss, or one that is NaN, is decided on the host, and a recording has what was decided then.
void without_rare_branches(Plan& plan) {
  for (const char* key : {"no_loss_every", "nan_every"}) plan["model"].erase(key);
}

Plan capture_config(const Plan& plan, const fs::path& where, const char* device, bool captures, int64_t ranks = 1) {
  Plan config = config_of(plan, where, ranks);
  config["trainer"]["accelerator"] = device;
  config["trainer"]["devices"] = ranks;
  config["trainer"]["capture"] = captures;
  config["trainer"]["capture_min_eval_batches"] = 2;
  config["trainer"]["callbacks"][0]["class_path"] = "DifferentialEvents";
  return config;
}

bool overrides_inner_hook(const Ended& ended) { return ended.text.find(" overrides ") != std::string::npos; }

// At once, or in two parts of which the first ends by a signal between two steps.
Ended fit_in_parts(const Plan& config, const fs::path& where, SplitMix64& random, int64_t ranks = 1) {
  if (random.below(3) > 0 || value_at(config, "/trainer/callbacks/0/init_args/clock", false))
    return fit(config, where, ranks);
  Plan first = config, rest = config;
  Plan& events = first["trainer"]["callbacks"][0]["init_args"];
  events["kill_at"] = 1 + random.below(16);
  events["kill_by"] = "SIGTERM";
  const Ended cut = fit(first, where, ranks);
  if (!ended_by(first, cut)) return cut;
  rest["ckpt_path"] = "auto";
  return fit(rest, where, ranks);
}

}  // namespace

// Bit for bit, also if the steps, or some of them, are refused.
Verdict captured_equals_eager_on_cpu(const Plan& given, const fs::path& folder) {
  Plan plan = given;
  without_rare_branches(plan);
  SplitMix64 random = random_of(given, 20);
  const fs::path eager = folder / "eager", captured = folder / "captured";
  if (auto bad = trouble("eager", fit(capture_config(plan, eager, "cpu", false), eager))) return *bad;
  const Ended ended = fit_in_parts(capture_config(plan, captured, "cpu", true), captured, random);
  if (auto bad = trouble("captured", ended)) return *bad;
  const Verdict verdict = compared("eager and captured steps", eager, captured);
  if (verdict.bad()) return {verdict.kind, verdict.text + tail(ended.text)};
  if (seen_in(eager) != seen_in(captured)) return {Kind::differs, "captured steps saw other samples"};
  return ended.text.find("capture: the step is captured") == std::string::npos ? kNoMatter : verdict;
}

Verdict captured_ranks_equal_eager(const Plan& given, const fs::path& folder) {
  SplitMix64 random = random_of(given, 31);
  const int64_t ranks = 2 + static_cast<int64_t>(random.below(2));
  Plan plan = shared_out(given, ranks, /*even=*/false);
  without_rare_branches(plan);
  // These are refused, and most plans have one of them.
  for (const char* key : {"sharding", "mesh"}) plan.erase(key);
  for (const char* key : {"unused", "manual", "manual_steps"}) plan["model"].erase(key);
  for (const char* key : {"debug", "detect_anomaly", "check_every"}) plan["trainer"].erase(key);
  for (const char* name : {"GradientMonitor", "SpikeDetection"}) without_callback(plan, name);
  if (random.below(4) > 0) plan["data"].erase("kind");
  if (value_at<std::string>(plan, "/optimizer/class_path", "") == "LBFGS")
    plan["optimizer"] = {{"class_path", "AdamW"}, {"init_args", {{"lr", 0.01}}}};
  if (plan["trainer"].contains("on_nonfinite"))
    plan["trainer"]["on_nonfinite"] = one_of(random, {"skip", "raise", "off"});
  const fs::path eager = folder / "eager", captured = folder / "captured";
  const auto config = [&](const fs::path& where, bool captures) {
    Plan made = capture_config(plan, where, "cpu", captures, ranks);
    made["trainer"].erase("sync_batchnorm");
    return made;
  };
  if (auto bad = trouble("eager", fit(config(eager, false), eager, ranks))) return allowed(*bad);
  const Ended ended = fit_in_parts(config(captured, true), captured, random, ranks);
  if (auto bad = trouble("captured", ended)) return *bad;
  const Verdict verdict = compared("eager and captured steps", eager, captured);
  if (verdict.bad()) return {verdict.kind, verdict.text + tail(ended.text)};
  if (seen_in(eager) != seen_in(captured)) return {Kind::differs, "captured steps saw other samples"};
  return ended.text.find("capture: the step is captured") == std::string::npos ? kNoMatter : verdict;
}

Verdict captured_equals_eager(const Plan& given, const fs::path& folder) {
  Plan plan = given;
  SplitMix64 random = random_of(given, 15);
  without_rare_branches(plan);
  for (const char* key : {"manual", "manual_steps"}) plan["model"].erase(key);
  // One looks at gradients in the step, and the other decides by a loss, which rounding moves over its limit.
  for (const char* name : {"GradientMonitor", "SpikeDetection"}) without_callback(plan, name);
  const std::string optimizer = value_at<std::string>(plan, "/optimizer/class_path", "");
  // Captured, Muon rounds once more.
  if (optimizer == "LBFGS" || optimizer == "Muon")
    plan["optimizer"] =
        one_of(random, {Plan{{"class_path", "Lion"}, {"init_args", {{"lr", 0.01}}}},
                        Plan{{"class_path", "RMSprop"}, {"init_args", {{"lr", 0.01}, {"momentum", 0.5}}}}});
  if (random.below(3) > 0 && !plan.contains("lr_scheduler_monitor")) {
    plan["lr_scheduler"] = one_of(
        random,
        {Plan{{"class_path", "OneCycleLR"}, {"init_args", {{"max_lr", 0.02}}}},
         Plan{{"class_path", "CyclicLR"}, {"init_args", {{"base_lr", 0.001}, {"max_lr", 0.02}, {"step_size_up", 3}}}}});
    plan["lr_scheduler_interval"] = "step";
    plan.erase("lr_scheduler_frequency");
    const bool has_momentum =
        plan["optimizer"]["class_path"] != "Adagrad" &&
        (plan["optimizer"]["class_path"] != "SGD" || value_at<double>(plan, "/optimizer/init_args/momentum", 0) > 0);
    if (!has_momentum) plan["lr_scheduler"]["init_args"]["cycle_momentum"] = false;
    if (plan["data"].contains("kind") || plan["data"].contains("second"))
      plan["lr_scheduler"]["init_args"]["total_steps"] = 40;
    if (plan["lr_scheduler"]["class_path"] == "CyclicLR") plan["lr_scheduler"]["init_args"].erase("total_steps");
  }
  plan["trainer"]["precision"] = one_of(random, {"32-true", "32-true", "bf16-mixed", "16-mixed"});
  const fs::path eager = folder / "eager", captured = folder / "captured";
  for (const bool captures : {false, true}) {
    const fs::path& where = captures ? captured : eager;
    const Ended ended = fit(capture_config(plan, where, "cuda", captures), where);
    if (auto bad = trouble(captures ? "captured" : "eager", ended)) return *bad;
    if (overrides_inner_hook(ended))
      return {Kind::failed, "a hook keeps each plan's steps from being captured\n" + tail(ended.text)};
  }
  // Rates are float32 on the device, and small differences become signs.
  const double tolerance = plan["optimizer"]["class_path"] == "Lion" ? 0.05 : 2e-3;
  // The gradient of a bias before a batch norm is rounding, of which Adam makes steps.
  std::set<std::string> without;
  if (value_at(plan, "/model/norm", false))
    without = {"weights.first.bias", "weights.norm.running_mean", "optimizers.0.state.first.bias"};
  return compared("eager and captured steps", eager, captured, plan.contains("lr_scheduler") ? tolerance : 1e-5,
                  without);
}

}  // namespace fulgur::test
