#include "relations.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

#include "forked.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/state/split_mix.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/trainer.h"
#include "fulgur/trainer/yaml.h"
#include "hand_loop.h"
#include "result.h"
#include "support/temporary_folder.h"

namespace fulgur::test {
namespace fs = std::filesystem;

namespace {

using Kind = Verdict::Kind;

const Verdict kNoMatter{.kind = Kind::no_matter};

// Random numbers of a plan's relation: the same for the same plan.
SplitMix64 random_of(const Plan& plan, uint64_t relation) {
  return SplitMix64(value_at<uint64_t>(plan, "/seed_everything", 0) * 1000 + relation);
}

std::string tail(const std::string& text) {
  constexpr size_t kMost = 3000;
  return text.substr(text.size() - std::min(text.size(), kMost));
}

// Nullopt if all ranks came to their end.
std::optional<Verdict> trouble(const std::string& what, const Ended& ended) {
  if (ended.hung) return Verdict{Kind::hung, cat(what, " hung\n", tail(ended.text))};
  if (ended.all(0)) return std::nullopt;
  // A loss that is not finite before there is a checkpoint, or after too many returns to one, ends the run.
  if (ended.all(static_cast<int>(ExitCode::non_finite))) return kNoMatter;
  std::string codes;
  for (const int code : ended.codes) codes += cat(' ', code);
  // All ranks refuse a config, or none does.
  const bool refused = ended.all(static_cast<int>(ExitCode::usage));
  return Verdict{refused ? Kind::refused : Kind::failed, cat(what, " ended with", codes, "\n", tail(ended.text))};
}

// Fewer batches of a rank: what was a limit or an interval inside an epoch may be none now, and is refused.
Verdict allowed(const Verdict& of_changed_plan) {
  return of_changed_plan.kind == Kind::refused ? kNoMatter : of_changed_plan;
}

Verdict compared(const std::string& what, const fs::path& first, const fs::path& second, double tolerance = 0,
                 const std::set<std::string>& without = {}) {
  const auto a = result_in(first), b = result_in(second);
  if (!a || !b) return {Kind::failed, cat(what, ": no result of the ", a ? "second" : "first", " run")};
  const auto different = difference(*a, *b, tolerance, without);
  return different ? Verdict{Kind::differs, cat(what, ":\n", *different)} : Verdict{};
}

// How far runs may differ that sum up in another order. LBFGS divides by differences of gradients that are nearly
// equal.
double rounding_of(const Plan& plan) {
  return value_at<std::string>(plan, "/optimizer/class_path", "") == "LBFGS" ? 1e-4 : 1e-6;
}

// Names of the checkpoints of a run, without links.
std::set<std::string> checkpoints_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const char* place : {"fulgur_logs", "elsewhere"}) {
    if (!fs::exists(folder / place)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(folder / place)) {
      if (entry.path().extension() != ".ckpt") continue;
      const auto target = entry.is_symlink() ? fs::read_symlink(entry.path()) : fs::path();
      // Of two runs in other folders.
      names.insert(entry.path().filename().string() + (target.empty() ? "" : " -> " + target.filename().string()));
    }
  }
  return names;
}

std::string list(const std::set<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += " " + name;
  return out;
}

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

// Ranks agree on the time about once a second.
void without_times(Plan& plan) {
  plan["events"].erase("clock");
  const auto is_time = [](const Plan& value) { return value.is_string() && value.get<std::string>().ends_with('s'); };
  plan["trainer"].erase("max_time");
  if (is_time(value_at(plan, "/trainer/val_check_interval", Plan()))) plan["trainer"].erase("val_check_interval");
  for (Plan& each : plan["callbacks"]) {
    if (!each.contains("init_args")) continue;
    each["init_args"].erase("train_time_interval");
    if (is_time(value_at(each, "/init_args/every", Plan()))) each["init_args"].erase("every");
  }
}

// No limit of batches, nor an interval that follows from one.
void without_limit(Plan& plan) {
  plan["trainer"].erase("limit_train_batches");
  if (plan["data"].contains("kind")) plan["trainer"].erase("val_check_interval");
}

