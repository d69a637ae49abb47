#include "tokenizers/byte_bpe.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "tokenizers/byte_characters.h"
#include "tokenizers/space_marks.h"
#include "unicode/characters.h"

namespace fulgur::detail {
namespace {

constexpr size_t kLongWord = 64;  // above it, a heap is faster than a search for the lowest rank
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();

}  // namespace

ByteBpe::ByteBpe(const TokenizerParts& parts, const std::string& where)
    : by_characters_(parts.marks.has_value()), merges_(parts.merges.size()), fuse_unk_(parts.fuse_unk) {
  std::unordered_map<std::string_view, int32_t> ids;
  ids.reserve(parts.vocab.size());
  for (const auto& [token, id] : parts.vocab) ids.emplace(token, id);
  const auto id_of = [&](const std::string& token, size_t rank) {
    const auto found = ids.find(token);
    if (found == ids.end())
      throw DataError(cat("[text.read_tokenizer] ", where,
                          ": each merge must join tokens of the vocabulary into one; '", escape_controls(token),
                          "' of merge ", rank, " is not in it."));
    return found->second;
  };
  for (size_t rank = 0; rank < parts.merges.size(); ++rank) {
    const auto& [left, right] = parts.merges[rank];
    const PairTable::Merge merge{static_cast<int32_t>(rank), id_of(left + right, rank)};
    if (!merges_.insert(id_of(left, rank), id_of(right, rank), merge))
      throw DataError(cat("[text.read_tokenizer] ", where, ": a merge must occur once; merge ", rank, ", '",
                          escape_controls(left), " ", escape_controls(right), "', has occurred before."));
  }
  if (parts.unk_token) unk_ = id_of(*parts.unk_token, 0);
  read_bytes(parts, where, ids);
  if (!parts.ignore_merges) return;
  for (const auto& [token, id] : parts.vocab) {
    if (by_characters_)
      whole_words_.emplace(token, id);
    else if (auto bytes = bytes_of_characters(token))
      whole_words_.emplace(std::move(*bytes), id);
  }
}

void ByteBpe::read_bytes(const TokenizerParts& parts, const std::string& where,
                         const std::unordered_map<std::string_view, int32_t>& ids) {
  for (size_t byte = 0; byte < 256; ++byte) {
    const char one = static_cast<char>(byte);
    const std::string token =
        by_characters_ ? token_of_byte(static_cast<unsigned char>(byte)) : byte_characters(std::string_view(&one, 1));
    const auto found = ids.find(token);
    byte_ids_[byte] = found == ids.end() ? -1 : found->second;
    if (found != ids.end()) continue;
    if (by_characters_)
      throw DataError(cat("[text.read_tokenizer] ", where,
                          ": with byte_fallback each of the 256 bytes must be a token; '", token,
                          "' is not in the vocabulary."));
    if (!unk_)
      throw DataError(cat("[text.read_tokenizer] ", where,
                          ": without unk_token each of the 256 bytes must be a token, or "
                          "text would be lost; byte ",
                          byte, " ('", token,
                          "') is not in the vocabulary. Train the tokenizer with ByteLevel's initial alphabet."));
  }
  if (!by_characters_) return;
  for (const auto& [token, id] : parts.vocab) {
    size_t end = 0;
    if (token.empty()) continue;
    next_character(token, end);
    if (end == token.size()) characters_.emplace(token, id);
  }
}

std::vector<int32_t> ByteBpe::ids_of_characters(std::string_view word) const {
  std::vector<int32_t> ids;
  ids.reserve(word.size());
  for (size_t begin = 0, end = 0; begin < word.size(); begin = end) {
    next_character(word, end);
    const std::string_view character = word.substr(begin, end - begin);
    if (const auto found = characters_.find(character); found != characters_.end())
      ids.push_back(found->second);
    else
      for (const char byte : character) ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
  }
  return ids;
}

std::vector<int32_t> ByteBpe::ids_of_bytes(std::string_view word) const {
  std::vector<int32_t> ids;
  ids.reserve(word.size());
  bool after_unknown = false;
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    const bool unknown = id < 0;
    if (!(unknown && after_unknown && fuse_unk_)) ids.push_back(unknown ? *unk_ : id);
    after_unknown = unknown;
  }
  return ids;
}

void ByteBpe::encode(std::string_view word, std::vector<int32_t>& out) const {
  if (!whole_words_.empty()) {
    if (const auto found = whole_words_.find(std::string(word)); found != whole_words_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  std::vector<int32_t> ids = by_characters_ ? ids_of_characters(word) : ids_of_bytes(word);
  if (ids.size() > kLongWord)
    merge_long(ids);
  else
    merge_short(ids);
  out.insert(out.end(), ids.begin(), ids.end());
}

void ByteBpe::merge_short(std::vector<int32_t>& ids) const {
  std::array<PairTable::Merge, kLongWord> next{};  // of each id and the one after it
  const auto look = [&](size_t i) {
    const PairTable::Merge* found = merges_.find(ids[i], ids[i + 1]);
    next[i] = found != nullptr ? *found : PairTable::Merge{kNoRank, 0};
  };
  for (size_t i = 0; i + 1 < ids.size(); ++i) look(i);
  while (ids.size() > 1) {
    const auto last = next.begin() + static_cast<std::ptrdiff_t>(ids.size() - 1);
    const auto best =
        std::min_element(next.begin(), last, [](const auto& a, const auto& b) { return a.rank < b.rank; });
    if (best->rank == kNoRank) return;
    const auto at = static_cast<size_t>(best - next.begin());
    ids[at] = best->id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at + 1));
    std::copy(best + 1, last, best);
    if (at + 1 < ids.size()) look(at);
    if (at > 0) look(at - 1);
  }
}

void ByteBpe::merge_long(std::vector<int32_t>& ids) const {
  constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();
  if (ids.size() >= kEnd)
    throw DataError(cat("[text.encode] a word must have less than 4 GiB; got ", ids.size(), " bytes without a space."));
  const auto count = static_cast<uint32_t>(ids.size());
  std::vector<uint32_t> before(count), after(count);
  for (uint32_t i = 0; i < count; ++i) {
    before[i] = i == 0 ? kEnd : i - 1;
    after[i] = i + 1 == count ? kEnd : i + 1;
  }
  using Candidate = std::tuple<int32_t, uint32_t>;  // rank, position
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto look = [&](uint32_t left) -> const PairTable::Merge* {
    return ids[left] < 0 || after[left] == kEnd ? nullptr : merges_.find(ids[left], ids[after[left]]);
  };
  const auto offer = [&](uint32_t left) {
    if (const PairTable::Merge* merge = look(left)) queue.emplace(merge->rank, left);
  };
  for (uint32_t i = 0; i < count; ++i) offer(i);
  while (!queue.empty()) {
    const auto [rank, at] = queue.top();
    queue.pop();
    const PairTable::Merge* merge = look(at);
    if (merge == nullptr || merge->rank != rank) continue;  // its tokens have changed since
    const uint32_t right = after[at];
    ids[at] = merge->id;
    ids[right] = -1;
    after[at] = after[right];
    if (after[at] != kEnd) before[after[at]] = at;
    offer(at);
    if (before[at] != kEnd) offer(before[at]);
  }
  std::erase(ids, -1);
}

}  // namespace fulgur::detail
