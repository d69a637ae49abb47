#include "tokenizers/parts_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "tokenizers/json_part.h"
#include "tokenizers/space_marks.h"

namespace fulgur::detail {
namespace {

void read_vocab(const JsonPart& vocab, TokenizerParts& parts) {
  if (!vocab.value().is_object()) vocab.refuse("must be an object", vocab.shown());
  parts.vocab.reserve(vocab.value().size());
  for (const auto& [token, id] : vocab.value().items()) parts.vocab.emplace_back(token, vocab.at(token).id());
}

void read_merges(const JsonPart& merges, TokenizerParts& parts) {
  parts.merges.reserve(merges.items());
  for (size_t i = 0; i < merges.items(); ++i) {
    const JsonPart merge = merges.item(i);
    if (merge.value().is_array()) {
      if (merge.items() != 2) merge.refuse("must have two tokens", merge.shown());
      parts.merges.emplace_back(merge.item(0).text(), merge.item(1).text());
      continue;
    }
    const std::vector<std::string> two = split_text(merge.text(), ' ');
    if (two.size() != 2) merge.refuse("must be two tokens with a space between them", merge.shown());
    parts.merges.emplace_back(two[0], two[1]);
  }
}

void read_model(const JsonPart& model, TokenizerParts& parts) {
  if (!model.value().is_object()) model.refuse("must be an object", model.shown());
  // Old files have no type.
  const std::string type = model.has("type") ? model.at("type").text() : model.has("merges") ? "BPE" : "WordPiece";
  if (type == "BPE") {
    model.with_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                     "byte_fallback", "ignore_merges", "vocab", "merges"});
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) model.only(key, "");
    model.only("dropout", 0.0);
    if (model.boolean_or("byte_fallback", false)) parts.marks.emplace();
    if (model.has("unk_token")) parts.unk_token = model.at("unk_token").text();
    parts.fuse_unk = model.boolean_or("fuse_unk", false);
    parts.ignore_merges = model.boolean_or("ignore_merges", false);
    read_merges(model.at("merges"), parts);
  } else if (type == "WordPiece") {
    parts.model = TokenModel::word_piece;
    model.with_keys({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
    parts.unk_token = model.at("unk_token").text();
    parts.continuing_prefix = model.at("continuing_subword_prefix").text();
    if (model.has("max_input_chars_per_word")) {
      const JsonPart most = model.at("max_input_chars_per_word");
      parts.max_input_chars_per_word = most.whole();
      if (parts.max_input_chars_per_word < 0) most.refuse("must be at least 0", most.shown());
    }
  } else {
    model.refuse("must have the type BPE or WordPiece", cat("its type is '", escape_controls(type), "'"));
  }
  read_vocab(model.at("vocab"), parts);
}

struct KnownPattern {
  WordPattern pattern;
  std::string_view regex;
};
// An engine for regular expressions is not needed: text/src/words matches these.
constexpr KnownPattern kPatterns[] = {
    {WordPattern::gpt2, R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {WordPattern::gpt4,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {WordPattern::qwen2,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};

// Split by a known pattern, then ByteLevel without one.
void read_split_words(const JsonPart& words, TokenizerParts& parts) {
  words.with_keys({"type", "pretokenizers"});
  const JsonPart steps = words.at("pretokenizers");
  if (steps.items() != 2 || type_of(steps.item(0)) != "Split" || type_of(steps.item(1)) != "ByteLevel")
    steps.refuse("must be Split and ByteLevel", steps.shown());
  const JsonPart split = steps.item(0), bytes = steps.item(1);
  split.with_keys({"type", "pattern", "behavior", "invert"});
  const std::string behavior = split.at("behavior").text();
  // The words of a known pattern cover the text, so nothing is removed between them.
  if (behavior != (split.boolean_or("invert", false) ? "Removed" : "Isolated"))
    split.refuse("must isolate the matches, or remove what is between them (invert)",
                 cat("its behavior is '", escape_controls(behavior), "'"));
  const JsonPart pattern = split.at("pattern");
  pattern.with_keys({"Regex"});
  const std::string regex = pattern.at("Regex").text();
  const auto* const known = std::ranges::find(kPatterns, regex, &KnownPattern::regex);
  if (known == std::ranges::end(kPatterns))
    pattern.refuse("must be the pattern of GPT-2, GPT-4 (which is that of Llama 3) or Qwen 2",
                   pattern.at("Regex").shown());
  parts.words = known->pattern;
  bytes.with_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (bytes.boolean_or("use_regex", true)) bytes.refuse("must have use_regex false after Split", "it is true");
  if (bytes.boolean_or("add_prefix_space", true))
    bytes.refuse("must have add_prefix_space false after Split", "it is true");
}

void read_words(const JsonPart& root, TokenizerParts& parts) {
  if (!root.has("pre_tokenizer"))
    root.refuse("must have a pre_tokenizer", "there is none",
                "ByteLevel, a Sequence of Split and ByteLevel, and BertPreTokenizer are supported.");
  const JsonPart words = root.at("pre_tokenizer");
  const bool bpe = parts.model == TokenModel::byte_bpe;
  const std::string type = type_of(words);
  if (bpe && type == "Sequence") return read_split_words(words, parts);
  if (type != (bpe ? "ByteLevel" : "BertPreTokenizer"))
    words.refuse(bpe ? "must be ByteLevel, or a Sequence of Split and ByteLevel, for a BPE model"
                     : "must be BertPreTokenizer for a WordPiece model",
                 cat("it is '", escape_controls(type), "', which is not supported"));
  if (!bpe) {
    words.with_keys({"type"});
    return;
  }
  words.with_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  parts.add_prefix_space = words.boolean_or("add_prefix_space", true);
  parts.words = words.boolean_or("use_regex", true) ? WordPattern::gpt2 : WordPattern::none;
}

void read_normalizer(const JsonPart& root, TokenizerParts& parts) {
  if (!root.has("normalizer")) return;
  const JsonPart normalizer = root.at("normalizer");
  const bool bpe = parts.model == TokenModel::byte_bpe;
  const std::string type = type_of(normalizer);
  if (type != (bpe ? "NFC" : "BertNormalizer"))
    normalizer.refuse(bpe ? "must be null or NFC for a BPE model" : "must be null or BertNormalizer",
                      cat("'", escape_controls(type), "' is not supported"));
  if (bpe) {
    normalizer.with_keys({"type"});
    parts.composes = true;
    return;
  }
  normalizer.with_keys({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  BertNormalization how;
  how.clean_text = normalizer.boolean_or("clean_text", true);
  how.handle_chinese_chars = normalizer.boolean_or("handle_chinese_chars", true);
  how.lowercase = normalizer.boolean_or("lowercase", true);
  how.strip_accents = normalizer.boolean_or("strip_accents", how.lowercase);
  parts.normalization = how;
}

void read_decoder(const JsonPart& root, TokenizerParts& parts) {
  if (!root.has("decoder"))
    root.refuse("must have a decoder", "there is none", "ByteLevel and WordPiece are supported.");
  const JsonPart decoder = root.at("decoder");
  const bool bpe = parts.model == TokenModel::byte_bpe;
  const std::string type = type_of(decoder), wanted = bpe ? "ByteLevel" : "WordPiece";
  if (type != wanted)
    decoder.refuse(cat("must be ", wanted), cat("it is '", escape_controls(type), "', which is not supported"));
  if (bpe) {
    decoder.with_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return;
  }
  decoder.with_keys({"type", "prefix", "cleanup"});
  decoder.only("prefix", parts.continuing_prefix);
  parts.cleanup = decoder.boolean_or("cleanup", true);
}

void read_template(const JsonPart& post, TokenizerParts& parts) {
  post.with_keys({"type", "single", "pair", "special_tokens"});
  const JsonPart single = post.at("single"), specials = post.at("special_tokens");
  bool text_seen = false;
  for (size_t i = 0; i < single.items(); ++i) {
    const JsonPart piece = single.item(i);
    piece.with_keys({"Sequence", "SpecialToken"});
    if (piece.has("Sequence")) {
      if (piece.at("Sequence").at("id").text() != "A" || text_seen)
        piece.refuse("must be the text, once", piece.shown());
      text_seen = true;
      continue;
    }
    const JsonPart special = specials.at(piece.at("SpecialToken").at("id").text());
    const JsonPart ids = special.at("ids"), tokens = special.at("tokens");
    if (ids.items() != tokens.items()) special.refuse("must have as many ids as tokens", special.shown());
    for (size_t k = 0; k < ids.items(); ++k)
      (text_seen ? parts.after : parts.before).emplace_back(tokens.item(k).text(), ids.item(k).id());
  }
  if (!text_seen) single.refuse("must contain the text", single.shown());
}

void read_one_post_processor(const JsonPart& post, TokenizerParts& parts) {
  const std::string type = type_of(post);
  const auto pair = [&](const char* key) {
    const JsonPart two = post.at(key);
    if (two.items() != 2) two.refuse("must be a token and its id", two.shown());
    return std::pair(two.item(0).text(), two.item(1).id());
  };
  if (type == "ByteLevel") {
    post.with_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // they concern offsets only
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    post.with_keys({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    parts.before = {pair("cls")};
    parts.after = {pair("sep")};
  } else if (type == "TemplateProcessing") {
    read_template(post, parts);
  } else {
    post.refuse("must be ByteLevel, BertProcessing, RobertaProcessing or TemplateProcessing",
                cat("it is '", escape_controls(type), "', which is not supported"));
  }
}

void read_post_processor(const JsonPart& root, TokenizerParts& parts) {
  if (!root.has("post_processor")) return;
  const JsonPart post = root.at("post_processor");
  if (type_of(post) != "Sequence") return read_one_post_processor(post, parts);
  post.with_keys({"type", "processors"});
  const JsonPart steps = post.at("processors");
  bool adds = false;
  for (size_t i = 0; i < steps.items(); ++i) {
    const JsonPart step = steps.item(i);
    if (type_of(step) != "ByteLevel" && std::exchange(adds, true))
      step.refuse("must be the only part of the sequence that adds tokens", "another one is before it");
    read_one_post_processor(step, parts);
  }
}

void read_added(const JsonPart& root, TokenizerParts& parts) {
  if (!root.has("added_tokens")) return;
  const JsonPart list = root.at("added_tokens");
  for (size_t i = 0; i < list.items(); ++i) {
    const JsonPart token = list.item(i);
    token.with_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    token.only("single_word", false);
    AddedToken added;
    added.id = token.at("id").id();
    added.content = token.at("content").text();
    added.lstrip = token.boolean_or("lstrip", false);
    added.rstrip = token.boolean_or("rstrip", false);
    added.special = token.boolean_or("special", false);
    added.normalized = token.boolean_or("normalized", !added.special);
    parts.added.push_back(std::move(added));
  }
}

TokenizerJson model_json(const TokenizerParts& parts) {
  TokenizerJson vocab = TokenizerJson::object();
  for (const auto& [token, id] : parts.vocab) vocab[token] = id;
  TokenizerJson model;
  model["vocab"] = std::move(vocab);
  if (parts.model == TokenModel::word_piece) {
    model["type"] = "WordPiece";
    model["unk_token"] = *parts.unk_token;
    model["continuing_subword_prefix"] = parts.continuing_prefix;
    model["max_input_chars_per_word"] = parts.max_input_chars_per_word;
    return model;
  }
  TokenizerJson merges = TokenizerJson::array();
  for (const auto& [left, right] : parts.merges) merges.push_back(left + " " + right);
  model["merges"] = std::move(merges);
  model["type"] = "BPE";
  model["dropout"] = nullptr;
  model["unk_token"] = parts.unk_token ? TokenizerJson(*parts.unk_token) : TokenizerJson(nullptr);
  model["continuing_subword_prefix"] = "";
  model["end_of_word_suffix"] = "";
  model["fuse_unk"] = parts.fuse_unk;
  model["byte_fallback"] = parts.marks.has_value();
  model["ignore_merges"] = parts.ignore_merges;
  return model;
}

TokenizerJson template_json(const TokenizerParts& parts) {
  const TokenizerJson text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  TokenizerJson single = TokenizerJson::array(), specials = TokenizerJson::object();
  const auto add = [&](const std::vector<std::pair<std::string, int32_t>>& tokens) {
    for (const auto& [token, id] : tokens) {
      single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
      specials[token] = {{"id", token}, {"ids", TokenizerJson::array({id})}, {"tokens", TokenizerJson::array({token})}};
    }
  };
  add(parts.before);
  single.push_back(text);
  add(parts.after);
  // A pair is the text of each, as the single one has it; the second one has type 1.
  TokenizerJson pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  for (const auto& [token, id] : parts.after) pair.push_back({{"SpecialToken", {{"id", token}, {"type_id", 1}}}});
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", specials}};
}

}  // namespace

void check_parts(TokenizerParts& parts, const std::string& name) {
  const auto fail = [&](const auto&... found) { throw DataError(cat("[text.read_tokenizer] ", name, ": ", found...)); };
  std::ranges::sort(parts.vocab, {}, [](const auto& entry) { return entry.second; });
  std::ranges::sort(parts.added, {}, &AddedToken::id);
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t i = 0; i < parts.vocab.size(); ++i) {
    const auto& [token, id] = parts.vocab[i];
    if (i > 0 && parts.vocab[i - 1].second == id)
      fail("each id must have one token; id ", id, " has '", escape_controls(parts.vocab[i - 1].first), "' and '",
           escape_controls(token), "'.");
    if (!ids.emplace(token, id).second) fail("each token must occur once; '", escape_controls(token), "' does not.");
  }
  if (parts.vocab.empty()) fail("the vocabulary must have a token; it is empty.");
  std::unordered_map<int32_t, std::string_view> tokens;
  for (const auto& [token, id] : parts.vocab) tokens.emplace(id, token);
  for (const AddedToken& added : parts.added) {
    if (added.content.empty()) fail("an added token must not be empty; that of id ", added.id, " is.");
    const auto in_vocab = ids.find(added.content);
    if (in_vocab != ids.end() && in_vocab->second != added.id)
      fail("an added token must have the id of the vocabulary; '", escape_controls(added.content), "' has ", added.id,
           ", and ", in_vocab->second, " in the vocabulary.");
    const auto [place, is_new] = tokens.emplace(added.id, added.content);
    if (!is_new && place->second != added.content)
      fail("each id must have one token; id ", added.id, " has '", escape_controls(place->second), "' and '",
           escape_controls(added.content), "'.");
    ids.emplace(added.content, added.id);
  }
  for (const auto* around : {&parts.before, &parts.after})
    for (const auto& [token, id] : *around)
      if (const auto found = ids.find(token); found == ids.end() || found->second != id)
        fail("the post-processor must add tokens of the vocabulary; '", escape_controls(token), "' with id ", id,
             " is not one.");
}

TokenizerParts parts_from_json(std::string_view text, const std::string& name) {
  const TokenizerJson json = TokenizerJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw DataError(cat("[text.read_tokenizer] ", name, " must be JSON; it cannot be parsed."));
  const JsonPart root(json, "", name);
  root.with_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                  "decoder", "model"});
  // A data module truncates and pads, by its own options.
  for (const char* key : {"truncation", "padding"})
    if (root.has(key) && !root.at(key).value().is_object())
      root.at(key).refuse("must be null or an object", root.at(key).shown());
  TokenizerParts parts;
  read_model(root.at("model"), parts);
  if (parts.marks) {
    read_space_marks(root, *parts.marks);
  } else {
    read_words(root, parts);
    read_normalizer(root, parts);
    read_decoder(root, parts);
  }
  read_post_processor(root, parts);
  read_added(root, parts);
  check_parts(parts, name);
  return parts;
}

std::string json_of(const TokenizerParts& parts) {
  TokenizerJson json;
  json["version"] = "1.0";
  json["truncation"] = nullptr;
  json["padding"] = nullptr;
  json["added_tokens"] = TokenizerJson::array();
  for (const AddedToken& token : parts.added)
    json["added_tokens"].push_back({{"id", token.id},
                                    {"content", token.content},
                                    {"single_word", false},
                                    {"lstrip", token.lstrip},
                                    {"rstrip", token.rstrip},
                                    {"normalized", token.normalized},
                                    {"special", token.special}});
  json["normalizer"] = nullptr;
  if (parts.composes) json["normalizer"] = {{"type", "NFC"}};
  if (parts.normalization) {
    const BertNormalization& how = *parts.normalization;
    json["normalizer"] = {{"type", "BertNormalizer"},
                          {"clean_text", how.clean_text},
                          {"handle_chinese_chars", how.handle_chinese_chars},
                          {"strip_accents", how.strip_accents},
                          {"lowercase", how.lowercase}};
  }
  if (parts.marks) {
    write_space_marks(*parts.marks, json);
  } else if (parts.model == TokenModel::byte_bpe) {
    const auto byte_level = [](bool prefix_space, bool regex) {
      return TokenizerJson{
          {"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"trim_offsets", true}, {"use_regex", regex}};
    };
    json["pre_tokenizer"] = byte_level(parts.add_prefix_space, parts.words == WordPattern::gpt2);
    if (parts.words != WordPattern::none && parts.words != WordPattern::gpt2) {
      const auto* const known = std::ranges::find(kPatterns, parts.words, &KnownPattern::pattern);
      TokenizerJson split = {{"type", "Split"}, {"behavior", "Isolated"}, {"invert", false}};
      split["pattern"]["Regex"] = known->regex;
      json["pre_tokenizer"] = {{"type", "Sequence"},
                               {"pretokenizers", TokenizerJson::array({split, byte_level(false, false)})}};
    }
    json["decoder"] = byte_level(true, true);
  } else {
    json["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
    json["decoder"] = {{"type", "WordPiece"}, {"prefix", parts.continuing_prefix}, {"cleanup", parts.cleanup}};
  }
  json["post_processor"] = nullptr;
  if (!parts.before.empty() || !parts.after.empty()) json["post_processor"] = template_json(parts);
  json["model"] = model_json(parts);
  return json.dump() + "\n";
}

}  // namespace fulgur::detail
