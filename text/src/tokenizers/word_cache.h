#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fulgur::detail {

/// The ids of words that occurred lately, in bounded memory: a word replaces the one in its slot.
class WordCache {
 public:
  static constexpr size_t kLongest = 64;  // bytes of a word; longer ones are rare
  /// Appends the ids of `word`, which `encode(word, out)` determines if they are not known.
  template <class Encode>
  void append(std::string_view word, std::vector<int32_t>& out, Encode&& encode) {
    if (word.size() > kLongest) return encode(word, out);
    Slot& slot = slots_[std::hash<std::string_view>()(word) % kSlots];
    if (slot.word != word || word.empty()) {
      // If it throws, the slot has no word.
      slot.word.clear();
      slot.ids.clear();
      encode(word, slot.ids);
      slot.word = word;
    }
    out.insert(out.end(), slot.ids.begin(), slot.ids.end());
  }

 private:
  static constexpr size_t kSlots = 1 << 15;
  struct Slot {
    std::string word;
    std::vector<int32_t> ids;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
};

/// Caches that threads borrow for a text. There are as many as threads that encode at the same time.
class WordCaches {
 public:
  class Loan {
   public:
    explicit Loan(WordCaches& from) : from_(from), cache_(from.take()) {}
    ~Loan() { from_.give_back(std::move(cache_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    WordCache& operator*() const { return *cache_; }

   private:
    WordCaches& from_;
    std::unique_ptr<WordCache> cache_;
  };

 private:
  std::unique_ptr<WordCache> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<WordCache> cache = std::move(idle_.back());
        idle_.pop_back();
        return cache;
      }
    }
    return std::make_unique<WordCache>();
  }
  void give_back(std::unique_ptr<WordCache> cache) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(cache));
  }
  std::mutex mutex_;
  std::vector<std::unique_ptr<WordCache>> idle_;
};

}  // namespace fulgur::detail
