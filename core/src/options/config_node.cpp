#include "fulgur/core/options/config_node.h"

#include <algorithm>
#include <array>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

/// For messages: one line, long texts abbreviated.
std::string shortened(std::string_view text) {
  constexpr size_t kLongest = 80;
  if (text.size() <= kLongest) return escape_controls(text);
  size_t cut = kLongest;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return cat(escape_controls(text.substr(0, cut)), "… (", text.size(), " bytes)");
}

}  // namespace

std::string Location::text() const {
  if (line == 0) return escape_controls(source);
  return cat(escape_controls(source), ":", line, ":", column);
}

bool reads_as_text(std::string_view plain) {
  static constexpr std::array kWords = {"~",   "null", "true", "false", "yes",  "no",    "on",
                                        "off", "y",    "n",    ".nan",  ".inf", "-.inf", "+.inf"};
  if (plain.empty()) return true;
  constexpr size_t kLongestWord = 5;
  if (plain.size() <= kLongestWord && std::ranges::find(kWords, lower(plain)) != kWords.end()) return false;
  const auto is_digit = [&](size_t i) { return i < plain.size() && plain[i] >= '0' && plain[i] <= '9'; };
  const size_t first = plain.front() == '+' || plain.front() == '-' ? 1 : 0;
  if (!is_digit(first) && !(first < plain.size() && plain[first] == '.' && is_digit(first + 1))) return true;
  return plain.find_first_not_of("0123456789abcdefABCDEFxXoO+-._:") != std::string_view::npos;
}

ConfigNode ConfigNode::scalar(std::string text, bool quoted) {
  ConfigNode node;
  node.kind_ = Kind::scalar;
  node.text_ = std::move(text);
  node.quoted_ = quoted;
  return node;
}

ConfigNode ConfigNode::number(double value) { return scalar(format_double(value)); }

ConfigNode ConfigNode::list(std::vector<ConfigNode> items) {
  ConfigNode node;
  node.kind_ = Kind::list;
  node.items_ = std::move(items);
  return node;
}

ConfigNode ConfigNode::map(std::vector<Entry> entries) {
  ConfigNode node;
  node.kind_ = Kind::map;
  node.entries_ = std::move(entries);
  return node;
}

std::string ConfigNode::describe() const {
  switch (kind_) {
    case Kind::null:
      return "null";
    case Kind::scalar:
      return cat(quoted_ ? "quoted text '" : "'", shortened(text_), "'");
    case Kind::list:
      return cat("a list of ", items_.size());
    case Kind::map:
      return cat("a map of ", entries_.size());
  }
  return {};
}

const ConfigNode* ConfigNode::find(std::string_view key) const {
  for (const auto& [name, value] : entries_) {
    if (name == key) return &value;
  }
  return nullptr;
}

ConfigNode* ConfigNode::find(std::string_view key) {
  return const_cast<ConfigNode*>(static_cast<const ConfigNode*>(this)->find(key));
}

ConfigNode& ConfigNode::get_or_add(std::string_view key) {
  if (!is_map()) {
    kind_ = Kind::map;
    text_.clear();
    items_.clear();
    entries_.clear();
  }
  if (ConfigNode* found = find(key)) return *found;
  entries_.emplace_back(std::string(key), ConfigNode());
  return entries_.back().second;
}

void ConfigNode::erase(std::string_view key) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.first == key; });
}

bool ConfigNode::same_as(const ConfigNode& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::null:
      return true;
    case Kind::scalar:
      return text_ == other.text_ && (quoted_ || reads_as_text(text_)) == (other.quoted_ || reads_as_text(other.text_));
    case Kind::list:
      return std::ranges::equal(items_, other.items_,
                                [](const ConfigNode& a, const ConfigNode& b) { return a.same_as(b); });
    case Kind::map:
      return std::equal(
          entries_.begin(), entries_.end(), other.entries_.begin(), other.entries_.end(),
          [](const Entry& a, const Entry& b) { return a.first == b.first && a.second.same_as(b.second); });
  }
  return false;
}

void Problems::add(const Location& where, std::string path, std::string message) {
  items_.push_back({where, std::move(path), std::move(message)});
}

bool Problems::may_miss(const std::string& path) const { return std::ranges::find(may_miss_, path) != may_miss_.end(); }

std::string Problems::report() const {
  constexpr size_t kMost = 100;
  std::string out;
  for (const Problem& problem : items_) {
    if (&problem - items_.data() >= static_cast<ptrdiff_t>(kMost)) {
      out += cat("\n… and ", items_.size() - kMost, " more");
      break;
    }
    if (!out.empty()) out += '\n';
    const std::string where = problem.where.text();
    if (!where.empty()) out += where + ": ";
    if (!problem.path.empty()) out += shortened(problem.path) + ": ";
    out += escape_controls(problem.message);
  }
  return out;
}

std::optional<std::string> Problems::line_at(const Location& where) const {
  if (where.argument > 0) {
    const auto kept = arguments_.find(where.argument);
    return kept == arguments_.end() ? std::nullopt : std::optional(kept->second);
  }
  const auto kept = texts_.find(where.source);
  if (kept == texts_.end() || where.line <= 0) return std::nullopt;
  const std::string& text = kept->second;
  size_t begin = 0;
  for (int line = 1; line < where.line; ++line) {
    begin = text.find('\n', begin);
    if (begin == std::string::npos) return std::nullopt;
    ++begin;
  }
  return text.substr(begin, text.find('\n', begin) - begin);
}

void Problems::throw_if_any(std::string_view hint) const {
  if (items_.empty()) return;
  const std::string text =
      items_.size() == 1 ? "[config] " + report() : cat("[config] ", items_.size(), " problems:\n", report());
  throw BadConfig(cat(text, hint), *this, std::string(hint));
}

BadConfig::BadConfig(const std::string& message, Problems problems, std::string hint)
    : ConfigError(message),
      problems_(std::make_shared<const Problems>(std::move(problems))),
      hint_(std::make_shared<const std::string>(std::move(hint))) {}
BadConfig::~BadConfig() = default;

std::string join_path(std::string_view parent, std::string_view child) {
  return parent.empty() ? std::string(child) : cat(parent, ".", child);
}

}  // namespace fulgur