// What several ranks cannot do left out; `even`: training samples such that each step of `ranks` ranks has the samples
// of a step of one.
Plan shared_out(Plan plan, int64_t ranks, bool even) {
  Plan& data = plan["data"];
  const int64_t batch = value_at<int64_t>(plan, "/data/batch_size", 2);
  const bool norm = value_at(plan, "/model/norm", false);
  // Batch norm normalizes over the samples of all ranks, but each rank needs two.
  const int64_t whole = norm ? ranks * std::max<int64_t>(batch, 2) : ranks;
  if (norm) data["batch_size"] = std::max<int64_t>(batch, 2);
  // Each rank must return a loss, must have a whole batch, and hears of a stop a step later.
  plan["model"].erase("no_loss_every");
  plan["data"].erase("drop_last");
  plan["events"].erase("stop_at");
  without_times(plan);
  // A rank without a batch is an error.
  const bool stream = value_at<std::string>(plan, "/data/kind", "sized") != "sized";
  for (const char* key : {"num_train", "second"}) {
    const int64_t samples = value_at<int64_t>(plan, cat("/data/", key), key[0] == 'n' ? 12 : 0);
    if (stream && samples > 0) data[key] = std::max(samples, ranks);
  }
  if (!even && !norm) return plan;
  for (const char* key : {"num_train", "second"}) {
    const int64_t samples = value_at<int64_t>(plan, cat("/data/", key), key[0] == 'n' ? 12 : 0);
    if (samples > 0) data[key] = (samples + whole - 1) / whole * whole;
  }
  return plan;
}

Plan with_batches_of(Plan plan, int64_t ranks) {
  for (const char* key : {"batch_size", "eval_batch_size"})
    plan["data"][key] = value_at<int64_t>(plan, cat("/data/", key), 2) * ranks;
  return plan;
}

std::string way_of(const Plan& config) {
  return value_at<std::string>(config, "/trainer/callbacks/0/init_args/kill_by", "SIGKILL");
}

