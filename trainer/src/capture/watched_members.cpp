#include "capture/watched_members.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <typeinfo>

#include "fulgur/core/contracts/component_access.h"
#include "fulgur/core/text/class_name.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr size_t kWord = sizeof(uint64_t);

}  // namespace

WatchedMembers::WatchedMembers(const LightningModule& module) : class_(class_name(typeid(module))) {
  const auto [whole, base] = ComponentAccess::object_of(module);
  whole_ = whole.data();
  size_t size = 0;
  const auto add = [&](const std::byte* from, const std::byte* to) {
    if (from >= to) return;
    parts_.emplace_back(from, to);
    size += parts_.back().size();
  };
  if (!whole.empty()) {
    add(whole.data(), base.data());
    add(base.data() + base.size(), whole.data() + whole.size());
  }
  before_.resize(size);
  changes_.resize((size + kWord - 1) / kWord);
  remember();
}

void WatchedMembers::remember() {
  std::byte* to = before_.data();
  for (const auto part : parts_) {
    std::memcpy(to, part.data(), part.size());
    to += part.size();
  }
}

bool WatchedMembers::changed() const {
  const std::byte* before = before_.data();
  return std::ranges::any_of(parts_, [&before](std::span<const std::byte> part) {
    const bool differs = std::memcmp(before, part.data(), part.size()) != 0;
    before += part.size();
    return differs;
  });
}

bool WatchedMembers::due() {
  changed_at_.reset();
  if (!changed()) return false;
  const std::vector<std::byte> before = before_;
  remember();
  bool is_due = false;
  for (size_t i = 0; i < before.size(); i += kWord) {
    if (std::memcmp(&before[i], &before_[i], std::min(kWord, before.size() - i)) == 0) continue;
    if (!changed_at_) changed_at_ = i;
    is_due = std::has_single_bit(++changes_[i / kWord]) || is_due;
  }
  return is_due;
}

std::optional<std::string> WatchedMembers::last_change() const {
  if (!changed_at_) return std::nullopt;
  size_t left = *changed_at_;
  auto part = parts_.begin();
  while (left >= part->size()) left -= (part++)->size();
  const std::ptrdiff_t offset = part->data() + left - whole_;
  return cat("a member of ", class_, " at offset ", offset, " to ", offset + static_cast<std::ptrdiff_t>(kWord) - 1,
             " of the object has changed");
}

}  // namespace fulgur::detail
