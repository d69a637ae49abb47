#include "saved_state.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace fulgur::detail {

void SavedState::add(const c10::Storage& storage, size_t most) {
  const auto [place, is_new] = bytes_.try_emplace(storage.unsafeGetStorageImpl());
  if (!is_new) return;
  Copy& copy = place->second;
  copy.storage = storage;
  copy.size = std::min(storage.nbytes(), most);
  copy.bytes = std::make_unique_for_overwrite<std::byte[]>(copy.size);
  if (copy.size > 0) std::memcpy(copy.bytes.get(), storage.data(), copy.size);
}

void SavedState::add(const at::Generator& generator) {
  if (std::ranges::any_of(generators_, [&](const auto& pair) { return pair.first == generator; })) return;
  at::Generator read = generator;
  const std::lock_guard lock(read.mutex());
  generators_.emplace_back(generator, read.get_state());
}

std::vector<at::Generator> SavedState::generators() const {
  std::vector<at::Generator> all;
  for (const auto& [generator, state] : generators_) all.push_back(generator);
  return all;
}

SavedState SavedState::now(const SavedState& other) {
  SavedState state;
  for (const auto& [key, copy] : other.bytes_) state.add(copy.storage, copy.size);
  for (const auto& [generator, before] : other.generators_) state.add(generator);
  return state;
}

void SavedState::restore() const {
  for (const auto& [key, copy] : bytes_)
    if (copy.size > 0 && copy.storage.nbytes() >= copy.size)
      std::memcpy(key->mutable_data(), copy.bytes.get(), copy.size);
  for (const auto& [generator, state] : generators_) {
    at::Generator to = generator;
    const std::lock_guard lock(to.mutex());
    to.set_state(state);
  }
}

std::vector<c10::StorageImpl*> SavedState::differing(const SavedState& other) const {
  std::vector<c10::StorageImpl*> found;
  for (const auto& [key, copy] : bytes_) {
    const auto theirs = other.bytes_.find(key);
    if (theirs == other.bytes_.end() || theirs->second.size != copy.size ||
        (copy.size > 0 && std::memcmp(copy.bytes.get(), theirs->second.bytes.get(), copy.size) != 0))
      found.push_back(key);
  }
  return found;
}

bool SavedState::generators_differ_from(const SavedState& other) const {
  return !std::ranges::equal(generators_, other.generators_, [](const auto& mine, const auto& theirs) {
    return mine.first == theirs.first && mine.second.nbytes() == theirs.second.nbytes() &&
           std::memcmp(mine.second.const_data_ptr(), theirs.second.const_data_ptr(), mine.second.nbytes()) == 0;
  });
}

}  // namespace fulgur::detail
