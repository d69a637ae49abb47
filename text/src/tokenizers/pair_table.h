#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/state/split_mix.h"

namespace fulgur::detail {

inline uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

/// Pairs of ids and their merges: a hash table with open addressing, which is read for each two neighbours of a word.
class PairTable {
 public:
  struct Merge {
    int32_t rank, id;
  };

  explicit PairTable(size_t count) {
    size_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    slots_.resize(slots);
  }

  /// False if the pair is there already.
  bool insert(int32_t left, int32_t right, Merge merge) {
    Slot& slot = slots_[place_of(pair_key(left, right))];
    if (slot.key != kEmpty) return false;
    slot = {pair_key(left, right), merge};
    return true;
  }
  /// nullptr if the pair is not merged.
  const Merge* find(int32_t left, int32_t right) const {
    const Slot& slot = slots_[place_of(pair_key(left, right))];
    return slot.key == kEmpty ? nullptr : &slot.merge;
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // no pair: ids are not negative
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge{0, 0};
  };
  // Of the pair, or the empty slot for it.
  size_t place_of(uint64_t key) const {
    size_t place = mix_bits(key) & (slots_.size() - 1);
    while (slots_[place].key != kEmpty && slots_[place].key != key) place = (place + 1) & (slots_.size() - 1);
    return place;
  }
  std::vector<Slot> slots_;
};

}  // namespace fulgur::detail
