#include "window_buffers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>

#include <algorithm>

namespace fulgur::detail {

void WindowBuffers::find(const LightningModule& module) {
  if (!live_.empty()) return;
  for (const Tensor& buffer : module.buffers()) {
    if (!buffer.defined() || buffer.numel() == 0) continue;
    // With version counters of their own: a graph that is not freed yet may have saved a buffer.
    live_.push_back(buffer.variable_data());
    saved_.push_back(at::empty_like(buffer));
  }
}

void WindowBuffers::save(const LightningModule& module) {
  const at::NoGradGuard no_grad;
  find(module);
  if (!live_.empty()) at::_foreach_copy_(saved_, live_, /*non_blocking=*/true);
}

void WindowBuffers::restore() {
  const at::NoGradGuard no_grad;
  if (!live_.empty()) at::_foreach_copy_(live_, saved_, /*non_blocking=*/true);
}

void WindowBuffers::restore_if(const Tensor& found_inf) {
  if (live_.empty()) return;
  const at::NoGradGuard no_grad;
  const Tensor left_out = found_inf != 0;
  for (size_t i = 0; i < live_.size(); ++i)
    at::where_out(live_[i], left_out.to(live_[i].device(), /*non_blocking=*/true), saved_[i], live_[i]);
}

StateTree::List WindowBuffers::state() const { return StateTree::List(saved_.begin(), saved_.end()); }

void WindowBuffers::load_state(const StateTree::List& state, const LightningModule& module) {
  const at::NoGradGuard no_grad;
  find(module);
  // The code may have changed the module's buffers since: these are as they were loaded, then.
  const bool fits = state.size() == saved_.size() &&
                    std::equal(state.begin(), state.end(), saved_.begin(),
                               [](const StateTree& a, const Tensor& b) { return a.tensor().sizes() == b.sizes(); });
  for (size_t i = 0; i < saved_.size(); ++i) saved_[i].copy_(fits ? state[i].tensor() : live_[i]);
}

}  // namespace fulgur::detail
