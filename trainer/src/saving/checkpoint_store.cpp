#include "saving/checkpoint_store.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>

#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "services/nonfinite_policy.h"

namespace fulgur::detail {
namespace fs = std::filesystem;

namespace {

using PendingRequest = std::pair<uint64_t, CheckpointRequest>;

StateTree to_state(const PendingRequest& pending, const std::string& name) {
  const CheckpointRequest& r = pending.second;
  return StateTree::map({{"ticket", static_cast<int64_t>(pending.first)},
                         {"name", name},
                         {"reason", r.reason},
                         {"best", r.best},
                         {"keep", r.keep},
                         {"weights_only", r.weights_only},
                         {"owner", r.owner},
                         {"score", r.score ? StateTree(*r.score) : StateTree(nullptr)}});
}

PendingRequest to_request(const StateTree& state) {
  const StateTree& score = state.at("score");
  return {static_cast<uint64_t>(state.at("ticket").as_int()),
          {.name = state.at("name").as_string(),
           .reason = state.at("reason").as_string(),
           .best = state.at("best").as_bool(),
           .keep = state.at("keep").as_bool(),
           .weights_only = state.at("weights_only").as_bool(),
           .owner = state.at("owner").as_string(),
           .score = score.is_null() ? std::nullopt : std::optional(score.as_double())}};
}

CheckpointError not_finite(const fs::path& folder, const std::string& weight) {
  return CheckpointError(cat("[trainer.checkpoint] ", folder, " is not written: '", weight, "' is not finite."));
}

// The epoch under way, or else the last one that was completed.
int64_t epoch_of(const Progress& p) { return p.in_epoch() ? p.epoch : std::max<int64_t>(p.epoch - 1, 0); }

}  // namespace

CheckpointRequest checkpoint_of_now(const RunContext& run, std::string reason) {
  const Progress& p = run.progress();
  return {.name = cat("epoch=", epoch_of(p), "-step=", p.global_step),
          .reason = std::move(reason),
          .best = false,
          .keep = false,
          .weights_only = false,
          .owner = "trainer",
          .score = std::nullopt};
}

uint64_t CheckpointStore::request(CheckpointRequest request) {
  const fs::path folder = plain_path(run_.checkpoint_dir());
  const fs::path name = plain_path(folder / request.name);
  if (name == folder / "last" || name == folder / "best")
    throw ConfigError(
        cat("[trainer.checkpoint] ", name.filename(),
            ".ckpt is a link to a checkpoint, and no checkpoint can have its name. Request another name."));
  const uint64_t ticket = next_ticket_++;
  requests_.emplace_back(ticket, std::move(request));
  return ticket;
}

void CheckpointStore::discard_requests(const std::string& why, uint64_t first) {
  const CheckpointError error(cat("[trainer.checkpoint] the state to be saved was discarded: ", why, "."));
  const auto discarded = std::stable_partition(requests_.begin(), requests_.end(),
                                               [&](const auto& request) { return request.first < first; });
  std::vector<PendingRequest> requests(discarded, requests_.end());
  requests_.erase(discarded, requests_.end());
  for (const auto& [ticket, request] : requests) {
    CheckpointInfo info = info_of_now(ticket, request.name, request);
    info.epoch = run_.progress().epoch;
    host_.failed(info, error);
  }
}

CheckpointInfo CheckpointStore::info_of_now(uint64_t ticket, fs::path path, CheckpointRequest request) const {
  return {.ticket = ticket,
          .path = std::move(path),
          .epoch = epoch_of(run_.progress()),
          .global_step = run_.progress().global_step,
          .request = std::move(request)};
}

void CheckpointStore::release(const fs::path& path, std::string_view owner) {
  kept_.release(path, owner);
  released_ = true;
}

void CheckpointStore::act_on_requests() {
  if (!requests_.empty()) host_.settle_steps();
  // A checkpoint is written after the rows of its steps.
  if (!requests_.empty() && !awaits_rows()) host_.write_rows(/*and_act=*/true);
  if (host_.is_alone() && !requests_.empty()) {
    log::error(cat("a checkpoint was requested, but one rank alone cannot write it; ",
                   last() ? cat("--resume continues from ", *last()) : "there is no earlier checkpoint"));
    requests_.clear();
  }
  if (host_.is_alone()) return;
  if (run_.world_size() > 1) {
    if (published_parts_ || host_.take_save_done()) wait_for_save();
  } else if (in_flight_) {
    for (auto& result : writer_->poll()) finish_save(without_torn(std::move(result)));
    // Proceed as after a wait: which names are taken at the next save must not depend on when this one was written.
    if (!in_flight_) prune();
  }
  if (requests_.empty() && !released_) return;
  released_ = false;
  while (!requests_.empty()) {
    const auto [ticket, request] = std::move(requests_.front());
    requests_.erase(requests_.begin());
    if (host_.allows_saves() && !take_resumed(ticket, request)) start_save(ticket, request);
    run_.collectives().set_activity("between steps");
  }
  prune();
}

void CheckpointStore::wait_for_save() {
  if (!in_flight_) return;
  host_.write_rows(/*and_act=*/false);  // a save may be held until they are written
  std::vector<AsyncCheckpointWriter::Result> results = own_results();
  for (auto& result : results) result = without_torn(std::move(result));
  if (host_.is_alone()) return;
  check_exchanges_before_save();
  if (published_parts_)
    results = {*std::exchange(published_parts_, std::nullopt)};
  else if (parts_)
    results = {commit_parts(results.empty() ? AsyncCheckpointWriter::Result{} : results.front())};
  else if (run_.world_size() > 1)
    results = {result_of_all_ranks(results.empty() ? AsyncCheckpointWriter::Result{} : std::move(results.front()))};
  for (const auto& result : results) finish_save(result);
  prune();
}

std::vector<AsyncCheckpointWriter::Result> CheckpointStore::own_results() {
  std::vector<AsyncCheckpointWriter::Result> results;
  if (begin_error_)
    results.emplace_back().error = std::exchange(begin_error_, std::nullopt);
  else if (writer_)
    results = writer_->wait();
  return results;
}

void CheckpointStore::publish_parts() {
  if (!parts_ || !host_.take_save_done()) return;
  const auto results = own_results();
  published_parts_ = commit_parts(results.empty() ? AsyncCheckpointWriter::Result{} : results.front());
}

// Rank 0's writer checked its own before writing.
void CheckpointStore::check_exchanges_before_save() {
  if (!begun_) return;
  begun_->synchronize();
  begun_.reset();
  run_.collectives().check();
}

// On a GPU the host does not wait for the device's results; the writer of the checkpoint checks them.
// Parameters that are whole only during a save cannot be copied later.
bool CheckpointStore::judged_later() const {
  return settings_.async && run_.device().is_cuda() && !host_.divides_parameters() && !host_.saves_parts();
}

bool CheckpointStore::awaits_rows() const { return judged_later() && run_.world_size() == 1; }

void CheckpointStore::start_training() {
  if (judged_later()) late_.watch_parameters();
}

void CheckpointStore::before_writes() {
  if (late_.watches()) {
    const std::string written = late_.end_watch();
    if (in_flight_) torn_ = written;
  }
  if (writer_) writer_->before_writes();
}

AsyncCheckpointWriter::Rules CheckpointStore::rules_for(const fs::path& folder, const CheckpointContent& content) {
  AsyncCheckpointWriter::Rules rules;
  rules.write = [writer = settings_.writer](const fs::path& to, const CheckpointContent& copies) {
    return writer->write(to, copies);
  };
  if (!judged_later()) return rules;
  rules.held = awaits_rows();
  late_.end_watch();
  late_.collect(content.optimizers);
  rules.is_late = [this](const Tensor& tensor) { return late_.take(tensor); };
  rules.facts["weight_norm"] = host_.weight_norm();
  rules.refuse = [&collectives = run_.collectives(), folder](const CheckpointContent& copies, const StateTree& facts) {
    collectives.check();
    const auto bad = NonFinitePolicy::bad_weight(facts.at("weight_norm").tensor(), copies.module);
    return bad ? std::optional<std::string>(not_finite(folder, *bad).what()) : std::nullopt;
  };
  return rules;
}

// Write pending rows now, so that their metrics are known.
void CheckpointStore::complete_save(uint64_t save) { writer_->complete(save, host_.late_values()); }

// A copy is useless if its source was written while it was made.
AsyncCheckpointWriter::Result CheckpointStore::without_torn(AsyncCheckpointWriter::Result result) {
  const std::string torn = std::exchange(torn_, {});
  if (torn.empty() || result.error) return result;
  remove_checkpoint(result.path);
  result.refused = true;
  result.error = CheckpointError(cat("[trainer.checkpoint] ", result.path, " is not kept: ", torn,
                                     " was modified before the optimizer's step, by forward or a callback, while it "
                                     "was being copied. Later checkpoints wait until it is copied."));
  return result;
}

StateTree CheckpointStore::state(uint64_t ticket, const CheckpointRequest& request) const {
  // A run that resumes from here publishes and writes what this process may not get to.
  StateTree state = kept_.state(request);
  StateTree::List pending{to_state({ticket, request}, kept_.path_in_state(request.name))};
  for (const PendingRequest& later : requests_)
    pending.push_back(to_state(later, kept_.path_in_state(later.second.name)));
  state["requests"] = std::move(pending);
  return state;
}

CheckpointStore::Place CheckpointStore::place() const {
  const Progress& progress = run_.progress();
  return {progress.global_step, progress.batches_total.completed, progress.validations, progress.epochs.completed};
}

bool CheckpointStore::is_saved() const { return saved_ == place(); }

std::optional<fs::path> CheckpointStore::name_at_batch() const {
  const Place now = place();
  if (!last() || !saved_ || saved_->global_step != now.global_step || saved_->batches != now.batches)
    return std::nullopt;
  return last()->parent_path() / checkpoint_name(*last());
}

void CheckpointStore::resumed_from(const ResumedCheckpoint& checkpoint, const CheckpointOrigin& origin,
                                   const StateTree& state) {
  const fs::path path = plain_path(checkpoint.path);
  saves_ = origin.save_counter;
  std::vector<PendingRequest> pending;
  std::vector<fs::path> names;
  for (const StateTree& item : state.at("requests").as_list()) {
    const PendingRequest& request = pending.emplace_back(to_request(item));
    next_ticket_ = std::max(next_ticket_, request.first + 1);
    names.push_back(request.second.name);
  }
  // In another folder, the run has no checkpoint yet.
  if (!checkpoint.same_run) return;
  kept_.continue_run(origin, state);
  const bool own = owns(path);
  saves_ = kept_.take_over(path, state, names, saves_);
  released_ = true;
  if (!own) return;
  kept_.resumed_from(path, checkpoint.is_named);
  saved_ = place();
  resumed_path_ = path;
  first_own_ticket_ = next_ticket_;
  requests_.insert(requests_.end(), pending.begin(), pending.end());
  if (requests_.empty()) return;
  const auto [ticket, request] = requests_.front();
  requests_.erase(requests_.begin());
  resumed_ = info_of_now(ticket, path, request);
}

void CheckpointStore::publish_resumed() {
  if (!resumed_) return;
  CheckpointInfo info = std::move(*resumed_);
  resumed_.reset();
  publish(info);
  prune();  // before the requests, so that weights which are made again find their names free
  act_on_requests();
}

// Nothing was trained since the run resumed: its checkpoint already has this state, and this name.
bool CheckpointStore::take_resumed(uint64_t ticket, const CheckpointRequest& request) {
  if (!resumed_path_ || last() != resumed_path_ || !is_saved() || request.weights_only || ticket < first_own_ticket_)
    return false;
  const fs::path& path = *resumed_path_;
  if (plain_path(run_.checkpoint_dir() / request.name) != path.parent_path() / checkpoint_name(path)) return false;
  CheckpointInfo info = info_of_now(ticket, path, request);
  publish(info);
  return true;
}

void CheckpointStore::start_save(uint64_t ticket, const CheckpointRequest& request) {
  run_.collectives().set_activity("a checkpoint");
  // The result of the previous checkpoint is part of this one's state, at the same step in every run.
  wait_for_save();
  fs::path folder = request.name.is_absolute() ? request.name : run_.checkpoint_dir() / request.name;
  folder += run_layout::kExtension;
  folder = plain_path(folder);
  const auto whole = host_.saves_parts() ? nullptr : host_.whole_parameters();
  CheckpointInfo info = info_of_now(ticket, folder, request);
  if (!judged_later()) {
    host_.check_ranks();
    // Rank 0's buffers are written. Those of other ranks may differ; rank 0's replace them before the next forward.
    const std::string bad = bad_weight_of_ranks();
    if (!bad.empty()) return report_refusal(info, not_finite(folder, bad));
  }
  ++saves_;
  const auto saved_before = saved_;
  if (!request.weights_only) saved_ = place();
  try {
    CheckpointContent content = host_.collect(request.weights_only, state(ticket, request));
    content.origin.save_counter = saves_;
    content.origin.run = kept_.run_name();
    if (settings_.async) return host_.saves_parts() ? begin_writing_parts(info, content) : begin_writing(info, content);
    info.path = write_now(folder, content);
  } catch (const CheckpointError& error) {
    saved_ = saved_before;
    return report_failure(info, error);
  }
  publish(info);
}

void CheckpointStore::begin_writing(CheckpointInfo info, const CheckpointContent& content) {
  if (run_.is_global_zero()) {
    if (!writer_) writer_.emplace();
    try {
      const uint64_t save = writer_->submit(info.path, content, rules_for(info.path, content));
      if (awaits_rows()) host_.when_rows_are_written([this, save] { complete_save(save); });
    } catch (const CheckpointError& error) {
      if (run_.world_size() == 1) throw;
      begin_error_ = error;
    }
  }
  in_flight_ = std::move(info);
  torn_.clear();
  if (run_.world_size() > 1 && judged_later()) {
    const at::Device device = run_.device();
    begun_.emplace(device.type());
    begun_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
}

std::string CheckpointStore::bad_weight_of_ranks() {
  const std::string own = host_.bad_weight().value_or("");
  if (!host_.saves_parts()) return run_.collectives().broadcast_text(own, 0);
  for (std::string& of_rank : run_.collectives().gather_text(own))
    if (!of_rank.empty()) return std::move(of_rank);
  return {};
}

void CheckpointStore::begin_writing_parts(CheckpointInfo info, const CheckpointContent& content) {
  auto parts = std::make_shared<RankParts>(run_.collectives(), info.path);
  if (!writer_) writer_.emplace();
  AsyncCheckpointWriter::Rules rules;
  rules.write = [parts](const fs::path& folder, const CheckpointContent& copies) {
    parts->write(copies);
    return folder;
  };
  try {
    writer_->submit(info.path, content, std::move(rules));
  } catch (const CheckpointError& error) {
    begin_error_ = error;
  }
  parts_ = std::move(parts);
  in_flight_ = std::move(info);
  torn_.clear();
}

AsyncCheckpointWriter::Result CheckpointStore::commit_parts(const AsyncCheckpointWriter::Result& own) {
  AsyncCheckpointWriter::Result result;
  try {
    result.path = std::exchange(parts_, nullptr)->commit(own.error);
  } catch (const CheckpointError& error) {
    result.error = error;
  }
  return result;
}

fs::path CheckpointStore::write_now(const fs::path& folder, const CheckpointContent& content) {
  if (host_.saves_parts()) return write_parts_of_ranks(run_.collectives(), folder, content);
  AsyncCheckpointWriter::Result result;
  try {
    if (run_.is_global_zero()) result.path = settings_.writer->write(folder, content);
  } catch (const CheckpointError& error) {
    if (run_.world_size() == 1) throw;
    result.error = error;
  } catch (const std::exception& error) {
    // A user's writer may throw anything.
    result.error = CheckpointError(error.what());
    if (run_.world_size() == 1) throw *result.error;
  }
  if (run_.world_size() > 1) result = result_of_all_ranks(std::move(result));
  if (result.error) throw *result.error;
  return result.path;
}

AsyncCheckpointWriter::Result CheckpointStore::result_of_all_ranks(AsyncCheckpointWriter::Result result) const {
  const char* const kind = result.refused ? "?" : result.error ? "!" : "=";
  const std::string announced =
      run_.collectives().broadcast_text(cat(kind, result.error ? result.error->what() : result.path.string()), 0);
  if (run_.is_global_zero()) return result;
  AsyncCheckpointWriter::Result heard;
  heard.refused = announced.starts_with("?");
  if (announced.starts_with("="))
    heard.path = announced.substr(1);
  else
    heard.error = CheckpointError(announced.substr(1));
  return heard;
}

void CheckpointStore::finish_save(const AsyncCheckpointWriter::Result& result) {
  CheckpointInfo info = std::move(*in_flight_);
  in_flight_.reset();
  if (result.error) {
    if (saved_ && saved_->global_step == info.global_step) saved_.reset();
    if (result.refused) return report_refusal(info, *result.error);
    run_.collectives().check();  // a failed exchange is the cause, and ends the run
    return report_failure(info, *result.error);
  }
  info.path = result.path;
  publish(info);
}

void CheckpointStore::publish(CheckpointInfo& info) {
  try {
    kept_.add(info);
  } catch (const CheckpointError& error) {
    return report_failure(info, error);
  }
  if (const auto message = failed_saves_.succeeded()) log::info(*message);
  host_.published(info);
}

void CheckpointStore::report_failure(const CheckpointInfo& info, const CheckpointError& error) {
  host_.failed(info, error);
  if (settings_.stops_on_error) throw error;
  if (const auto message = failed_saves_.failed(error.what())) log::error(*message);
}

// It must not overwrite a good checkpoint, and no run resumes from it.
void CheckpointStore::report_refusal(const CheckpointInfo& info, const CheckpointError& error) {
  host_.failed(info, error);
  if (!std::exchange(refused_, true)) return log::warn("trainer.checkpoint_refused", error.what());
  if (run_.is_global_zero()) log::info(error.what());
}

void CheckpointStore::prune() {
  // The newest is safe only once it is written: until then the previous one stays.
  if (in_flight_) {
    released_ = true;
    return;
  }
  kept_.remove_released();
}

}  // namespace fulgur::detail
