#include "checkpoint_store.h"

#include <algorithm>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/log.h"
#include "fulgur/core/text.h"
#include "run.h"

namespace fulgur::detail {
namespace fs = std::filesystem;

CheckpointRequest checkpoint_of_now(const Run& run, std::string reason) {
  const Progress& p = run.progress();
  const int64_t epoch = p.batches.completed > 0 ? p.epoch : std::max<int64_t>(p.epoch - 1, 0);
  return {.name = cat("epoch=", epoch, "-step=", p.global_step), .reason = std::move(reason), .best = false, .keep = true,
          .weights_only = false, .owner = "trainer", .score = std::nullopt};
}

uint64_t CheckpointStore::request(CheckpointRequest request) {
  const uint64_t ticket = next_ticket_++;
  requests_.emplace_back(ticket, std::move(request));
  return ticket;
}

void CheckpointStore::release(const fs::path& path, std::string_view owner) {
  const auto found = keepers_.find(path);
  std::error_code error;
  if (found != keepers_.end()) found->second.erase(std::string(owner));
  // Of an earlier part of the run, or another run: known by what a checkpoint must have.
  else if (fs::exists(path / "state.json", error)) keepers_[path];
  released_ = true;
}

void CheckpointStore::act() {
  if (in_flight_)
    for (const auto& result : writer_->poll()) finish(result);
  if (requests_.empty() && !released_) return;
  released_ = false;
  auto pending = std::move(requests_);
  requests_.clear();
  for (const auto& [ticket, request] : pending)
    if (run_.checkpoints_allowed) begin(ticket, request);
  prune();
}

void CheckpointStore::settle() {
  if (!in_flight_) return;
  for (const auto& result : writer_->wait()) finish(result);
  prune();
}

void CheckpointStore::resumed_from(const fs::path& path, int64_t global_step, int64_t save_counter, const fs::path& folder) {
  saved_step_ = global_step;
  saves_ = save_counter;
  if (path.parent_path() != folder) return;
  // Saves that were made behind this one, and are given up now, stay older than those to come.
  for (const CheckpointSummary& other : list_checkpoints(folder)) saves_ = std::max(saves_, other.origin.save_counter);
  last_ = path;
  keepers_[path];
  std::error_code error;
  const fs::path best = folder / "best.ckpt";
  if (!fs::is_symlink(best, error)) return;
  const fs::path target = fs::read_symlink(best, error);
  if (!error) best_ = target.is_absolute() ? target : folder / target;
}

void CheckpointStore::begin(uint64_t ticket, const CheckpointRequest& request) {
  // What came of the one before belongs into this one's state, at the same step in every run.
  settle();
  fs::path folder = request.name.is_absolute() ? request.name : run_.checkpoint_dir() / request.name;
  folder += ".ckpt";
  CheckpointInfo info{.ticket = ticket, .path = folder, .epoch = run_.progress_.epoch, .global_step = run_.progress_.global_step, .request = request};
  if (const auto bad = run_.finite.bad_weight()) return refuse(info, *bad);
  ++saves_;
  const int64_t saved_before = saved_step_;
  if (!request.weights_only) saved_step_ = run_.progress_.global_step;
  try {
    const CheckpointContent content = run_.collect_checkpoint(request.weights_only);
    if (run_.options.async_checkpoint) {
      if (!writer_) writer_.emplace();
      writer_->submit(folder, content);
      in_flight_ = std::move(info);
      return;
    }
    info.path = write_verified_checkpoint(folder, content);
  } catch (const CheckpointError& error) {
    saved_step_ = saved_before;
    return fail(info, error);
  }
  publish(info);
}

void CheckpointStore::finish(const AsyncCheckpointWriter::Result& result) {
  CheckpointInfo info = std::move(*in_flight_);
  in_flight_.reset();
  if (result.error) {
    if (saved_step_ == info.global_step) saved_step_ = -1;
    return fail(info, *result.error);
  }
  info.path = result.path;
  publish(info);
}

void CheckpointStore::publish(CheckpointInfo& info) {
  const CheckpointRequest& request = info.request;
  try {
    if (!request.weights_only) {
      link_checkpoint(run_.checkpoint_dir() / "last.ckpt", info.path);
      last_ = info.path;
    }
    if (request.best && (!best_owner_ || *best_owner_ == request.owner)) {
      best_owner_ = request.owner;
      link_checkpoint(run_.checkpoint_dir() / "best.ckpt", info.path);
      best_ = info.path;
    }
  } catch (const CheckpointError& error) {
    return fail(info, error);
  }
  keepers_[info.path];
  if (request.keep) keepers_[info.path].insert(request.owner);
  for (const auto& callback : run_.callbacks) callback->on_checkpoint_published(run_, info);
  for (const auto& logger : run_.active_loggers) logger->after_save_checkpoint(info);
}

void CheckpointStore::fail(const CheckpointInfo& info, const CheckpointError& error) {
  for (const auto& callback : run_.callbacks) callback->on_checkpoint_failed(run_, info, error);
  if (run_.options.on_save_error == "stop") throw error;
  log::error(cat("a checkpoint could not be saved, and training goes on (on_save_error: continue): ", error.what()));
}

// Nothing good is overwritten by it, and nobody goes on from it.
void CheckpointStore::refuse(const CheckpointInfo& info, const std::string& bad) {
  const CheckpointError error(cat("[trainer.checkpoint] ", info.path, " is not written: '", bad, "' is not finite."));
  for (const auto& callback : run_.callbacks) callback->on_checkpoint_failed(run_, info, error);
  log::error(error.what());
}

void CheckpointStore::prune() {
  // The newest is safe only when it is written: until then the one before it stays.
  if (in_flight_) {
    released_ = true;
    return;
  }
  for (auto item = keepers_.begin(); item != keepers_.end();) {
    const bool linked = item->first == last_ || item->first == best_;
    if (item->second.empty() && !linked) {
      remove_checkpoint(item->first);
      item = keepers_.erase(item);
    } else {
      ++item;
    }
  }
}

}  // namespace fulgur::detail
