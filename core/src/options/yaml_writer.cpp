#include "fulgur/core/options/yaml_writer.h"

#include <string_view>
#include <vector>

#include "fulgur/core/text/text.h"

namespace fulgur {

namespace {

using Lines = std::vector<std::string>;

/// Whether `text` may stand without quotes, in a block or between brackets.
bool plain_is_safe(std::string_view text) {
  if (text.empty() || text.front() == ' ' || text.back() == ' ' || text.back() == ':') return false;
  if (std::string_view("?:,[]{}#&*!|>'\"%@`<=").find(text.front()) != std::string_view::npos) return false;
  if (text.front() == '-' &&
      (text.size() == 1 || std::string_view("0123456789.").find(text[1]) == std::string_view::npos))
    return false;
  if (text == "..." || text.starts_with("... ")) return false;
  if (text.find_first_of(",?[]{}") != std::string_view::npos) return false;
  if (text.find(": ") != std::string_view::npos || text.find(" #") != std::string_view::npos) return false;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7F) return false;
  }
  return true;
}

std::string double_quoted(std::string_view text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += cat('\\', c);
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if (byte < 0x20 || byte == 0x7F)
      out += escape_controls(text.substr(i, 1));
    else
      out += c;
  }
  return out + "\"";
}

std::string scalar_text(const ConfigNode& node) {
  const bool must_quote = node.quoted() && !reads_as_text(node.text());
  return must_quote || !plain_is_safe(node.text()) ? double_quoted(node.text()) : node.text();
}

std::string key_text(const std::string& key) {
  return plain_is_safe(key) && reads_as_text(key) ? key : double_quoted(key);
}

/// One line, if the node is a scalar, empty, or a short list of scalars.
std::string inline_text(const ConfigNode& node) {
  switch (node.kind()) {
    case ConfigNode::Kind::null:
      return "null";
    case ConfigNode::Kind::scalar:
      return scalar_text(node);
    case ConfigNode::Kind::map:
      return node.entries().empty() ? "{}" : "";
    case ConfigNode::Kind::list:
      break;
  }
  constexpr size_t kWidth = 90;
  std::string out = "[";
  for (const ConfigNode& item : node.items()) {
    if (item.is_list() || item.is_map()) return {};
    if (out.size() > 1) out += ", ";
    out += inline_text(item);
    if (out.size() > kWidth) return {};
  }
  return out + "]";
}

void append_comment(Lines& lines, const std::string& comment) {
  for (size_t begin = 0; begin < comment.size();) {
    const size_t end = std::min(comment.find('\n', begin), comment.size());
    lines.push_back("# " + escape_controls(std::string_view(comment).substr(begin, end - begin)));
    begin = end + 1;
  }
}

Lines block_lines(const ConfigNode& node, const YamlStyle& style) {
  Lines lines;
  for (const auto& [key, value] : node.entries()) {
    if (style.skip_null && value.is_null()) continue;
    if (style.comments) append_comment(lines, value.comment);
    const std::string text = inline_text(value);
    if (!text.empty()) {
      lines.push_back(key_text(key) + ": " + text);
      continue;
    }
    Lines below = block_lines(value, style);
    // All entries below were null and omitted.
    lines.push_back(below.empty() ? key_text(key) + ": {}" : key_text(key) + ":");
    for (std::string& line : below) lines.push_back("  " + line);
  }
  for (const ConfigNode& item : node.items()) {
    const std::string text = inline_text(item);
    Lines below = text.empty() ? block_lines(item, style) : Lines{text};
    if (below.empty()) below = {"{}"};
    for (size_t i = 0; i < below.size(); ++i) lines.push_back((i == 0 ? "- " : "  ") + below[i]);
  }
  return lines;
}

}  // namespace

std::string to_yaml(const ConfigNode& node, const YamlStyle& style) {
  const std::string text = inline_text(node);
  if (!text.empty()) return text + "\n";
  const Lines lines = block_lines(node, style);
  return lines.empty() ? "{}\n" : join(lines, "\n") + "\n";
}

}  // namespace fulgur
