#include "saving/kept_checkpoints.h"

#include <algorithm>
#include <fstream>

#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace fs = std::filesystem;
namespace {

// Keeps what `ckpt_path` names. Not in checkpoints: the file kNamed says it.
constexpr std::string_view kUser = "ckpt_path";

// The checkpoints in a folder; none if it cannot be read.
std::vector<CheckpointSummary> checkpoints_in(const fs::path& folder) {
  try {
    return list_checkpoints(folder);
  } catch (const CheckpointError&) {
    return {};
  }
}

}  // namespace

fs::path plain_path(const fs::path& path) { return fs::absolute(path).lexically_normal(); }

fs::path KeptCheckpoints::folder() const { return plain_path(run_.checkpoint_dir()); }
fs::path KeptCheckpoints::names_file() const { return folder().parent_path() / run_layout::kNamed; }

std::string origin_of_folder(const fs::path& checkpoints) { return escape_controls(plain_path(checkpoints).string()); }

// The folder of the checkpoints names the run. A run whose folder is moved keeps its name.
std::string KeptCheckpoints::run_name() const { return began_as_ ? *began_as_ : origin_of_folder(folder()); }

bool KeptCheckpoints::is_own(const fs::path& path) const {
  std::error_code error;
  if (path.parent_path() == folder()) return fs::exists(path, error);
  if (keepers_.contains(path)) return true;
  // Other runs may save in the same folder, even under a name that this run has used.
  try {
    return summarize_checkpoint(path).origin.run == run_name();
  } catch (const CheckpointError&) {
    return false;
  }
}

bool KeptCheckpoints::owns(const fs::path& path) const {
  const bool own = run_.is_global_zero() && is_own(plain_path(path));
  return !run_.collectives().broadcast_text(own ? "own" : "", 0).empty();
}

bool KeptCheckpoints::takes_best(const CheckpointRequest& request) const {
  if (!request.best) return false;
  if (!best_owner_ || best_owner_->key == request.owner) return true;
  if (!request.score) return false;
  if (!best_owner_->monitors) return true;
  log::warn("trainer.several_best",
            cat("two callbacks rank checkpoints by a metric: best.ckpt follows ", best_owner_->key, ", not ",
                request.owner, ". Name the checkpoints of the other callback by their paths"));
  return false;
}

void KeptCheckpoints::add(const CheckpointInfo& info) {
  const CheckpointRequest& request = info.request;
  if (!request.weights_only) {
    if (run_.is_global_zero()) link_checkpoint(run_.checkpoint_dir() / run_layout::kLast, info.path);
    last_ = info.path;
  }
  if (takes_best(request)) {
    best_owner_ = BestOwner{request.owner, request.score.has_value()};
    if (run_.is_global_zero()) link_checkpoint(run_.checkpoint_dir() / run_layout::kBest, info.path);
    best_ = info.path;
  }
  auto& owners = keepers_[info.path];
  if (request.keep) owners.insert(request.owner);
}

void KeptCheckpoints::release(const fs::path& path, std::string_view owner) {
  const fs::path known = plain_path(path);
  const auto found = keepers_.find(known);
  if (found != keepers_.end())
    found->second.erase(std::string(owner));
  else if (is_own(known))  // in a folder that was moved, or of a part of the run after its checkpoint
    keepers_[known];
}

void KeptCheckpoints::remove_released() {
  for (auto item = keepers_.begin(); item != keepers_.end();) {
    const bool linked = item->first == last_ || item->first == best_;
    if (item->second.empty() && !linked) {
      if (run_.is_global_zero()) remove_checkpoint(item->first);
      item = keepers_.erase(item);
    } else {
      ++item;
    }
  }
}

std::string KeptCheckpoints::path_in_state(const fs::path& path) const {
  return (path.parent_path() == folder() ? path.filename() : path).string();
}