// Whether the process was ended by what its events say.
bool ended_by(const Plan& config, const Ended& ended) {
  const std::string way = way_of(config);
  const auto has = [&](int code) { return std::ranges::find(ended.codes, code) != ended.codes.end(); };
  if (way == "SIGTERM")
    return has(static_cast<int>(ExitCode::preempted)) || has(static_cast<int>(ExitCode::terminated));
  if (way == "SIGINT") return has(static_cast<int>(ExitCode::interrupted));
  if (way == "exception") return has(static_cast<int>(ExitCode::other));
  return has(-SIGKILL);
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

// Several ends at places that the plan's seed says, then a run to the end.
Verdict killed(const Plan& given, const fs::path& folder, int64_t ranks) {
  const Plan& plan = given;
  // A signal writes a checkpoint, which is then the one that a rollback returns to.
  const bool rolls_back = value_at<std::string>(plan, "/trainer/on_nonfinite", "") == "rollback";
  const fs::path undisturbed = folder / "quiet", disturbed = folder / "killed";
  if (auto bad = trouble("the quiet run", fit(config_of(plan, undisturbed, ranks), undisturbed, ranks)))
    return ranks > 1 ? allowed(*bad) : *bad;
  SplitMix64 random = random_of(plan, static_cast<uint64_t>(ranks)), outside_batches = random_of(plan, 17);
  const auto whole = result_in(undisturbed);
  if (!whole) return {Kind::failed, "no result of the quiet run"};
  if (validates_each_epoch(plan) && whole->numbers.at("facts.validations") < whole->numbers.at("facts.epochs"))
    return {Kind::differs, cat("validations in ", whole->numbers.at("facts.epochs"),
                               " epochs: ", whole->numbers.at("facts.validations"))};
  const auto batches = static_cast<uint64_t>(whole->numbers.at("facts.batches"));
  std::string story;
  const bool beside = ranks == 1 && version_of(plan) >= 0 && random_of(plan, 16).below(2) == 0;
  bool ends_by_signals = !beside;
  if (beside) {
    story = cat("beside a fit of version ", version_of(plan) + 1, "\n");
    if (auto bad = trouble("the fit of another version", fit_beside(plan, disturbed))) return *bad;
  }
  const uint64_t kills = 1 + random.below(3);
  for (uint64_t i = 0; i <= kills; ++i) {
    Plan config = config_of(plan, disturbed, ranks);
    config["ckpt_path"] = "auto";
    if (i < kills) {
      Plan& events = config["trainer"]["callbacks"][0]["init_args"];
      static constexpr const char* kPlaces[] = {
          "batch_start", "after_backward", "before_step", "before_zero_grad", "batch_end",       "epoch_end",
          "save",        "validation_end", "published",   "epoch_start",      "validation_batch"};
      events["kill_at"] = random.below(batches + 1);
      events["kill_place"] = kPlaces[random.below(std::size(kPlaces))];
      events["kill_rank"] = ranks > 1 ? static_cast<int64_t>(random.below(static_cast<uint64_t>(ranks) + 1)) - 1 : -1;
      static constexpr const char* kWays[] = {"SIGKILL", "SIGKILL", "SIGTERM",   "SIGTERM",
                                              "SIGINT",  "SIGUSR1", "exception", "exception"};
      events["kill_by"] = kWays[random.below(rolls_back ? 2 : std::size(kWays))];
      // A batch that fails after its step counts, and a resume does not repeat what of its end comes after that.
      const bool after_step = events["kill_place"] == "before_zero_grad" || events["kill_place"] == "batch_end";
      const bool may_save = !after_step || depends_on_no_batch_end(plan, ranks);
      events["save_failed"] = random.below(2) == 0 && may_save;
      const bool saves = std::ranges::any_of(
          plan["callbacks"], [](const Plan& each) { return value_at(each, "/init_args/save_on_exception", false); });
      if (!may_save && saves && events["kill_by"] == "exception") events["kill_place"] = "batch_start";
      if (outside_batches.below(events["kill_by"] == "SIGUSR1" ? 2 : 5) == 0 &&
          may_end_outside_batches(events["kill_by"].get<std::string>(), ranks)) {
        events["kill_at"] = 0;
        events["kill_place"] = kPlacesOutsideBatches[outside_batches.below(std::size(kPlacesOutsideBatches))];
      }
      ends_by_signals = ends_by_signals && events["kill_by"] != "exception";
      story += cat(events["kill_by"].get<std::string>(), " at batch ", events["kill_at"].get<int64_t>(), ", ",
                   events["kill_place"].get<std::string>(), ", rank ", events["kill_rank"].get<int64_t>(), "\n");
      // A rollback goes to what could be written.
      if (ranks == 1 && random.below(5) == 0 && !rolls_back) {
        const auto from = static_cast<int64_t>(random.below(batches + 1));
        events["full"] = Plan::array({from, from + 1 + static_cast<int64_t>(random.below(batches + 1))});
        story += cat("the disk is full in batches ", events["full"].dump(), " of the process\n");
        ends_by_signals = false;
        config["trainer"]["on_save_error"] = "continue";  // moves what `events` refers to
      }
    }
    if (i > 0 && random.below(3) == 0) {
      // Its run folder is newer than that of the fit.
      story += "tested in between\n";
      Plan test = config_of(plan, disturbed);
      test["trainer"]["callbacks"] = Plan::array();
      test["trainer"].erase("limit_val_batches");
      const Ended tested = evaluate(test, disturbed, 1);
      if (tested.hung) return {Kind::hung, story + "the test hung"};
      if (beside && tested.text.find(cat("tested version_", version_of(plan) + 1)) != std::string::npos)
        return {Kind::differs, story + "the last checkpoint of another version was tested"};
    }
    const Ended ended = fit(config, disturbed, ranks);
    if (ended.hung) return {Kind::hung, cat(story, "the run hung\n", tail(ended.text))};
    // A place that is not reached ends nothing.
    if (ended_by(config, ended)) {
      for (const int code : ended.codes)
        if (!belongs_to_end(config, code))
          return {Kind::failed,
                  cat(story, "a rank ended with ", code, " beside one that was ended\n", tail(ended.text))};
      continue;
    }
    // The final checkpoint was not written: the run is not finished.
    if (i < kills && value_at(config, "/trainer/callbacks/0/init_args/full", Plan()).is_array() && ended.all(0))
      continue;
    if (auto bad = trouble("the run", ended)) return {bad->kind, story + bad->text};
    break;
  }
  Verdict verdict = compared("quiet and killed", undisturbed, disturbed);
  if (!verdict.bad() && seen_in(undisturbed) != seen_in(disturbed))
    verdict = {Kind::differs, "samples were seen at other times than in the quiet run"};
  if (!verdict.bad())
    if (const std::string rows =
            first_difference(rows_in(undisturbed, version_of(plan)), rows_in(disturbed, version_of(plan)));
        !rows.empty())
      verdict = {Kind::differs, "metrics of the quiet and the killed run differ in " + rows};
  const auto steps = static_cast<int64_t>(whole->numbers.at("facts.global_step"));
  if (const int64_t saved = last_saved_step(disturbed, version_of(plan)); !verdict.bad() && steps > 0 && saved != steps)
    verdict = {Kind::differs, cat("the last checkpoint is of step ", saved, ", the run finished at ", steps)};
  if (!verdict.bad() && ends_by_signals) {
    const auto quiet = plain_names_in(undisturbed), now = plain_names_in(disturbed);
    std::vector<std::string> left, lost;
    std::ranges::set_difference(now, quiet, std::back_inserter(left));
    std::ranges::set_difference(quiet, now, std::back_inserter(lost));
    // The checkpoint of a signal is there for the next process, and then no callback keeps it.
    const auto linked = plain_names_in(disturbed, /*of_links=*/true);
    std::erase_if(left, [&](const std::string& name) { return !name.starts_with("epoch=") || linked.contains(name); });
    // A process that is killed between writing and linking leaves one in a folder that others may use, too.
    const bool elsewhere = std::ranges::any_of(plan["callbacks"], [](const Plan& each) {
      return !value_at<std::string>(each, "/init_args/dirpath", "").empty();
    });
    if (elsewhere && story.find("SIGKILL") != std::string::npos) left.clear();
    if (!left.empty() || !lost.empty())
      verdict = {Kind::differs,
                 cat("checkpoints that are left of ends of processes: ", join(left), "\nthat are lost: ", join(lost))};
  }
  if (verdict.bad()) verdict.text = story + verdict.text;
  return verdict;
}

}  // namespace

