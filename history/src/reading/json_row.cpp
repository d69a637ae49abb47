#include "reading/json_row.h"

#include <charconv>
#include <cstdint>
#include <limits>
#include <string>

namespace fulgur::history {
namespace {

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

class JsonRow {
 public:
  explicit JsonRow(std::string_view text) : text_(text) {}

  bool read(const NumberSink& sink) {
    if (!take('{')) return false;
    if (take('}')) return at_end();
    do {
      std::string_view name;
      if (!read_string(name, name_) || !take(':') || !read_value(name, sink)) return false;
    } while (take(','));
    return take('}') && at_end();
  }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  }
  bool at_end() {
    skip_spaces();
    return at_ == text_.size();
  }
  bool take(char wanted) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  bool read_hex(uint32_t& code) {
    if (at_ + 4 > text_.size()) return false;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, begin + 4, code, 16);
    at_ += 4;
    return error == std::errc() && end == begin + 4;
  }

  bool read_escape(std::string& out) {
    if (at_ == text_.size()) return false;
    const char c = text_[at_++];
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    if (const size_t i = kFrom.find(c); i != std::string_view::npos) {
      out += kTo[i];
      return true;
    }
    uint32_t code = 0;
    if (c != 'u' || !read_hex(code)) return false;
    if (code >= 0xD800 && code < 0xDC00) {
      uint32_t low = 0;
      if (text_.substr(at_, 2) != "\\u") return false;
      at_ += 2;
      if (!read_hex(low) || low < 0xDC00 || low > 0xDFFF) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      return false;
    }
    append_utf8(out, code);
    return true;
  }

  // `held` receives a string with escapes; any other is a part of the line.
  bool read_string(std::string_view& out, std::string& held) {
    if (!take('"')) return false;
    const size_t end = text_.find_first_of("\"\\", at_);
    if (end == std::string_view::npos) return false;
    out = text_.substr(at_, end - at_);
    at_ = end + 1;
    if (text_[end] == '"') return true;
    held = out;
    for (bool escaped = true;;) {
      if (escaped && !read_escape(held)) return false;
      if (at_ == text_.size()) return false;
      const char c = text_[at_++];
      if (c == '"') break;
      escaped = c == '\\';
      if (!escaped) held += c;
    }
    out = held;
    return true;
  }

  bool read_value(std::string_view name, const NumberSink& sink) {
    skip_spaces();
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with('"')) {
      std::string held;
      std::string_view text;
      if (!read_string(text, held)) return false;
      constexpr double infinite = std::numeric_limits<double>::infinity();
      if (text == "NaN")
        sink(name, text, std::numeric_limits<double>::quiet_NaN());
      else if (text == "Infinity" || text == "-Infinity")
        sink(name, text, text.front() == '-' ? -infinite : infinite);
      else
        return false;
      return true;
    }
    if (rest.starts_with("null")) {
      at_ += 4;
      return true;
    }
    // from_chars also accepts the words inf and nan, which are not JSON.
    if (rest.empty() || (rest.front() != '-' && (rest.front() < '0' || rest.front() > '9'))) return false;
    double value = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc()) return false;
    const auto length = static_cast<size_t>(end - rest.data());
    sink(name, rest.substr(0, length), value);
    at_ += length;
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string name_;
};

}  // namespace

bool for_each_number(std::string_view line, const NumberSink& sink) { return JsonRow(line).read(sink); }

}  // namespace fulgur::history
