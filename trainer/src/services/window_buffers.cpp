#include "services/window_buffers.h"
#include "fulgur/core/device/moved_to.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>

#include <algorithm>

namespace fulgur::detail {
namespace {

bool same_kind(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.device() == b.device();
}

}  // namespace

// False for another tensor, and for the same one with other memory (set_data) or another shape.
bool WindowBuffers::Held::is_still(const Tensor& now) const {
  if (!buffer.is_same(now)) return false;
  if (!now.defined()) return true;
  const bool same_memory = !now.has_storage() || !live.has_storage() ||
                           (live.is_alias_of(now) && live.storage_offset() == now.storage_offset());
  return same_memory && same_kind(live, now) && (now.layout() != at::kStrided || live.strides() == now.strides());
}

void WindowBuffers::find(const LightningModule& module) {
  const std::vector<Tensor> buffers = module.buffers();
  held_.resize(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    Held& held = held_[i];
    if (held.is_still(buffers[i])) continue;
    held.buffer = buffers[i];
    if (!held.buffer.defined()) {
      held.live = held.saved = Tensor();
      continue;
    }
    // Separate version counters are needed, since a graph that is not freed yet may have saved a buffer.
    held.live = held.buffer.variable_data();
    if (!held.saved.defined() || !same_kind(held.saved, held.live)) held.saved = at::empty_like(held.live);
  }
}

WindowBuffers::Lists WindowBuffers::lists() const {
  Lists lists;
  for (const Held& held : held_) {
    if (!held.has_values()) continue;
    lists.live.push_back(held.live);
    lists.saved.push_back(held.saved);
  }
  return lists;
}

void WindowBuffers::save(const LightningModule& module) {
  const at::NoGradGuard no_grad;
  find(module);
  const Lists lists = this->lists();
  if (!lists.live.empty()) at::_foreach_copy_(lists.saved, lists.live, /*non_blocking=*/true);
}

// The module's buffers, one for each saved buffer. If their number differs, they cannot be matched: then the buffers
// that were saved.
std::vector<Tensor> WindowBuffers::now(const LightningModule& module) const {
  std::vector<Tensor> buffers = module.buffers();
  if (buffers.size() != held_.size())
    for (buffers.clear(); const Held& held : held_) buffers.push_back(held.buffer);
  return buffers;
}

void WindowBuffers::restore(const LightningModule& module) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> buffers = now(module);
  Lists in_place;
  for (size_t i = 0; i < held_.size(); ++i) {
    const Held& held = held_[i];
    if (!held.saved.defined() || !buffers[i].defined()) continue;
    if (!held.is_still(buffers[i])) {
      buffers[i].set_data(held.saved.clone());
    } else if (held.has_values()) {
      in_place.live.push_back(held.live);
      in_place.saved.push_back(held.saved);
    }
  }
  if (!in_place.live.empty()) at::_foreach_copy_(in_place.live, in_place.saved, /*non_blocking=*/true);
}

void WindowBuffers::restore_if(const Tensor& found_inf, const LightningModule& module) {
  if (held_.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<Tensor> buffers = now(module);
  const Tensor left_out = found_inf != 0;
  for (size_t i = 0; i < held_.size(); ++i) {
    Held& held = held_[i];
    Tensor& buffer = buffers[i];
    if (!held.saved.defined() || !buffer.defined()) continue;
    if (held.is_still(buffer)) {
      if (held.has_values())
        at::where_out(held.live, detail::moved_to(left_out, held.live.device()), held.saved, held.live);
    } else if (same_kind(held.saved, buffer)) {
      buffer.set_data(at::where(detail::moved_to(left_out, buffer.device()), held.saved, buffer));
    } else if (left_out.item<bool>()) {
      buffer.set_data(held.saved.clone());
    }
  }
}

StateTree::List WindowBuffers::state() const {
  const Lists lists = this->lists();
  return StateTree::List(lists.saved.begin(), lists.saved.end());
}

void WindowBuffers::load_state(const StateTree::List& state, const LightningModule& module) {
  const at::NoGradGuard no_grad;
  find(module);
  const auto [live, saved] = lists();
  // If the code has changed the module's buffers since then, the copies are taken from the buffers as loaded.
  const bool fits = state.size() == saved.size() &&
                    std::equal(state.begin(), state.end(), saved.begin(),
                               [](const StateTree& a, const Tensor& b) { return a.tensor().sizes() == b.sizes(); });
  for (size_t i = 0; i < saved.size(); ++i) saved[i].copy_(fits ? state[i].tensor() : live[i]);
}

}  // namespace fulgur::detail