Verdict equals_loop_by_hand(const Plan& given, const fs::path& folder) {
  Plan plan = given;
  plan["data"].erase("by_epoch");  // the loop keeps its loaders
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

Verdict ranks_equal_one(const Plan& given, const fs::path& folder) {
  const std::string optimizer = value_at<std::string>(given, "/optimizer/class_path", "");
  // Lion steps by signs and Muon rounds to bfloat16: both make much of rounding errors.
  if (optimizer == "Lion" || optimizer == "Muon" || value_at<double>(given, "/model/dropout", 0) > 0) return kNoMatter;
  // Each rank's average is of its share of a batch.
  if (value_at(given, "/model/average", false)) return kNoMatter;
  // One rank sees a loss at once, several see the gradients of all: the step is counted then.
  if (value_at<std::string>(given, "/trainer/on_nonfinite", "") == "rollback") return kNoMatter;
  const int64_t ranks = 2 + static_cast<int64_t>(random_of(given, 7).below(2));
  Plan plan = shared_out(given, ranks, true);
  plan["trainer"]["precision"] = "64-true";
  const fs::path one = folder / "one", several = folder / "several";
  if (auto bad = trouble("one rank", fit(config_of(with_batches_of(plan, ranks), one), one))) return allowed(*bad);
  if (auto bad = trouble(cat(ranks, " ranks"), fit(config_of(plan, several, ranks), several, ranks)))
    return allowed(*bad);
  const Verdict verdict =
      compared(cat("one rank and ", ranks), one, several, rounding_of(plan), {"metrics.rank_mean", "counted."});
  if (verdict.bad()) return verdict;
  // A value of each rank, logged when the epoch of validation has ended: no rank counts for more than another.
  const auto result = result_in(several);
  const auto mean = result->numbers.find("metrics.rank_mean");
  if (mean != result->numbers.end() && mean->second != static_cast<double>(ranks - 1) / 2)
    return {Kind::differs, cat("the mean of the ranks' numbers is ", mean->second)};
  const auto a = checkpoints_in(one), b = checkpoints_in(several);
  if (a != b) return {Kind::differs, cat("checkpoints of one rank:", list(a), "\nof ", ranks, ":", list(b))};
  return {};
}

Verdict killed_equals_quiet(const Plan& plan, const fs::path& folder) { return killed(plan, folder, 1); }

Verdict killed_ranks_equal_quiet(const Plan& plan, const fs::path& folder) {
  const int64_t ranks = 2 + static_cast<int64_t>(random_of(plan, 8).below(2));
  return killed(shared_out(plan, ranks, false), folder, ranks);
}

namespace {

// Adds a second training loader. With it, the length of an epoch in samples is not known, so a schedule cannot convert
// lengths in samples.
void with_second_loader(Plan& plan, SplitMix64& random) {
  static constexpr const char* kModes[] = {"max_size", "sequential", "max_size_cycle"};
  plan["data"]["second"] = 1 + static_cast<int64_t>(random.below(14));
  plan["data"]["mode"] = kModes[random.below(std::size(kModes))];
  if (value_at(plan, "/lr_scheduler/init_args/step_size", Plan()).is_string())
    plan["lr_scheduler"]["init_args"]["step_size"] = 2;
}

}  // namespace

Verdict other_ranks_or_batches_see_each_sample_once(const Plan& given, const fs::path& folder) {
  Plan plan = given;
  // What has other samples, or other numbers of them, by design.
  without_limit(plan);
  for (const char* key : {"max_steps", "min_steps", "min_epochs", "on_nonfinite", "check_every"})
    plan["trainer"].erase(key);
  for (const char* key : {"skip_epoch", "nan_every", "no_loss_every", "norm"}) plan["model"].erase(key);
  without_times(plan);
  for (const char* key : {"kind", "drop_last"}) plan["data"].erase(key);
  plan["events"].erase("stop_at");
  if (value_at<std::string>(plan, "/data/order", "") == "weighted") plan["data"]["order"] = "shuffled";
  std::erase_if(plan["callbacks"].get_ref<Plan::array_t&>(),
                [](const Plan& each) { return each.value("class_path", "") == "EarlyStopping"; });
  SplitMix64 random = random_of(plan, 9), of_batches = random_of(plan, 19);
  const auto from = 1 + static_cast<int64_t>(random.below(3));
  // The batches of a batch sampler have one size, for one number of ranks.
  const bool fixed = value_at(plan, "/data/batches", false);
  const auto batch = value_at<int64_t>(plan, "/data/batch_size", 2);
  const int64_t other_batch = 1 + (batch + static_cast<int64_t>(of_batches.below(5))) % 6,
                batch_to = fixed || of_batches.below(2) == 0 ? batch : other_batch;
  const bool same_ranks = fixed || (batch_to != batch && of_batches.below(3) > 0);
  const int64_t other = 1 + (from + static_cast<int64_t>(random.below(2))) % 3, to = same_ranks ? from : other;
  // An interval in batches must not be longer than the new epochs.
  if (value_at(plan, "/trainer/val_check_interval", Plan()).is_number_integer())
    plan["trainer"]["val_check_interval"] = 1;
  if (value_at<int64_t>(plan, "/data/second", 0) == 0 && of_batches.below(3) == 0) with_second_loader(plan, of_batches);
  const bool second = value_at<int64_t>(plan, "/data/second", 0) > 0;
  // A shorter loader begins again with `max_size_cycle`, and ends the epoch early with `min_size`.
  std::string mode = value_at<std::string>(plan, "/data/mode", "max_size_cycle");
  if (mode == "min_size" || (mode == "max_size_cycle" && !same_ranks)) mode = "max_size";
  const bool repeats = second && mode == "max_size_cycle";
  if (second) plan["data"]["mode"] = mode;
  const auto epochs = value_at<int64_t>(plan, "/trainer/max_epochs", 2);
  plan["trainer"]["max_epochs"] = epochs;
  Plan before = config_of(plan, folder, from);
  Plan& events = before["trainer"]["callbacks"][0]["init_args"];
  const int64_t samples = value_at<int64_t>(plan, "/data/num_train", 12) + value_at<int64_t>(plan, "/data/second", 0);
  const int64_t batches = epochs * (samples / (from * batch) + 1);
  const auto save = 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(batches)));
  events["save_at"] = Plan::array({save});
  events["kill_at"] = save + static_cast<int64_t>(random.below(3));
  events["kill_place"] = random.below(2) == 0 ? "batch_end" : "published";
  const Ended first = fit(before, folder, from);
  if (first.hung) return {Kind::hung, "the first part hung\n" + tail(first.text)};
  const std::string story = cat(from, " ranks with batches of ", batch, " until batch ", save, ", then ", to,
                                " with batches of ", batch_to, "\n");
  if (!first.all(0)) {
    if (std::ranges::find(first.codes, -SIGKILL) == first.codes.end())
      return allowed({trouble("the first part", first)->kind, story + first.text});
    Plan after = config_of(plan, folder, to);
    after["ckpt_path"] = "auto";
    if (batch_to != batch) after["data"]["init_args"]["batch_size"] = batch_to;
    if (auto bad = trouble("the second part", fit(after, folder, to))) return allowed({bad->kind, story + bad->text});
  }
  // What does not divide is filled up: with samples that come once more.
  const int64_t most_surplus = (second ? 2 : 1) * (epochs * (std::max(from, to) - 1) + to - 1);
  const auto seen = seen_in(folder);
  int64_t surplus = 0;
  std::string wrong;
  for (int64_t sample = 0; sample < samples; ++sample) {
    const auto times = seen.contains(sample) ? seen.at(sample) : 0;
    if (times < epochs) wrong += cat(" ", sample, " (", times, " times)");
    surplus += times - epochs;
  }
  if (!wrong.empty())
    return {Kind::differs, cat(story, "samples seen less than ", epochs, " times:", wrong, '\n', lives_in(folder))};
  if (!repeats && surplus > most_surplus)
    return {Kind::differs,
            cat(story, surplus, " samples were seen once more, at most ", most_surplus, " may be\n", lives_in(folder))};
  return {};
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
  const auto a = checkpoints_in(first), b = checkpoints_in(second);
  if (a != b) return {Kind::differs, cat("asynchronous:", list(a), "\nsynchronous:", list(b))};
  return {};
}

