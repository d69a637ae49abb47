#include "fulgur/data/combined_loader.h"

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "loading/other_loader.h"

namespace fulgur {
namespace {

// A loader that restarts within an epoch uses an epoch number that no other epoch has.
int64_t epoch_of_cycle(int64_t epoch, int64_t cycle) { return epoch + (cycle << 40); }

// The batches of several loaders, from those of the first ones and of another.
int64_t combined(CombinedMode mode, std::optional<int64_t> first, int64_t other) {
  if (!first) return other;
  if (mode == CombinedMode::sequential) return *first + other;
  return mode == CombinedMode::min_size ? std::min(*first, other) : std::max(*first, other);
}

}  // namespace

CombinedLoader::CombinedLoader(std::vector<Named> loaders, CombinedMode mode) : mode_(mode) {
  if (loaders.empty()) throw ConfigError("[data.CombinedLoader] at least one loader is needed; got none.");
  for (auto& [name, loader] : loaders) {
    if (!loader) throw ConfigError(cat("[data.CombinedLoader] the loader '", name, "' is null."));
    for (const Part& part : parts_)
      if (part.name == name)
        throw ConfigError(cat("[data.CombinedLoader] names must differ; '", name, "' occurs twice."));
    parts_.push_back({std::move(name), std::move(loader)});
  }
  position_ = collect();
}

std::optional<int64_t> CombinedLoader::size() const {
  std::optional<int64_t> size;
  for (const Part& part : parts_) {
    const auto here = part.loader->size();
    if (!here) return std::nullopt;
    size = combined(mode_, size, *here);
  }
  return size;
}

std::optional<int64_t> CombinedLoader::samples() const {
  if (mode_ != CombinedMode::sequential) return std::nullopt;
  int64_t sum = 0;
  for (const Part& part : parts_) {
    const auto here = part.loader->samples();
    if (!here) return std::nullopt;
    sum += *here;
  }
  return sum;
}

void CombinedLoader::share_evenly(UnevenShares rest) {
  for (Part& part : parts_) part.loader->share_evenly(rest);
}

void CombinedLoader::configure(uint64_t seed, int64_t rank, int64_t world_size) {
  for (Part& part : parts_) part.loader->configure(seed, rank, world_size);
}

bool CombinedLoader::shuffles() const {
  return std::ranges::any_of(parts_, [](const Part& part) { return part.loader->shuffles(); });
}

bool CombinedLoader::keep_order() {
  bool all = true;
  for (Part& part : parts_) all = part.loader->keep_order() && all;
  return all;
}

void CombinedLoader::check_loaded(int64_t epoch) {
  refuse_other_loader(epoch_of_other_loader_, "data.CombinedLoader", epoch);
}

void CombinedLoader::start_epoch(int64_t epoch) {
  check_loaded(epoch);
  epoch_of_other_loader_.reset();
  epoch_ = epoch;
  over_ = false;
  stale_ = true;
  before_last_.reset();
  go_to(loaded_ && loaded_->at("epoch").as_int() == epoch ? &*loaded_ : nullptr);
  loaded_.reset();
  position_ = collect();
}

void CombinedLoader::restart_epoch(int64_t epoch) {
  loaded_.reset();
  epoch_of_other_loader_.reset();
  start_epoch(epoch);
  // The parts had positions from load_state, too.
  for (Part& part : parts_) part.loader->restart_epoch(epoch_of_cycle(epoch_, part.cycle));
  position_ = collect();
}

void CombinedLoader::go_to(const StateTree* state) {
  stale_ = true;  // until all parts have moved
  batches_ = 0;
  current_ = 0;
  for (Part& part : parts_) part.cycle = 0, part.ended = false;
  if (state) {
    const auto& states = state->at("loaders").as_list();
    if (states.size() != parts_.size())
      throw DataError(cat("[data.CombinedLoader] the checkpoint must have the same number of loaders; it has ",
                          states.size(), ", but this run has ", parts_.size(), ". Resume with the same loaders."));
    batches_ = state->at("batches").as_int();
    current_ = static_cast<size_t>(state->at("current").as_int());
    for (size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].cycle = states[i].at("cycle").as_int();
      parts_[i].ended = states[i].at("ended").as_bool();
      parts_[i].loader->load_state(states[i].at("state"));
    }
  }
  for (Part& part : parts_) part.loader->start_epoch(epoch_of_cycle(epoch_, part.cycle));
  stale_ = false;
}

bool CombinedLoader::next(Batch& out) {
  if (over_) return false;
  if (stale_) go_to(&position_);
  const auto known = size();
  over_ = known && batches_ >= *known;
  if (over_) return false;
  // Some parts may have returned a batch before another one fails or ends the epoch.
  stale_ = true;
  over_ = !(mode_ == CombinedMode::sequential ? next_sequential(out) : next_together(out));
  if (over_) return false;
  stale_ = false;
  ++batches_;
  before_last_ = std::exchange(position_, collect());
  return true;
}

