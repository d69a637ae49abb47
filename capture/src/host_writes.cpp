#include "host_writes.h"

#include <array>
#include <cstring>

#include "operator_rules.h"

namespace fulgur::detail {

// Several chains, so that it takes about the time of reading the memory.
uint64_t checksum_of(std::span<const std::byte> bytes) {
  constexpr uint64_t kPrime = 0x9E3779B97F4A7C15;
  constexpr size_t kChains = 4;
  const std::byte* from = bytes.data();
  size_t left = bytes.size();
  std::array<uint64_t, kChains> sums{1, 2, 3, 4}, words{};
  for (; left >= sizeof(words); left -= sizeof(words), from += sizeof(words)) {
    std::memcpy(words.data(), from, sizeof(words));
    for (size_t i = 0; i < kChains; ++i) sums[i] = (sums[i] ^ words[i]) * kPrime;
  }
  if (left > 0) {
    words = {};
    std::memcpy(words.data(), from, left);
    for (size_t i = 0; i < kChains; ++i) sums[i] = (sums[i] ^ words[i]) * kPrime;
  }
  uint64_t sum = 0;
  for (const uint64_t one : sums) sum = (sum ^ one ^ (one >> 29)) * kPrime;
  return sum;
}

uint64_t checksum_of(const c10::StorageImpl& storage) {
  return checksum_of({static_cast<const std::byte*>(storage.data()), storage.nbytes()});
}

bool HostWrites::is_compared(c10::StorageImpl* storage) const {
  if (!storage || !storage->device().is_cpu() || storage->nbytes() == 0 || !storage->data()) return false;
  return storage->nbytes() <= kMost || (storage->nbytes() <= kMostOfConstants && constants_.contains(storage));
}

void HostWrites::look(c10::StorageImpl* storage) {
  if (is_compared(storage)) seen_[storage] = checksum_of(*storage);
}

bool HostWrites::changed(const Tensor& tensor) {
  c10::StorageImpl* const storage = storage_of(tensor);
  if (!is_compared(storage)) return false;
  const uint64_t now = checksum_of(*storage);
  const auto [place, is_new] = seen_.try_emplace(storage, now);
  if (is_new || place->second == now) return false;
  place->second = now;
  without_values_.erase(storage);
  return true;
}

std::vector<Tensor> HostWrites::reads_without_values(const RecordedCall& call) const {
  std::vector<Tensor> found;
  if (without_values_.empty() || call.kind == CallKind::view || only_allocates(call.op) || only_fills(call.op))
    return found;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    if (writes_argument(call.op, i)) continue;
    each_tensor(call.arguments[i], [&](const Tensor& tensor) {
      if (tensor.numel() > 0 && without_values_.contains(storage_of(tensor))) found.push_back(tensor);
    });
  }
  return found;
}

void HostWrites::after(const RecordedCall& call) {
  // What a replay does not compute again (lower()).
  if (call.kind == CallKind::makes && makes_constants(call))
    each_result(call, [this](const Tensor& tensor) { constants_.insert(storage_of(tensor)); });
  if (call.kind != CallKind::view) {
    each_written(call, [this](const Tensor& tensor) { without_values_.erase(storage_of(tensor)); });
    each_result(call, [&](const Tensor& tensor) {
      if (call.kind == CallKind::allocate)
        without_values_.insert(storage_of(tensor));
      else
        without_values_.erase(storage_of(tensor));
    });
  }
  // Kernels may use arguments as scratch memory.
  each_argument(call, [this](const Tensor& tensor) { look(storage_of(tensor)); });
  each_result(call, [this](const Tensor& tensor) { look(storage_of(tensor)); });
}

void HostWrites::forget(c10::StorageImpl* storage) {
  seen_.erase(storage);
  without_values_.erase(storage);
  constants_.erase(storage);
}

std::vector<c10::StorageImpl*> HostWrites::changed_since() const {
  std::vector<c10::StorageImpl*> found;
  for (const auto& [storage, sum] : seen_)
    if (is_compared(storage) && !is_borrowed(*storage) && checksum_of(*storage) != sum) found.push_back(storage);
  return found;
}

}  // namespace fulgur::detail