Verdict devices_equal_one(const Plan& given, const fs::path& folder) {
  SplitMix64 random = random_of(given, 12);
  static constexpr const char* kStrategies[] = {"dp", "model_parallel", "model_parallel", "hybrid"};
  const std::string strategy = kStrategies[random.below(std::size(kStrategies))];
  const auto parts = strategy == "model_parallel" ? static_cast<int64_t>(1 + random.below(2)) : int64_t{1};
  const bool manual = value_at(given, "/model/manual", false), cuts = strategy != "model_parallel" || parts > 1;
  Plan plan = given;
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
  std::erase_if(plan["callbacks"].get_ref<Plan::array_t&>(),
                [](const Plan& each) { return each.value("class_path", "") == "EarlyStopping"; });
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

namespace {

// The rate that each number of samples was trained with.
std::map<int64_t, double> rates_in(const fs::path& folder) {
  std::map<int64_t, double> rates;
  std::istringstream lines(read_text(folder / "rates"));
  int64_t samples = 0, step = 0;
  double rate = 0;
  while (lines >> samples >> step >> rate) rates.emplace(samples, rate);
  return rates;
}

}  // namespace

// A run that resumes with other windows of accumulation has the rates that it would have had by then. If the windows do
// not divide the epochs, it has them at the end of each epoch.
Verdict schedules_follow_samples(const Plan& given, const fs::path& folder) {
  Plan plan = given;
  SplitMix64 random = random_of(given, 14);
  const auto of = [&](std::initializer_list<Plan> choices) {
    return *(choices.begin() + static_cast<int64_t>(random.below(choices.size())));
  };
  for (const char* key : {"skip_epoch", "no_loss_every", "nan_every", "manual", "manual_steps"})
    plan["model"].erase(key);
  without_limit(plan);
  for (const char* key : {"max_steps", "max_time", "min_epochs", "min_steps", "on_nonfinite"})
    plan["trainer"].erase(key);
  for (const char* key : {"kind", "second", "mode", "drop_last"}) plan["data"].erase(key);
  plan["events"] = Plan::object();
  plan["callbacks"] = Plan::array();
  plan["optimizer"] = Plan{{"class_path", "SGD"}, {"init_args", {{"lr", 0.01}, {"momentum", 0.5}}}};
  const auto before = static_cast<int64_t>(1 + random.below(4)),
             after = 1 + (before + static_cast<int64_t>(random.below(3))) % 4;
  const auto batch = value_at<int64_t>(plan, "/data/batch_size", 2);
  const int64_t batches = of({12, 12, 13, 10, 7}).get<int64_t>();
  // Otherwise the last window of an epoch is shorter. Then only schedules of epochs and of the run are exact, at the
  // ends of epochs.
  const bool divides = batches % before == 0 && batches % after == 0;
  const auto epochs = static_cast<int64_t>((divides ? 2 : 3) + random.below(3));
  plan["data"]["num_train"] = batch * batches;
  plan["trainer"]["max_epochs"] = epochs;
  const Plan unit = divides ? of({Plan(cat(6 * batch, "sa")), "1ep", "0.25dur", Plan(cat(18 * batch, "sa"))})
                            : of({"1ep", "0.25dur"});
  plan["lr_scheduler"] = of({
      Plan{{"class_path", "StepLR"}, {"init_args", {{"step_size", unit}, {"gamma", 0.5}}}},
      Plan{{"class_path", "CosineAnnealingLR"}},
      Plan{{"class_path", "OneCycleLR"}, {"init_args", {{"max_lr", 0.02}}}},
      Plan{{"class_path", "WarmupLR"},
           {"init_args", {{"length", unit}, {"after", {{"class_path", "CosineAnnealingLR"}}}}}},
      Plan{{"class_path", "LinearLR"}, {"init_args", {{"total_iters", unit}}}},
  });
  for (const char* key : {"lr_scheduler_monitor", "lr_scheduler_strict", "lr_scheduler_frequency"}) plan.erase(key);
  plan["lr_scheduler_interval"] = "step";
  // With scale_lr, rates also follow the samples of a step.
  const bool scales = random.below(3) == 0;
  if (scales) {
    plan["trainer"]["scale_lr"] = "linear";
    plan["trainer"]["base_batch_size"] = 4 * batch;
  }
  const fs::path whole = folder / "whole", changed = folder / "changed";
  plan["trainer"]["accumulate_grad_batches"] = before;
  if (auto bad = trouble("the whole run", fit(config_of(plan, whole), whole))) return *bad;
  // At the end of an epoch both have whole windows. The last one before it may be open, and ends as it began; if
  // windows do not divide the epoch, the change comes exactly at its end.
  const int64_t epochs_before = divides ? 1 : 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(epochs - 2))),
                change = epochs_before * batches;
  Plan first = config_of(plan, changed), second = first;
  Plan& events = first["trainer"]["callbacks"][0]["init_args"];
  events["kill_at"] = change - (divides ? static_cast<int64_t>(random.below(static_cast<uint64_t>(before))) : 0);
  events["kill_by"] = "SIGTERM";
  const Ended cut = fit(first, changed);
  if (!ended_by(first, cut)) return {Kind::failed, "the first part was not cut\n" + tail(cut.text)};
  second["ckpt_path"] = "auto";
  second["trainer"]["accumulate_grad_batches"] = after;
  if (auto bad = trouble("the second part", fit(second, changed))) return *bad;
  auto expected = rates_in(whole), got = rates_in(changed);
  for (const auto& [where, rates] : {std::pair(&whole, &expected), std::pair(&changed, &got)}) {
    const auto result = result_in(*where);
    if (!result) return {Kind::failed, "no result of a run"};
    rates->emplace(static_cast<int64_t>(result->numbers.at("facts.samples_seen")), result->numbers.at("facts.rates.0"));
  }
  int64_t compared_rates = 0;
  for (const auto& [samples, rate] : got) {
    // Between the windows of either, rates are those of the window.
    const bool between =
        samples % (batch * before) != 0 || (samples > change * batch && samples % (batch * after) != 0);
    if (divides ? between : samples % (batch * batches) != 0) continue;
    if (!expected.contains(samples)) continue;
    if (samples > change * batch) ++compared_rates;
    const double scaled =
        scales && samples >= change * batch ? static_cast<double>(after) / static_cast<double>(before) : 1;
    if (std::abs(rate - scaled * expected.at(samples)) > 1e-9)
      return {Kind::differs, cat("accumulation ", before, ", then ", after, " in epochs of ", batches,
                                 " batches: after ", samples, " samples the rate is ", rate, ", without a change ",
                                 expected.at(samples), scales ? cat(" × ", scaled) : "")};
  }
  // At least the rate after the last step, and that of each epoch's first step if only these are exact.
  if (compared_rates < (divides ? 1 : epochs - epochs_before))
    return {Kind::failed, "there are no rates to compare after the change"};
  return {};
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
  Verdict verdict = compared("quiet and signalled", quiet, signalled);
  if (!verdict.bad() && seen_in(quiet) != seen_in(signalled))
    verdict = {Kind::differs, "samples were seen at other times than in the quiet run"};
  if (!verdict.bad())
    if (const std::string rows =
            first_difference(rows_in(quiet, version_of(plan)), rows_in(signalled, version_of(plan)));
        !rows.empty())
      verdict = {Kind::differs, "metrics of the quiet run and of the program differ in " + rows};
  if (verdict.bad()) verdict.text = story + verdict.text;
  return verdict;
}

