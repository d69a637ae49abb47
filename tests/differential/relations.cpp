#include "relations.h"

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

}  // namespace fulgur::test