bool CombinedLoader::next_sequential(Batch& out) {
  for (; current_ < parts_.size(); ++current_) {
    if (parts_[current_].loader->next(out)) return true;
  }
  return false;
}

bool CombinedLoader::next_together(Batch& out) {
  Batch all;
  const auto all_ended = [this] { return std::ranges::all_of(parts_, [](const Part& part) { return part.ended; }); };
  if (mode_ == CombinedMode::max_size && all_ended()) return false;
  for (Part& part : parts_) {
    if (mode_ == CombinedMode::max_size && part.ended) continue;
    Batch batch;
    if (!part.loader->next(batch)) {
      part.ended = true;
      if (mode_ == CombinedMode::min_size || all_ended()) return false;
      if (mode_ == CombinedMode::max_size) continue;
      part.loader->start_epoch(epoch_of_cycle(epoch_, ++part.cycle));
      if (!part.loader->next(batch))
        throw DataError(
            cat("[data.CombinedLoader] the loader '", part.name, "' must have batches to restart; it has none."));
    }
    for (auto& [name, value] : batch) all.add(cat(part.name, ".", name), std::move(value));
  }
  out = std::move(all);
  return true;
}

void CombinedLoader::unread() {
  if (!before_last_) return;
  position_ = std::move(*before_last_);
  before_last_.reset();
  over_ = false;
  stale_ = true;  // not moved now: moving waits for the parts, and the run may be about to end
}

int64_t CombinedLoader::batches_done(const StateTree& state, const StateTree::List& parts) const {
  const auto& states = state.at("loaders").as_list();
  const auto current = static_cast<size_t>(state.at("current").as_int());
  std::optional<int64_t> left;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto size = parts_[i].loader->size();
    if (!size || !parts[i].contains("batches")) continue;
    const bool is_over = states[i].at("ended").as_bool() || (mode_ == CombinedMode::sequential && i < current);
    left = combined(mode_, left, is_over ? 0 : *size - parts[i].at("batches").as_int());
  }
  const auto all = size();
  return all && left ? std::max<int64_t>(*all - *left, 0) : state.at("batches").as_int();
}

bool CombinedLoader::set_batch_size(std::optional<int64_t> size) {
  if (size) return false;
  for (const Part& part : parts_) part.loader->set_batch_size(std::nullopt);
  return true;
}

StateTree CombinedLoader::reshard_state(const StateTree& state, int64_t from) const {
  const auto& states = state.at("loaders").as_list();
  if (states.size() != parts_.size()) return state;  // start_epoch reports this
  StateTree::List parts, resharded;
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts.push_back(parts_[i].loader->reshard_state(states[i].at("state"), from));
    resharded.push_back(
        StateTree::map({{"cycle", states[i].at("cycle")}, {"ended", states[i].at("ended")}, {"state", parts.back()}}));
  }
  StateTree result = state;
  result["loaders"] = std::move(resharded);
  result["batches"] = batches_done(state, parts);
  return result;
}

StateTree CombinedLoader::collect() const {
  StateTree::List states;
  for (const Part& part : parts_)
    states.push_back(StateTree::map({{"cycle", part.cycle}, {"ended", part.ended}, {"state", part.loader->state()}}));
  return StateTree::map({{"epoch", epoch_},
                         {"batches", batches_},
                         {"current", static_cast<int64_t>(current_)},
                         {"loaders", std::move(states)}});
}

StateTree CombinedLoader::state() const { return loaded_ ? *loaded_ : position_; }

void CombinedLoader::load_state(const StateTree& state) {
  epoch_of_other_loader_ = epoch_of_other_loader(state, LoaderKind::combined);
  if (epoch_of_other_loader_) return loaded_.reset();
  const int64_t epoch = state.at("epoch").as_int(), batches = state.at("batches").as_int(),
                current = state.at("current").as_int();
  for (const auto& part : state.at("loaders").as_list()) {
    part.at("state");
    if (part.at("cycle").as_int() < 0) throw CheckpointError("[data.CombinedLoader] a cycle must not be negative.");
    static_cast<void>(part.at("ended").as_bool());
  }
  if (epoch < 0 || batches < 0 || current < 0)
    throw CheckpointError(cat("[data.CombinedLoader] a position must not be negative; got epoch ", epoch, ", batch ",
                              batches, ", loader ", current, "."));
  loaded_ = state;
  const auto& states = state.at("loaders").as_list();
  if (states.size() != parts_.size()) return;  // start_epoch reports this
  // With other batch sizes, the samples that are left decide how many batches are.
  StateTree::List parts;
  bool changed = false;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const StateTree& saved = states[i].at("state");
    parts_[i].loader->load_state(saved);
    parts.push_back(parts_[i].loader->state());
    changed = changed || (saved.contains("batches") && parts.back().contains("batches") &&
                          saved.at("batches").as_int() != parts.back().at("batches").as_int());
  }
  if (changed) (*loaded_)["batches"] = batches_done(state, parts);
}

}  // namespace fulgur
