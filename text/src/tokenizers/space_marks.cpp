#include "tokenizers/space_marks.h"

#include <vector>

namespace fulgur::detail {
namespace {

using Front = SpaceMarks::Front;

const char* const kMarkAdvice = "Of models with byte_fallback, those of Llama are supported.";

void require_space_to_mark(const JsonPart& part, bool forward) {
  part.with_keys({"type", "pattern", "content"});
  const JsonPart pattern = part.at("pattern");
  pattern.with_keys({"String"});
  const std::string from = pattern.at("String").text(), to = part.at("content").text();
  const std::string mark(kSpaceMark);
  if (from != (forward ? " " : mark) || to != (forward ? mark : " "))
    part.refuse(cat("must replace ", forward ? "' ' by '▁'" : "'▁' by ' '"),
                cat("it replaces '", escape_controls(from), "' by '", escape_controls(to), "'"));
}

void read_mark_normalizer(const JsonPart& part, SpaceMarks& marks) {
  if (type_of(part) == "Replace") return require_space_to_mark(part, true);
  if (type_of(part) != "Sequence")
    part.refuse("must be null, Replace or a Sequence of Prepend and Replace for a model with byte_fallback",
                cat("it is '", escape_controls(type_of(part)), "', which is not supported"), kMarkAdvice);
  part.with_keys({"type", "normalizers"});
  const JsonPart list = part.at("normalizers");
  for (size_t i = 0; i < list.items(); ++i) {
    const JsonPart one = list.item(i);
    const std::string type = type_of(one);
    const bool is_last = i + 1 == list.items();
    if (type == "Prepend" && i == 0 && !is_last) {
      one.with_keys({"type", "prepend"});
      one.only("prepend", std::string(kSpaceMark));
      marks.front = Front::each;
    } else if (type == "Replace" && is_last) {
      require_space_to_mark(one, true);
    } else {
      one.refuse("must be Prepend, and the last one Replace", cat("it is '", escape_controls(type), "'"), kMarkAdvice);
    }
  }
  if (list.items() == 0) list.refuse("must have a Replace of ' ' by '▁'", "it is empty");
}

void read_metaspace(const JsonPart& part, SpaceMarks& marks) {
  if (type_of(part) != "Metaspace")
    part.refuse("must be null or Metaspace for a model with byte_fallback",
                cat("it is '", escape_controls(type_of(part)), "', which is not supported"), kMarkAdvice);
  part.with_keys({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  part.only("replacement", std::string(kSpaceMark));
  part.only("str_rep", std::string(kSpaceMark));
  // Old files have add_prefix_space instead of prepend_scheme.
  const bool old_prefix = part.boolean_or("add_prefix_space", true);
  const std::string scheme = part.has("prepend_scheme") ? part.at("prepend_scheme").text()
                             : old_prefix               ? "always"
                                                        : "never";
  if (scheme != "always" && scheme != "never" && scheme != "first")
    part.at("prepend_scheme").refuse("must be always, never or first", cat("it is '", escape_controls(scheme), "'"));
  marks.front = scheme == "always" ? Front::each_without : scheme == "first" ? Front::first_without : Front::none;
  marks.split = part.boolean_or("split", true);
}

void read_mark_decoder(const JsonPart& part, SpaceMarks& marks) {
  const JsonPart list = type_of(part) == "Sequence" ? part.at("decoders") : part;
  const size_t count = list.value().is_array() ? list.items() : 0;
  constexpr const char* kTypes[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
  bool fits = count == 3 || count == 4;
  for (size_t i = 0; fits && i < count; ++i) fits = type_of(list.item(i)) == kTypes[i];
  if (!fits)
    part.refuse("must be a Sequence of Replace, ByteFallback, Fuse and, if the text gets a mark in front, Strip",
                part.shown(), kMarkAdvice);
  part.with_keys({"type", "decoders"});
  require_space_to_mark(list.item(0), false);
  list.item(1).with_keys({"type"});
  list.item(2).with_keys({"type"});
  if (count == 3) return;
  const JsonPart strip = list.item(3);
  strip.with_keys({"type", "content", "start", "stop"});
  strip.only("content", " ");
  strip.only("start", 1);
  strip.only("stop", 0);
  marks.strip = true;
}

void replace_spaces(std::string& text) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  for (const char c : text) {
    if (c == ' ')
      out += kSpaceMark;
    else
      out += c;
  }
  text = std::move(out);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

void read_space_marks(const JsonPart& root, SpaceMarks& marks) {
  marks.by_normalizer = root.has("normalizer");
  if (marks.by_normalizer == root.has("pre_tokenizer"))
    root.refuse("must have a normalizer or a pre_tokenizer that marks spaces, for a model with byte_fallback",
                marks.by_normalizer ? "it has both" : "it has neither", kMarkAdvice);
  if (marks.by_normalizer)
    read_mark_normalizer(root.at("normalizer"), marks);
  else
    read_metaspace(root.at("pre_tokenizer"), marks);
  if (!root.has("decoder")) root.refuse("must have a decoder", "there is none", kMarkAdvice);
  read_mark_decoder(root.at("decoder"), marks);
}

void write_space_marks(const SpaceMarks& marks, TokenizerJson& json) {
  const std::string mark(kSpaceMark);
  const auto replace = [](const std::string& from, const std::string& to) {
    return TokenizerJson{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  json["normalizer"] = json["pre_tokenizer"] = nullptr;
  if (marks.by_normalizer) {
    json["normalizer"] = replace(" ", mark);
    if (marks.front == Front::each) {
      TokenizerJson list = TokenizerJson::array();
      list.push_back({{"type", "Prepend"}, {"prepend", mark}});
      list.push_back(replace(" ", mark));
      json["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(list)}};
    }
  } else {
    json["pre_tokenizer"] = {{"type", "Metaspace"},
                             {"replacement", mark},
                             {"prepend_scheme", marks.front == Front::each_without    ? "always"
                                                : marks.front == Front::first_without ? "first"
                                                                                      : "never"},
                             {"split", marks.split}};
  }
  TokenizerJson list = TokenizerJson::array();
  list.push_back(replace(mark, " "));
  list.push_back({{"type", "ByteFallback"}});
  list.push_back({{"type", "Fuse"}});
  if (marks.strip) list.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  json["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(list)}};
}

std::string with_space_marks(std::string_view text, const SpaceMarks& marks, bool is_first) {
  std::string out(text);
  if (out.empty()) return out;
  replace_spaces(out);
  const bool may = marks.front == Front::each || marks.front == Front::each_without ||
                   (marks.front == Front::first_without && is_first);
  if (may && (marks.front == Front::each || !out.starts_with(kSpaceMark))) out.insert(0, kSpaceMark);
  return out;
}

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string token_of_byte(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return cat("<0x", kDigits[byte / 16], kDigits[byte % 16], ">");
}

void MarkedText::add(std::string_view token) {
  std::string plain;
  for (size_t at = 0; at < token.size();) {
    const bool is_mark = token.substr(at).starts_with(kSpaceMark);
    plain += is_mark ? ' ' : token[at];
    at += is_mark ? kSpaceMark.size() : 1;
  }
  if (const int byte = byte_of_token(plain); byte >= 0) {
    bytes_ += static_cast<char>(byte);
    return;
  }
  end_bytes();
  text_ += plain;
}

void MarkedText::end_bytes() {
  if (is_utf8(bytes_))
    text_ += bytes_;
  else
    for (size_t i = 0; i < bytes_.size(); ++i) text_ += "\xef\xbf\xbd";
  bytes_.clear();
}

std::string MarkedText::take(const SpaceMarks& marks) {
  end_bytes();
  return marks.strip && text_.starts_with(' ') ? text_.substr(1) : text_;
}

}  // namespace fulgur::detail
