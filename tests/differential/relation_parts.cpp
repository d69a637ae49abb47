#include "relation_parts.h"

#include <algorithm>
#include <csignal>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "result.h"

namespace fulgur::test {
namespace fs = std::filesystem;

namespace {
using Kind = Verdict::Kind;
}

SplitMix64 random_of(const Plan& plan, uint64_t relation) {
  return SplitMix64(value_at<uint64_t>(plan, "/seed_everything", 0) * 1000 + relation);
}

Plan one_of(SplitMix64& random, std::initializer_list<Plan> choices) {
  return *(choices.begin() + static_cast<int64_t>(random.below(choices.size())));
}

std::string tail(const std::string& text) {
  constexpr size_t kMost = 3000;
  return text.substr(text.size() - std::min(text.size(), kMost));
}

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

Verdict allowed(const Verdict& of_changed_plan) {
  return of_changed_plan.kind == Kind::refused ? kNoMatter : of_changed_plan;
}

Verdict compared(const std::string& what, const fs::path& first, const fs::path& second, double tolerance,
                 const std::set<std::string>& without) {
  const auto a = result_in(first), b = result_in(second);
  if (!a || !b) return {Kind::failed, cat(what, ": no result of the ", a ? "second" : "first", " run")};
  const auto different = difference(*a, *b, tolerance, without);
  return different ? Verdict{Kind::differs, cat(what, ":\n", *different)} : Verdict{};
}

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

Verdict compared_checkpoints(const std::string& what, const fs::path& first, const fs::path& second) {
  const auto a = checkpoints_in(first), b = checkpoints_in(second);
  if (a == b) return {};
  const auto list = [](const std::set<std::string>& names) {
    std::string out;
    for (const std::string& name : names) out += " " + name;
    return out;
  };
  return {Kind::differs, cat("checkpoints of ", what, ":", list(a), "\nand", list(b))};
}

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

void without_limit(Plan& plan) {
  plan["trainer"].erase("limit_train_batches");
  if (plan["data"].contains("kind")) plan["trainer"].erase("val_check_interval");
}

void without_callback(Plan& plan, const std::string& class_path) {
  std::erase_if(plan["callbacks"].get_ref<Plan::array_t&>(),
                [&](const Plan& each) { return each.value("class_path", "") == class_path; });
}

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

std::string way_of(const Plan& config) {
  return value_at<std::string>(config, "/trainer/callbacks/0/init_args/kill_by", "SIGKILL");
}

bool ended_by(const Plan& config, const Ended& ended) {
  const std::string way = way_of(config);
  const auto has = [&](int code) { return std::ranges::find(ended.codes, code) != ended.codes.end(); };
  if (way == "SIGTERM")
    return has(static_cast<int>(ExitCode::preempted)) || has(static_cast<int>(ExitCode::terminated));
  if (way == "SIGINT") return has(static_cast<int>(ExitCode::interrupted));
  if (way == "exception") return has(static_cast<int>(ExitCode::other));
  return has(-SIGKILL);
}

}  // namespace fulgur::test
