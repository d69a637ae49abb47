#include "fulgur/text/train_tokenizer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "tokenizers/byte_characters.h"
#include "tokenizers/composed_tokenizer.h"
#include "tokenizers/parts_json.h"
#include "training/pair_merges.h"
#include "unicode/characters.h"
#include "words/bert_words.h"
#include "words/gpt2_words.h"

namespace fulgur {
namespace {

struct WordHash {
  using is_transparent = void;
  size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
};

bool names_token(const std::vector<std::string>& tokens, std::string_view token) {
  return std::ranges::find(tokens, token) != tokens.end();
}

}  // namespace

struct TokenizerTrainer::Impl {
  Options options;
  std::unordered_map<std::string, int64_t, WordHash, std::equal_to<>> counts;

  bool is_bpe() const { return options.model == Model::bpe; }
  void count(std::string_view word) {
    if (const auto found = counts.find(word); found != counts.end())
      ++found->second;
    else
      counts.emplace(word, 1);
  }
};

TokenizerTrainer::TokenizerTrainer(Options options) : impl_(std::make_unique<Impl>()) {
  if (options.special_tokens.empty()) {
    if (options.model == Model::bpe)
      options.special_tokens = {"<|endoftext|>"};
    else
      options.special_tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  }
  if (options.vocab_size < 1 || options.vocab_size > detail::kMostTokenIds)
    throw ConfigError(cat("[text.TokenizerTrainer] vocab_size must be in [1, ", detail::kMostTokenIds, "]; it is ",
                          options.vocab_size, "."));
  if (options.min_frequency < 0)
    throw ConfigError(
        cat("[text.TokenizerTrainer] min_frequency must be at least 0; it is ", options.min_frequency, "."));
  if (options.model == Model::wordpiece && !names_token(options.special_tokens, "[UNK]"))
    throw ConfigError("[text.TokenizerTrainer] special_tokens of wordpiece must have [UNK]; it has not.");
  for (const std::string& token : options.special_tokens)
    if (token.empty() || !is_utf8(token) || std::ranges::count(options.special_tokens, token) > 1)
      throw ConfigError(
          cat("[text.TokenizerTrainer] special_tokens must be different texts in UTF-8, none of them empty; "
              "'",
              escape_controls(token), "' is not."));
  impl_->options = std::move(options);
}

TokenizerTrainer::~TokenizerTrainer() = default;

void TokenizerTrainer::add(std::string_view text) {
  detail::require_utf8(text, "[text.TokenizerTrainer] the text");
  if (!impl_->is_bpe()) {
    const detail::BertNormalization how{.strip_accents = impl_->options.lower_case,
                                        .lowercase = impl_->options.lower_case};
    const std::string normal = detail::normalized(text, how);
    detail::for_each_bert_word(normal, [&](std::string_view word) { impl_->count(word); });
    return;
  }
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = detail::gpt2_word_end(text, begin);
    impl_->count(text.substr(begin, end - begin));
    begin = end;
  }
}

std::shared_ptr<const Tokenizer> TokenizerTrainer::train() const {
  const Options& options = impl_->options;
  if (impl_->counts.empty()) throw DataError("[text.TokenizerTrainer] the texts must have a word; they are empty.");
  detail::MergeTraining how{.vocab_size = options.vocab_size,
                            .min_frequency = options.min_frequency,
                            .special_tokens = options.special_tokens};
  detail::CountedWords words;
  words.reserve(impl_->counts.size());
  for (const auto& [word, count] : impl_->counts)
    words.emplace_back(impl_->is_bpe() ? detail::byte_characters(word) : word, count);
  detail::TokenizerParts parts;
  if (impl_->is_bpe()) {
    const auto& bytes = detail::characters_of_bytes();
    how.alphabet.assign(bytes.begin(), bytes.end());
  } else {
    how.continuing_prefix = parts.continuing_prefix;
    parts.model = detail::TokenModel::word_piece;
    parts.unk_token = "[UNK]";
    parts.normalization.emplace();
    parts.normalization->lowercase = parts.normalization->strip_accents = options.lower_case;
  }
  detail::MergedTokens learned = detail::learn_merges(std::move(words), how);
  if (static_cast<int64_t>(learned.tokens.size()) > options.vocab_size)
    throw ConfigError(cat("[text.TokenizerTrainer] vocab_size must hold the special tokens and the alphabet, ",
                          learned.tokens.size(), " tokens; it is ", options.vocab_size, "."));
  for (size_t id = 0; id < learned.tokens.size(); ++id)
    parts.vocab.emplace_back(std::move(learned.tokens[id]), static_cast<int32_t>(id));
  if (impl_->is_bpe()) parts.merges = std::move(learned.merges);
  for (size_t id = 0; id < options.special_tokens.size(); ++id) {
    const std::string& token = options.special_tokens[id];
    parts.added.push_back({.id = static_cast<int32_t>(id), .content = token, .special = true});
    if (impl_->is_bpe()) continue;
    if (token == "[CLS]") parts.before = {{token, static_cast<int32_t>(id)}};
    if (token == "[SEP]") parts.after = {{token, static_cast<int32_t>(id)}};
  }
  detail::check_parts(parts, "the trained tokenizer");
  return std::make_shared<const detail::ComposedTokenizer>(std::move(parts), "the trained tokenizer");
}

}  // namespace fulgur
