#include "tokenizers/composed_tokenizer.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "tokenizers/byte_characters.h"
#include "tokenizers/parts_json.h"
#include "tokenizers/space_marks.h"
#include "unicode/characters.h"
#include "words/gpt2_words.h"
#include "words/gpt4_words.h"

namespace fulgur::detail {
namespace {

std::string hash_digits(std::string_view text) {
  uint64_t hash = XXH3_64bits(text.data(), text.size());
  std::string digits(16, '0');
  for (size_t i = 16; i-- > 0; hash >>= 4) digits[i] = "0123456789abcdef"[hash & 15];
  return digits;
}

bool has_white_space(std::string_view text) {
  for (size_t at = 0; at < text.size();)
    if (is_white_space(next_character(text, at))) return true;
  return false;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// Hugging Face's clean-up of the tokens of WordPiece, one by one.
void clean_up(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

// The end of the first word from `begin` on.
size_t word_end(WordPattern pattern, std::string_view text, size_t begin) {
  switch (pattern) {
    case WordPattern::none:
      break;
    case WordPattern::gpt2:
      return gpt2_word_end(text, begin);
    case WordPattern::gpt4:
      return gpt4_word_end(text, begin, /*most_digits=*/3);
    case WordPattern::qwen2:
      return gpt4_word_end(text, begin, /*most_digits=*/1);
  }
  return text.size();
}

}  // namespace

ComposedTokenizer::ComposedTokenizer(TokenizerParts parts, const std::string& name)
    : parts_(std::move(parts)), model_(model_of(parts_, name)), raw_(patterns(false)), normalized_(patterns(true)) {
  const auto set = [&](const std::string& token, int32_t id) {
    if (tokens_.size() <= static_cast<size_t>(id)) {
      tokens_.resize(static_cast<size_t>(id) + 1);
      special_.resize(tokens_.size());
    }
    tokens_[static_cast<size_t>(id)] = &token;
    ids_.emplace(token, id);
  };
  for (const auto& [token, id] : parts_.vocab) set(token, id);
  for (const AddedToken& added : parts_.added) {
    set(added.content, added.id);
    special_[static_cast<size_t>(added.id)] = added.special;
    if (added.rstrip || has_white_space(added.content)) can_cut_ = false;
  }
  fingerprint_ = hash_digits(json_of_parts());
}

ComposedTokenizer::Model ComposedTokenizer::model_of(const TokenizerParts& parts, const std::string& name) {
  if (parts.model == TokenModel::word_piece) return Model(std::in_place_type<WordPiece>, parts, name);
  return Model(std::in_place_type<ByteBpe>, parts, name);
}

std::vector<AddedTokens::Pattern> ComposedTokenizer::patterns(bool normalized_ones) const {
  std::vector<AddedTokens::Pattern> made;
  for (const AddedToken& added : parts_.added)
    if (added.normalized == normalized_ones)
      made.push_back({normalized_ones ? normalized_text(added.content) : added.content, &added});
  return made;
}

std::string ComposedTokenizer::normalized_text(std::string_view text) const {
  if (parts_.normalization) return normalized(text, *parts_.normalization);
  if (parts_.composes) return composed(text).value_or(std::string(text));
  if (parts_.marks && parts_.marks->by_normalizer) return with_space_marks(text, *parts_.marks, false);
  return std::string(text);
}

std::string ComposedTokenizer::json_of_parts() const { return json_of(parts_); }

std::vector<int32_t> ComposedTokenizer::encode(std::string_view text) const {
  require_utf8(text, "[text.encode] the text");
  std::vector<int32_t> out;
  out.reserve(text.size() / 3 + 1);
  const WordCaches::Loan cache(caches_);
  raw_.split(
      text, [&](std::string_view piece) { encode_piece(piece, piece.data() == text.data(), *cache, out); },
      [&](int32_t id) { out.push_back(id); });
  return out;
}

void ComposedTokenizer::encode_piece(std::string_view piece, bool is_first, WordCache& cache,
                                     std::vector<int32_t>& out) const {
  std::string made;
  if (parts_.normalization || parts_.composes || parts_.marks) {
    made = normalized_text(piece);
    piece = made;
  }
  const auto encode_part = [&](std::string_view part) {
    if (parts_.marks)
      encode_marked(part, is_first && part.data() == piece.data(), cache, out);
    else
      encode_words(part, cache, out);
  };
  normalized_.split(piece, encode_part, [&](int32_t id) { out.push_back(id); });
}

void ComposedTokenizer::encode_marked(std::string_view piece, bool is_first, WordCache& cache,
                                      std::vector<int32_t>& out) const {
  const SpaceMarks& marks = *parts_.marks;
  std::string marked;
  if (!marks.by_normalizer) {
    marked = with_space_marks(piece, marks, is_first);
    piece = marked;
  }
  const auto& bpe = std::get<ByteBpe>(model_);
  const auto use = [&](std::string_view word) {
    cache.append(word, out, [&](std::string_view w, std::vector<int32_t>& to) { bpe.encode(w, to); });
  };
  if (!marks.split) return use(piece);
  for (size_t begin = 0; begin < piece.size();) {
    const size_t end = std::min(piece.find(kSpaceMark, begin + 1), piece.size());
    use(piece.substr(begin, end - begin));
    begin = end;
  }
}

void ComposedTokenizer::encode_words(std::string_view piece, WordCache& cache, std::vector<int32_t>& out) const {
  if (const auto* pieces = std::get_if<WordPiece>(&model_)) {
    for_each_bert_word(piece, [&](std::string_view word) {
      cache.append(word, out, [&](std::string_view w, std::vector<int32_t>& to) { pieces->encode(w, to); });
    });
    return;
  }
  const auto& bpe = std::get<ByteBpe>(model_);
  const auto use = [&](std::string_view word) {
    cache.append(word, out, [&](std::string_view w, std::vector<int32_t>& to) { bpe.encode(w, to); });
  };
  std::string with_space;
  if (parts_.add_prefix_space && !piece.starts_with(' ')) {
    with_space = cat(" ", piece);
    piece = with_space;
  }
  if (parts_.words == WordPattern::none) return use(piece);
  for (size_t begin = 0; begin < piece.size();) {
    const size_t end = word_end(parts_.words, piece, begin);
    use(piece.substr(begin, end - begin));
    begin = end;
  }
}

std::vector<int32_t> ComposedTokenizer::with_special_tokens(std::vector<int32_t> ids) const {
  if (num_special_tokens() == 0) return ids;
  std::vector<int32_t> out;
  out.reserve(ids.size() + static_cast<size_t>(num_special_tokens()));
  for (const auto& [token, id] : parts_.before) out.push_back(id);
  out.insert(out.end(), ids.begin(), ids.end());
  for (const auto& [token, id] : parts_.after) out.push_back(id);
  return out;
}

int64_t ComposedTokenizer::num_special_tokens() const {
  return static_cast<int64_t>(parts_.before.size() + parts_.after.size());
}

std::string ComposedTokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string out;
  bool first = true;
  MarkedText marked;
  for (const int32_t id : ids) {
    const auto at = static_cast<size_t>(id);
    if (id < 0 || at >= tokens_.size() || tokens_[at] == nullptr)
      throw DataError(cat("[text.decode] each id must have a token, below ", tokens_.size(), "; got ", id, "."));
    if (skip_special_tokens && special_[at]) continue;
    const std::string& token = *tokens_[at];
    if (parts_.marks) {
      marked.add(token);
      continue;
    }
    if (parts_.model == TokenModel::byte_bpe) {
      out += bytes_of_characters(token).value_or(token);
      continue;
    }
    std::string piece = token;
    if (!first)
      piece = token.starts_with(parts_.continuing_prefix) ? token.substr(parts_.continuing_prefix.size()) : " " + token;
    first = false;
    if (parts_.cleanup) clean_up(piece);
    out += piece;
  }
  if (parts_.marks) return marked.take(*parts_.marks);
  return with_replacements(out);
}

std::optional<int32_t> ComposedTokenizer::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> ComposedTokenizer::special_tokens() const {
  std::vector<std::string> out;
  for (const AddedToken& added : parts_.added)
    if (added.special) out.push_back(added.content);
  return out;
}

size_t ComposedTokenizer::last_cut(std::string_view text) const {
  const bool is_bpe = parts_.model == TokenModel::byte_bpe;
  const bool one_word = parts_.marks || (is_bpe && parts_.words == WordPattern::none);
  if (!can_cut_ || one_word) return 0;
  // A piece that begins with another white space than ' ' would get a space in front.
  return last_word_border(text, parts_.add_prefix_space ? " " : " \n",
                          /*punctuation_takes_line_ends=*/is_bpe && parts_.words != WordPattern::gpt2);
}

}  // namespace fulgur::detail
