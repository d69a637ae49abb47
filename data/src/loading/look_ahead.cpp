#include "loading/look_ahead.h"

#include "fulgur/core/state/let_go.h"

namespace fulgur {

LookAhead::LookAhead(std::shared_ptr<Loader> loader, std::function<Batch(const Batch&)> prepare)
    : loader_(std::move(loader)), prepare_(std::move(prepare)), position_(loader_->state()), before_last_(position_) {}

LookAhead::~LookAhead() { let_go(ahead_); }

void LookAhead::begin(int64_t epoch) {
  let_go(ahead_);
  has_ahead_ = looked_ = stale_ = gave_ = false;
  epoch_ = epoch;
}

void LookAhead::start_epoch(int64_t epoch) {
  begin(epoch);
  loader_->start_epoch(epoch);
  position_ = before_last_ = loader_->state();
}

void LookAhead::restart_epoch(int64_t epoch) {
  begin(epoch);
  loader_->restart_epoch(epoch);
  position_ = before_last_ = loader_->state();
}

void LookAhead::read() {
  Batch batch;
  has_ahead_ = loader_->next(batch);
  looked_ = true;
  if (!has_ahead_) return;
  behind_ahead_ = loader_->state();
  ahead_ = prepare_(batch);
}

bool LookAhead::next(Batch& out) {
  if (stale_) {
    loader_->load_state(position_);
    start_epoch(epoch_);
  }
  if (!looked_) read();
  if (!has_ahead_) return false;
  out = std::move(ahead_);
  before_last_ = std::move(position_);
  position_ = std::move(behind_ahead_);
  looked_ = false;
  gave_ = true;
  return true;
}

void LookAhead::read_ahead() {
  // An error here belongs to the next batch, which the next `next` reads again.
  try {
    if (!looked_) read();
  } catch (...) {
    stale_ = true;
  }
}

void LookAhead::unread() {
  if (!gave_) return;
  gave_ = false;
  position_ = before_last_;
  stale_ = true;
}

void LookAhead::load_state(const StateTree& state) {
  loader_->load_state(state);
  position_ = state;
  gave_ = false;
}

}  // namespace fulgur
