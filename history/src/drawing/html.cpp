#include "drawing/html.h"

#include <algorithm>

#include "fulgur/core/text/text.h"

namespace fulgur::history {
namespace {

// The bytes of the UTF-8 sequence that begins `text`; 0 if none does.
size_t sequence_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  return length > 0 && length <= text.size() && is_utf8(text.substr(0, length)) ? length : 0;
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    const char c = text.front();
    if (length > 1)
      out += text.substr(0, length);
    else if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else if (length == 0 || (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
      out += "\uFFFD";
    else
      out += c;
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

std::string data_url(std::string_view type, std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string url = cat("data:", type, ";base64,");
  url.reserve(url.size() + (bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t count = std::min<size_t>(bytes.size() - i, 3);
    for (size_t j = 0; j < 3; ++j) group = group << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (size_t j = 0; j < 4; ++j) url += j <= count ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return url;
}

}  // namespace fulgur::history
