#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/hub_name.h"
#include "fulgur/core/text/text.h"
#include "fulgur/text/tokenizer.h"
#include "tokenizers/composed_tokenizer.h"
#include "tokenizers/parts_json.h"
#include "unicode/characters.h"

namespace fulgur {
namespace fs = std::filesystem;

Tokenizer::~Tokenizer() = default;

namespace {

constexpr uintmax_t kMostTokenizerBytes = uintmax_t{256} << 20;

std::string shown_path(const fs::path& path) { return cat("'", escape_controls(path.string()), "'"); }

std::string tokenizer_text(const fs::path& path) {
  std::error_code none;
  if (const uintmax_t size = fs::file_size(path, none); !none && size > kMostTokenizerBytes)
    throw DataError(cat("[text.read_tokenizer] a file of a tokenizer must have at most 256 MiB; ", shown_path(path),
                        " has ", size, " bytes."));
  std::optional<std::string> text;
  try {
    text = read_regular_file(path);
  } catch (const Error& error) {
    throw DataError(cat("[text.read_tokenizer] ", error.what()));
  }
  if (!text)
    throw DataError(cat("[text.read_tokenizer] the tokenizer must be a file or a folder that exists; ",
                        shown_path(path), " does not.", detail::hub_name_hint(path)));
  detail::require_utf8(*text, cat("[text.read_tokenizer] ", shown_path(path)));
  return std::move(*text);
}

std::vector<std::string> lines_of_file(const fs::path& path) {
  std::vector<std::string> lines = split_text(tokenizer_text(path), '\n');
  for (std::string& line : lines)
    if (line.ends_with('\r')) line.pop_back();
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

// `token` of the vocabulary as a special token; nothing if it is not in it.
void add_if_known(detail::TokenizerParts& parts, const std::string& token) {
  for (const auto& [known, id] : parts.vocab)
    if (known == token) parts.added.push_back({.id = id, .content = token, .special = true});
}

detail::TokenizerParts gpt2_parts(const fs::path& folder) {
  const fs::path vocab = folder / "vocab.json", merges = folder / "merges.txt";
  detail::TokenizerParts parts;
  const auto json = nlohmann::json::parse(tokenizer_text(vocab), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    throw DataError(
        cat("[text.read_tokenizer] ", shown_path(vocab), " must be a JSON object of tokens and ids; it is not one."));
  for (const auto& [token, id] : json.items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= detail::kMostTokenIds)
      throw DataError(cat("[text.read_tokenizer] ", shown_path(vocab), ": an id must be a whole number in [0, ",
                          detail::kMostTokenIds, "); '", escape_controls(token), "' has another value, of type ",
                          id.type_name(), "."));
    parts.vocab.emplace_back(token, id.get<int32_t>());
  }
  const std::vector<std::string> lines = lines_of_file(merges);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].starts_with("#version")) continue;
    const std::vector<std::string> two = split_text(lines[i], ' ');
    if (two.size() != 2)
      throw DataError(cat("[text.read_tokenizer] ", shown_path(merges), ":", i + 1,
                          ": a line must be two tokens with a space between them; got '",
                          escape_controls(lines[i].substr(0, 80)), "'."));
    parts.merges.emplace_back(two[0], two[1]);
  }
  add_if_known(parts, "<|endoftext|>");
  detail::check_parts(parts, shown_path(vocab));
  return parts;
}

bool lower_case_of(const fs::path& folder) {
  const fs::path config = folder / "tokenizer_config.json";
  std::error_code none;
  if (!fs::exists(config, none)) return true;
  const auto json = nlohmann::json::parse(tokenizer_text(config), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("do_lower_case")) return true;
  return json["do_lower_case"] != false;
}

detail::TokenizerParts bert_parts(const fs::path& vocab) {
  detail::TokenizerParts parts;
  parts.model = detail::TokenModel::word_piece;
  const std::vector<std::string> lines = lines_of_file(vocab);
  if (static_cast<int64_t>(lines.size()) >= detail::kMostTokenIds)
    throw DataError(cat("[text.read_tokenizer] ", shown_path(vocab), " must have less than ", detail::kMostTokenIds,
                        " lines; it has ", lines.size(), "."));
  for (size_t i = 0; i < lines.size(); ++i) parts.vocab.emplace_back(lines[i], static_cast<int32_t>(i));
  parts.unk_token = "[UNK]";
  parts.normalization.emplace();
  parts.normalization->lowercase = parts.normalization->strip_accents = lower_case_of(vocab.parent_path());
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) add_if_known(parts, token);
  for (const detail::AddedToken& token : parts.added) {
    if (token.content == "[CLS]") parts.before = {{token.content, token.id}};
    if (token.content == "[SEP]") parts.after = {{token.content, token.id}};
  }
  detail::check_parts(parts, shown_path(vocab));
  return parts;
}

std::shared_ptr<const Tokenizer> made_of(detail::TokenizerParts parts, const std::string& name) {
  return std::make_shared<const detail::ComposedTokenizer>(std::move(parts), name);
}

}  // namespace

std::shared_ptr<const Tokenizer> tokenizer_from_json(std::string_view json, std::string_view name) {
  const std::string shown(name);
  return made_of(detail::parts_from_json(json, shown), shown);
}

std::shared_ptr<const Tokenizer> read_tokenizer(const fs::path& path) {
  std::error_code none;
  if (path.empty()) throw ConfigError("[text.read_tokenizer] tokenizer must name a file or a folder; it is empty.");
  if (fs::is_directory(path, none)) {
    if (fs::exists(path / "tokenizer.json", none)) return read_tokenizer(path / "tokenizer.json");
    if (fs::exists(path / "vocab.json", none)) return made_of(gpt2_parts(path), shown_path(path));
    if (fs::exists(path / "vocab.txt", none)) return read_tokenizer(path / "vocab.txt");
    throw DataError(
        cat("[text.read_tokenizer] the folder of a tokenizer must contain tokenizer.json, vocab.json with "
            "merges.txt, or vocab.txt; ",
            shown_path(path), " contains none of them."));
  }
  const std::string name = path.filename().string();
  if (name == "vocab.json" || name == "merges.txt") return made_of(gpt2_parts(path.parent_path()), shown_path(path));
  if (path.extension() == ".txt") return made_of(bert_parts(path), shown_path(path));
  return tokenizer_from_json(tokenizer_text(path), shown_path(path));
}

}  // namespace fulgur
