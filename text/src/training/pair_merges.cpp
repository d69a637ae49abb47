#include "training/pair_merges.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "tokenizers/pair_table.h"
#include "unicode/characters.h"

namespace fulgur::detail {
namespace {

// A pair that may be merged, with the words in which it has appeared since it was last offered.
struct PairOffer {
  int64_t count;
  uint64_t pair;
  int64_t step;  // of the merge that made it
  std::vector<uint32_t> words;
  // The order of a heap: the largest is taken first.
  bool operator<(const PairOffer& other) const {
    if (count != other.count) return count < other.count;
    if (pair != other.pair) return pair > other.pair;
    return step > other.step;
  }
};

class MergeLearner {
 public:
  MergeLearner(CountedWords words, const MergeTraining& how) : how_(how), words_(std::move(words)) {
    std::ranges::sort(words_);
    for (const std::string& token : how.special_tokens) add_token(token);
    add_alphabet();
    if (static_cast<int64_t>(result_.tokens.size()) > how.vocab_size)
      throw ConfigError(cat("[text.TokenizerTrainer] vocab_size must hold the special tokens and the alphabet, ",
                            result_.tokens.size(), " tokens; it is ", how.vocab_size, "."));
    spell_words();
  }

  MergedTokens learned() {
    count_pairs();
    while (static_cast<int64_t>(result_.tokens.size()) < how_.vocab_size && !offers_.empty()) {
      std::pop_heap(offers_.begin(), offers_.end());
      PairOffer best = std::move(offers_.back());
      offers_.pop_back();
      if (const int64_t now = counts_.at(best.pair); best.count != now) {
        // It has lost occurrences, or gained some: it takes its new place.
        best.count = now;
        push(std::move(best));
        continue;
      }
      if (best.count < 1 || best.count < how_.min_frequency) break;
      merge(best);
    }
    keep_last_ranks();
    return std::move(result_);
  }

 private:
  int32_t add_token(const std::string& token) {
    const auto [place, is_new] = ids_.emplace(token, static_cast<int32_t>(result_.tokens.size()));
    if (is_new) result_.tokens.push_back(token);
    return place->second;
  }

  void add_alphabet() {
    std::set<char32_t> alphabet(how_.alphabet.begin(), how_.alphabet.end());
    for (const auto& [word, count] : words_)
      for (size_t at = 0; at < word.size();) alphabet.insert(next_character(word, at));
    for (const char32_t c : alphabet) {
      std::string token;
      append_character(token, c);
      add_token(token);
    }
  }

  void spell_words() {
    for (const auto& [word, count] : words_) {
      std::vector<int32_t> ids;
      for (size_t at = 0; at < word.size();) {
        std::string token = at == 0 ? "" : how_.continuing_prefix;
        append_character(token, next_character(word, at));
        ids.push_back(add_token(token));
      }
      spelled_.push_back(std::move(ids));
    }
  }

  void change(uint32_t word, int32_t left, int32_t right, int sign) {
    const uint64_t pair = pair_key(left, right);
    counts_[pair] += sign * words_[word].second;
    if (sign < 0) return;
    std::vector<uint32_t>& places = new_places_[pair];
    if (places.empty() || places.back() != word) places.push_back(word);
  }

  void push(PairOffer offer) {
    offers_.push_back(std::move(offer));
    std::push_heap(offers_.begin(), offers_.end());
  }

  void offer_new_places() {
    for (auto& [pair, places] : new_places_)
      if (const int64_t count = counts_.at(pair); count > 0) push({count, pair, step_, std::move(places)});
    new_places_.clear();
    ++step_;
  }

  void count_pairs() {
    for (uint32_t word = 0; word < spelled_.size(); ++word)
      for (size_t i = 0; i + 1 < spelled_[word].size(); ++i) change(word, spelled_[word][i], spelled_[word][i + 1], 1);
    offer_new_places();
  }

  void merge(const PairOffer& best) {
    const auto left = static_cast<int32_t>(best.pair >> 32), right = static_cast<int32_t>(best.pair & 0xffffffffu);
    const std::string& first = result_.tokens[static_cast<size_t>(left)];
    const std::string& second = result_.tokens[static_cast<size_t>(right)];
    const bool drops_prefix = !how_.continuing_prefix.empty() && second.starts_with(how_.continuing_prefix);
    result_.merges.emplace_back(first, second);
    merged_pairs_.push_back(best.pair);
    const int32_t made = add_token(first + second.substr(drops_prefix ? how_.continuing_prefix.size() : 0));
    for (const uint32_t word : best.words) {
      std::vector<int32_t>& ids = spelled_[word];
      size_t out = 0;
      for (size_t in = 0; in < ids.size();) {
        if (ids[in] != left || in + 1 == ids.size() || ids[in + 1] != right) {
          ids[out++] = ids[in++];
          continue;
        }
        if (out > 0) {
          change(word, ids[out - 1], left, -1);
          change(word, ids[out - 1], made, 1);
        }
        if (in + 2 < ids.size()) {
          change(word, right, ids[in + 2], -1);
          change(word, made, ids[in + 2], 1);
        }
        ids[out++] = made;
        in += 2;
      }
      ids.resize(out);
    }
    offer_new_places();
  }

  // A pair is learned twice if it appears again in other words after its first merge, which is possible if two pairs
  // spell one token. Its last rank counts, as in `tokenizers`.
  void keep_last_ranks() {
    std::unordered_set<uint64_t> seen;
    std::vector<std::pair<std::string, std::string>> kept;
    for (size_t i = result_.merges.size(); i-- > 0;)
      if (seen.insert(merged_pairs_[i]).second) kept.push_back(std::move(result_.merges[i]));
    std::ranges::reverse(kept);
    result_.merges = std::move(kept);
  }

  const MergeTraining& how_;
  CountedWords words_;
  MergedTokens result_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<std::vector<int32_t>> spelled_;  // by word
  std::unordered_map<uint64_t, int64_t> counts_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> new_places_;
  std::vector<PairOffer> offers_;  // a heap
  std::vector<uint64_t> merged_pairs_;
  int64_t step_ = 0;
};

}  // namespace

MergedTokens learn_merges(CountedWords words, const MergeTraining& how) {
  return MergeLearner(std::move(words), how).learned();
}

}  // namespace fulgur::detail