StateTree KeptCheckpoints::state(const CheckpointRequest& request) const {
  StateTree::List kept;
  for (const auto& [path, owners] : keepers_) {
    StateTree::List names;
    for (const std::string& owner : owners)
      if (owner != kUser) names.emplace_back(owner);
    kept.push_back(StateTree::map({{"path", path_in_state(path)}, {"owners", std::move(names)}}));
  }
  StateTree best_owner = nullptr;
  const auto owner =
      takes_best(request) ? std::optional(BestOwner{request.owner, request.score.has_value()}) : best_owner_;
  if (owner) best_owner = StateTree::map({{"key", owner->key}, {"monitors", owner->monitors}});
  return StateTree::map({{"kept", std::move(kept)}, {"best_owner", std::move(best_owner)}});
}

void KeptCheckpoints::continue_run(const CheckpointOrigin& origin, const StateTree& state) {
  // If the folder in which the run began is still there, this is a copy of it, and another run.
  std::error_code error;
  if (!origin.run.empty() && (!fs::exists(origin.run, error) || fs::equivalent(origin.run, folder(), error)))
    began_as_ = origin.run;
  if (const StateTree& owner = state.at("best_owner"); !owner.is_null())
    best_owner_ = BestOwner{owner.at("key").as_string(), owner.at("monitors").as_bool()};
  if (const auto best = link_target(folder() / run_layout::kBest)) best_ = plain_path(*best);
}

// Checkpoints of the process that died: remove those it had released but not removed yet.
int64_t KeptCheckpoints::take_over(const fs::path& checkpoint, const StateTree& state,
                                   const std::vector<fs::path>& requested, int64_t saves) {
  const fs::path here = folder();
  for (const StateTree& item : state.at("kept").as_list()) {
    const fs::path path = plain_path(here / item.at("path").as_string());
    if (path.parent_path() != here && !is_own(path)) continue;
    auto& owners = keepers_[path];
    for (const StateTree& owner : item.at("owners").as_list()) owners.insert(owner.as_string());
  }
  std::error_code error;
  for (const std::string& line : split_text(read_regular_file(names_file()).value_or(""), '\n'))
    if (const fs::path path = plain_path(here / line); !line.empty() && fs::exists(path, error))
      keepers_[path].emplace(kUser);
  // Where a resume looks for the newest, in the folder and behind its links, and where the run has saved.
  std::set<fs::path> places{here, checkpoint.parent_path()}, linked;
  for (const char* name : {run_layout::kLast, run_layout::kBest})
    if (const auto target = link_target(here / name)) linked.insert(plain_path(*target));
  for (const fs::path& path : linked) places.insert(path.parent_path());
  for (const auto& [path, owners] : keepers_) places.insert(path.parent_path());
  for (const fs::path& name : requested) places.insert(plain_path(here / name).parent_path());
  const int64_t resumed_save = saves;
  bool is_newest = true;
  std::vector<fs::path> weights_made_later;
  for (const fs::path& place : places) {
    for (const CheckpointSummary& other : checkpoints_in(place)) {
      // Saves after the resumed one are discarded now, but must count as older than those to come.
      saves = std::max(saves, other.origin.save_counter);
      const bool own = place == here || other.origin.run == run_name();
      if (other.problem || !own || other.origin.save_counter <= resumed_save) continue;
      if (other.weights_only)
        weights_made_later.push_back(other.path);
      else if (place == here || linked.contains(other.path))
        is_newest = false;
    }
  }
  // The run cannot continue from weights alone, and will create these again.
  if (is_newest)
    for (const fs::path& path : weights_made_later) keepers_[path];
  return saves;
}

void KeptCheckpoints::resumed_from(const fs::path& path, bool is_named) {
  auto& owners = keepers_[path];
  // Also on disk: who continues from this checkpoint once more must know it, before another one is saved.
  if (is_named && owners.emplace(kUser).second && run_.is_global_zero()) {
    check_replaceable(names_file());
    std::ofstream(names_file(), std::ios::app) << path_in_state(path) << '\n';
  }
  last_ = path;
}

}  // namespace fulgur::detail
