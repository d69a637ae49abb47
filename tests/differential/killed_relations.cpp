#include <algorithm>
#include <csignal>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "relation_parts.h"
#include "result.h"
#include "support/temporary_folder.h"

namespace fulgur::test {
namespace fs = std::filesystem;

namespace {

using Kind = Verdict::Kind;

// The version that the first logger asks for; -1: none.
int64_t version_of(const Plan& plan) { return value_at<int64_t>(plan, "/trainer/logger/0/init_args/version", -1); }

// What the loggers of the fit that ended in `folder` have written.
std::string rows_in(const fs::path& folder, int64_t version) {
  for (const auto& run : fs::directory_iterator(folder / "fulgur_logs"))
    if (fs::exists(run.path() / "finished.json") && (version < 0 || run.path().filename() == cat("version_", version)))
      return read_text(run.path() / "metrics.csv") + read_text(run.path() / "metrics.jsonl");
  return "";
}

// The step of the last checkpoint of the fit that ended in `folder`; -1: it has none.
int64_t last_saved_step(const fs::path& folder, int64_t version) {
  for (const auto& run : fs::directory_iterator(folder / "fulgur_logs")) {
    const fs::path last = run.path() / "checkpoints" / "last.ckpt";
    if (!fs::exists(run.path() / "finished.json") || !fs::exists(last)) continue;
    if (version < 0 || run.path().filename() == cat("version_", version))
      return read_checkpoint(last).state.at("progress").at("global_step").as_int();
  }
  return -1;
}

// The first line in which they differ.
std::string first_difference(const std::string& a, const std::string& b) {
  std::istringstream first(a), second(b);
  std::string line, other;
  for (int64_t number = 1;; ++number) {
    const bool more = static_cast<bool>(std::getline(first, line)),
               others = static_cast<bool>(std::getline(second, other));
    if (!more && !others) return "";
    if (more != others || line != other)
      return cat("line ", number, ":\n", more ? line : "(none)", "\n", others ? other : "(none)");
  }
}

// Whether a rank may end with this code if another was ended so.
bool belongs_to_end(const Plan& config, int code) {
  const std::string way = way_of(config);
  if (code == 0 || code == static_cast<int>(ExitCode::distributed)) return true;
  if (way == "SIGTERM")
    return code == static_cast<int>(ExitCode::preempted) || code == static_cast<int>(ExitCode::terminated);
  if (way == "SIGINT") return code == static_cast<int>(ExitCode::interrupted);
  if (way == "exception") return code == static_cast<int>(ExitCode::other);
  return code == -SIGKILL;
}

// Names of the checkpoints of a run, without the suffix of a name that was taken; or those that links point to.
std::multiset<std::string> plain_names_in(const fs::path& folder, bool of_links = false) {
  constexpr std::string_view kArrow = " -> ";
  std::multiset<std::string> names;
  for (const std::string& name : checkpoints_in(folder)) {
    const size_t arrow = name.find(kArrow);
    if ((arrow != std::string::npos) != of_links) continue;
    const std::string plain = of_links ? name.substr(arrow + kArrow.size()) : name;
    names.insert(plain.substr(0, std::min(plain.find("-v"), plain.rfind(".ckpt"))));
  }
  return names;
}

// Whether each epoch that comes to its end is validated.
bool validates_each_epoch(const Plan& plan) {
  return value_at<int64_t>(plan, "/data/num_val", 4) > 0 && !plan["trainer"].contains("check_val_every_n_epoch") &&
         !plan["model"].contains("skip_epoch");
}

// Whether the rest of a run is the same if hooks at the end of one batch, and what follows them, are left out: requests
// of stops, seconds of the clock, and decisions about losses that are not finite.
bool depends_on_no_batch_end(const Plan& plan, int64_t ranks) {
  return ranks == 1 && !value_at(plan, "/events/clock", false) && !plan["events"].contains("stop_at") &&
         !plan["trainer"].contains("on_nonfinite");
}

// Before the first batch of a process and after its last one.
constexpr const char* kPlacesOutsideBatches[] = {"setup",     "fit_start", "train_start",
                                                 "train_end", "fit_end",   "teardown"};

// SIGUSR1 asks for a checkpoint and ends no process. If one of several ranks ends while they start, the others wait for
// it until their timeout.
bool may_end_outside_batches(const std::string& way, int64_t ranks) {
  return way == "SIGUSR1" || (ranks == 1 && way != "exception");
}

// A fit of the next version in the same folder, which a run of its own version never takes for itself.
Ended fit_beside(const Plan& plan, const fs::path& folder) {
  Plan other = plan;
  other["callbacks"] = Plan::array();
  other["seed_everything"] = value_at<uint64_t>(plan, "/seed_everything", 0) + 1;
  other["trainer"]["logger"][0]["init_args"]["version"] = version_of(plan) + 1;
  Plan config = config_of(other, folder);
  config["trainer"]["callbacks"][0]["init_args"]["folder"] = (folder / "beside").string();
  return fit(config, folder);
}

// The ends of the processes of a run.
struct Ends {
  const Plan& plan;
  int64_t ranks;
  uint64_t batches;  // of the quiet run
  bool rolls_back, beside;
  SplitMix64 random, outside_batches;
  std::string story;
  bool only_signals;  // no exception, full disk or fit beside the run
};

// Ends the process of `config` at a place that the plan's seed says.
void add_end(Plan& config, Ends& ends) {
  Plan& events = config["trainer"]["callbacks"][0]["init_args"];
  static constexpr const char* kPlaces[] = {
      "batch_start", "after_backward", "before_step", "before_zero_grad", "batch_end",       "epoch_end",
      "save",        "validation_end", "published",   "epoch_start",      "validation_batch"};
  events["kill_at"] = ends.random.below(ends.batches + 1);
  events["kill_place"] = kPlaces[ends.random.below(std::size(kPlaces))];
  events["kill_rank"] =
      ends.ranks > 1 ? static_cast<int64_t>(ends.random.below(static_cast<uint64_t>(ends.ranks) + 1)) - 1 : -1;
  static constexpr const char* kWays[] = {"SIGKILL", "SIGKILL", "SIGTERM",   "SIGTERM",
                                          "SIGINT",  "SIGUSR1", "exception", "exception"};
  // A signal writes a checkpoint, which is then the one that a rollback returns to.
  events["kill_by"] = kWays[ends.random.below(ends.rolls_back ? 2 : std::size(kWays))];
  // A batch that fails after its step counts, and a resume does not repeat what of its end comes after that.
  const bool after_step = events["kill_place"] == "before_zero_grad" || events["kill_place"] == "batch_end";
  const bool may_save = !after_step || depends_on_no_batch_end(ends.plan, ends.ranks);
  events["save_failed"] = ends.random.below(2) == 0 && may_save;
  const bool saves = std::ranges::any_of(
      ends.plan["callbacks"], [](const Plan& each) { return value_at(each, "/init_args/save_on_exception", false); });
  if (!may_save && saves && events["kill_by"] == "exception") events["kill_place"] = "batch_start";
  if (ends.outside_batches.below(events["kill_by"] == "SIGUSR1" ? 2 : 5) == 0 &&
      may_end_outside_batches(events["kill_by"].get<std::string>(), ends.ranks)) {
    events["kill_at"] = 0;
    events["kill_place"] = kPlacesOutsideBatches[ends.outside_batches.below(std::size(kPlacesOutsideBatches))];
  }
  ends.only_signals = ends.only_signals && events["kill_by"] != "exception";
  ends.story += cat(events["kill_by"].get<std::string>(), " at batch ", events["kill_at"].get<int64_t>(), ", ",
                    events["kill_place"].get<std::string>(), ", rank ", events["kill_rank"].get<int64_t>(), "\n");
  // A rollback goes to what could be written.
  if (ends.ranks == 1 && ends.random.below(5) == 0 && !ends.rolls_back) {
    const auto from = static_cast<int64_t>(ends.random.below(ends.batches + 1));
    events["full"] = Plan::array({from, from + 1 + static_cast<int64_t>(ends.random.below(ends.batches + 1))});
    ends.story += cat("the disk is full in batches ", events["full"].dump(), " of the process\n");
    ends.only_signals = false;
    config["trainer"]["on_save_error"] = "continue";  // moves what `events` refers to
  }
}

// The run folder of the test is newer than that of the fit.
Verdict tested_in_between(Ends& ends, const fs::path& folder) {
  ends.story += "tested in between\n";
  Plan test = config_of(ends.plan, folder);
  test["trainer"]["callbacks"] = Plan::array();
  test["trainer"].erase("limit_val_batches");
  const Ended tested = evaluate(test, folder, 1);
  if (tested.hung) return {Kind::hung, "the test hung"};
  if (ends.beside && tested.text.find(cat("tested version_", version_of(ends.plan) + 1)) != std::string::npos)
    return {Kind::differs, "the last checkpoint of another version was tested"};
  return {};
}

// Processes that end at some place, and the one that finishes the run.
Verdict run_with_ends(Ends& ends, const fs::path& folder) {
  const uint64_t kills = 1 + ends.random.below(3);
  for (uint64_t i = 0; i <= kills; ++i) {
    Plan config = config_of(ends.plan, folder, ends.ranks);
    config["ckpt_path"] = "auto";
    if (i < kills) add_end(config, ends);
    if (i > 0 && ends.random.below(3) == 0)
      if (Verdict tested = tested_in_between(ends, folder); tested.bad()) return tested;
    const Ended ended = fit(config, folder, ends.ranks);
    if (ended.hung) return {Kind::hung, cat("the run hung\n", tail(ended.text))};
    // A place that is not reached ends nothing.
    if (ended_by(config, ended)) {
      for (const int code : ended.codes)
        if (!belongs_to_end(config, code))
          return {Kind::failed, cat("a rank ended with ", code, " beside one that was ended\n", tail(ended.text))};
      continue;
    }
    // The final checkpoint was not written: the run is not finished.
    if (i < kills && value_at(config, "/trainer/callbacks/0/init_args/full", Plan()).is_array() && ended.all(0))
      continue;
    return trouble("the run", ended).value_or(Verdict{});
  }
  return {};
}

// Checkpoints that ends by signals have left behind or lost, as text.
std::string left_or_lost(const Ends& ends, const fs::path& undisturbed, const fs::path& disturbed) {
  const auto quiet = plain_names_in(undisturbed), now = plain_names_in(disturbed);
  std::vector<std::string> left, lost;
  std::ranges::set_difference(now, quiet, std::back_inserter(left));
  std::ranges::set_difference(quiet, now, std::back_inserter(lost));
  // The checkpoint of a signal is there for the next process, and then no callback keeps it.
  const auto linked = plain_names_in(disturbed, /*of_links=*/true);
  std::erase_if(left, [&](const std::string& name) { return !name.starts_with("epoch=") || linked.contains(name); });
  // A process that is killed between writing and linking leaves one in a folder that others may use, too.
  const bool elsewhere = std::ranges::any_of(ends.plan["callbacks"], [](const Plan& each) {
    return !value_at<std::string>(each, "/init_args/dirpath", "").empty();
  });
  if (elsewhere && ends.story.find("SIGKILL") != std::string::npos) left.clear();
  if (left.empty() && lost.empty()) return "";
  return cat("checkpoints that are left of ends of processes: ", join(left), "\nthat are lost: ", join(lost));
}

// Compares tensors, numbers, the samples seen, and the metrics.
Verdict compared_with_quiet(const std::string& other, const Plan& plan, const fs::path& quiet, const fs::path& folder) {
  if (Verdict verdict = compared("quiet and " + other, quiet, folder); verdict.bad()) return verdict;
  if (seen_in(quiet) != seen_in(folder))
    return {Kind::differs, "samples were seen at other times than in the quiet run"};
  const std::string rows = first_difference(rows_in(quiet, version_of(plan)), rows_in(folder, version_of(plan)));
  if (!rows.empty()) return {Kind::differs, cat("metrics of the quiet and the ", other, " run differ in ", rows)};
  return {};
}

Verdict killed_run(Ends& ends, int64_t steps, const fs::path& quiet, const fs::path& disturbed) {
  if (Verdict verdict = run_with_ends(ends, disturbed); verdict.kind != Kind::holds) return verdict;
  if (Verdict verdict = compared_with_quiet("killed", ends.plan, quiet, disturbed); verdict.bad()) return verdict;
  const int64_t saved = last_saved_step(disturbed, version_of(ends.plan));
  if (steps > 0 && saved != steps)
    return {Kind::differs, cat("the last checkpoint is of step ", saved, ", the run finished at ", steps)};
  const std::string wrong = ends.only_signals ? left_or_lost(ends, quiet, disturbed) : "";
  return wrong.empty() ? Verdict{} : Verdict{Kind::differs, wrong};
}

// Several ends at places that the plan's seed says, then a run to the end.
Verdict killed(const Plan& plan, const fs::path& folder, int64_t ranks) {
  const fs::path quiet = folder / "quiet", disturbed = folder / "killed";
  if (auto bad = trouble("the quiet run", fit(config_of(plan, quiet, ranks), quiet, ranks)))
    return ranks > 1 ? allowed(*bad) : *bad;
  const auto whole = result_in(quiet);
  if (!whole) return {Kind::failed, "no result of the quiet run"};
  const auto fact = [&](const char* name) { return whole->numbers.at(cat("facts.", name)); };
  if (validates_each_epoch(plan) && fact("validations") < fact("epochs"))
    return {Kind::differs, cat("validations in ", fact("epochs"), " epochs: ", fact("validations"))};
  const bool beside = ranks == 1 && version_of(plan) >= 0 && random_of(plan, 16).below(2) == 0;
  Ends ends{.plan = plan,
            .ranks = ranks,
            .batches = static_cast<uint64_t>(fact("batches")),
            .rolls_back = value_at<std::string>(plan, "/trainer/on_nonfinite", "") == "rollback",
            .beside = beside,
            .random = random_of(plan, static_cast<uint64_t>(ranks)),
            .outside_batches = random_of(plan, 17),
            .story = beside ? cat("beside a fit of version ", version_of(plan) + 1, "\n") : "",
            .only_signals = !beside};
  if (beside)
    if (auto bad = trouble("the fit of another version", fit_beside(plan, disturbed))) return *bad;
  Verdict verdict = killed_run(ends, static_cast<int64_t>(fact("global_step")), quiet, disturbed);
  if (verdict.kind != Kind::holds) verdict.text = ends.story + verdict.text;
  return verdict;
}

}  // namespace

Verdict killed_equals_quiet(const Plan& plan, const fs::path& folder) { return killed(plan, folder, 1); }

Verdict killed_ranks_equal_quiet(const Plan& plan, const fs::path& folder) {
  const int64_t ranks = 2 + static_cast<int64_t>(random_of(plan, 8).below(2));
  return killed(shared_out(plan, ranks, false), folder, ranks);
}

Verdict killed_meshes_equal_quiet(const Plan& given, const fs::path& folder) {
  SplitMix64 random = random_of(given, 24);
  const MeshPlan mesh = on_mesh(given, random);
  return killed(shared_out(mesh.plan, mesh.shares, false), folder, mesh.ranks);
}

Verdict signalled_program_equals_quiet(const Plan& given, const fs::path& folder) {
  Plan plan = given;
  without_times(plan);
  SplitMix64 random = random_of(given, 18);
  const fs::path quiet = folder / "quiet", signalled = folder / "signalled";
  if (auto bad = trouble("the quiet run", fit(config_of(plan, quiet), quiet))) return *bad;
  std::string place = random.below(2) == 0 ? "created" : "destroyed";
  const bool in_fit = random.below(2) == 0;
  if (in_fit)
    place = kPlacesOutsideBatches[random.below(std::size(kPlacesOutsideBatches))];
  else
    plan["data"]["signal_when"] = place;
  Plan config = config_of(plan, signalled);
  Plan& events = config["trainer"]["callbacks"][0]["init_args"];
  if (in_fit) events["kill_at"] = 0, events["kill_place"] = place, events["kill_by"] = "SIGUSR1";
  const std::string story = cat("SIGUSR1 at ", place, in_fit ? "" : " of the data", "\n");
  if (auto bad = trouble("the program", fit_by_program(config, signalled))) return {bad->kind, story + bad->text};
  Verdict verdict = compared_with_quiet("signalled", plan, quiet, signalled);
  if (verdict.bad()) verdict.text = story + verdict.text;
  return verdict;
}

// However often checkpoints are written: if each loss is NaN from a step on, the run ends.
Verdict rollback_gives_up(const Plan& given, const fs::path& folder) {
  Plan plan = given;
  SplitMix64 random = random_of(given, 13);
  const auto ranks = 1 + static_cast<int64_t>(random.below(2));
  if (ranks > 1) plan = shared_out(plan, ranks, false);
  for (const char* key : {"manual", "manual_steps", "no_loss_every", "nan_every", "skip_epoch"})
    plan["model"].erase(key);
  without_limit(plan);
  for (const char* key : {"max_steps", "max_time", "min_epochs", "min_steps"}) plan["trainer"].erase(key);
  for (const char* key : {"save_at", "stop_at"}) plan["events"].erase(key);
  without_callback(plan, "EarlyStopping");
  if (value_at<std::string>(plan, "/optimizer/class_path", "") == "LBFGS")
    plan["optimizer"] = Plan{{"class_path", "SGD"}, {"init_args", {{"lr", 0.1}}}};
  const auto from = 1 + static_cast<int64_t>(random.below(3));
  plan["model"]["nan_from"] = from;
  plan["model"]["nan_is_constant"] = random.below(2) == 0;
  Plan& trainer = plan["trainer"];
  trainer["max_epochs"] = 60;
  trainer["on_nonfinite"] = "rollback";
  trainer.erase("accumulate_grad_batches");
  Plan saving = {{"filename", "often-{step}"}, {"save_top_k", -1}};
  if (random.below(3) == 0)
    saving["save_on_train_epoch_end"] = true;
  else
    saving["every_n_train_steps"] = 1 + static_cast<int64_t>(random.below(2));
  plan["callbacks"].push_back(Plan{{"class_path", "ModelCheckpoint"}, {"init_args", saving}});
  const Ended ended = fit(config_of(plan, folder, ranks), folder, ranks);
  if (ended.hung) return {Kind::hung, tail(ended.text)};
  if (ended.all(static_cast<int>(ExitCode::non_finite))) return {};
  if (auto bad = trouble(cat(ranks, " ranks"), ended)) return allowed(*bad);
  return {Kind::differs, cat("losses were NaN from step ", from, " on, and the run ended as if nothing were wrong\n",
                             tail(ended.text))};
}

}  // namespace fulgur::test