Verdict captured_equals_eager(const Plan& given, const fs::path& folder) {
  Plan plan = given;
  SplitMix64 random = random_of(given, 15);
  const auto of = [&](std::initializer_list<Plan> choices) {
    return *(choices.begin() + static_cast<int64_t>(random.below(choices.size())));
  };
  // Which batch has no loss, or one that is NaN, is decided on the host, and a recording has what was decided then.
  for (const char* key : {"no_loss_every", "nan_every", "manual", "manual_steps"}) plan["model"].erase(key);
  const std::string optimizer = value_at<std::string>(plan, "/optimizer/class_path", "");
  // Captured, Muon rounds once more.
  if (optimizer == "LBFGS" || optimizer == "Muon")
    plan["optimizer"] = of({Plan{{"class_path", "Lion"}, {"init_args", {{"lr", 0.01}}}},
                            Plan{{"class_path", "RMSprop"}, {"init_args", {{"lr", 0.01}, {"momentum", 0.5}}}}});
  if (random.below(3) > 0 && !plan.contains("lr_scheduler_monitor")) {
    plan["lr_scheduler"] = of(
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
  plan["trainer"]["precision"] = of({"32-true", "32-true", "bf16-mixed", "16-mixed"});
  const fs::path eager = folder / "eager", captured = folder / "captured";
  for (const bool captures : {false, true}) {
    const fs::path& where = captures ? captured : eager;
    Plan config = config_of(plan, where);
    config["trainer"]["accelerator"] = "cuda";
    config["trainer"]["devices"] = 1;
    config["trainer"]["cuda_graph"] = captures;
    config["trainer"]["callbacks"][0]["class_path"] = "DifferentialEvents";
    const Ended ended = fit(config, where);
    if (auto bad = trouble(captures ? "captured" : "eager", ended)) return *bad;
    if (ended.text.find(" overrides ") != std::string::npos)
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
