#include "checkpoint_name.h"

#include <cmath>
#include <cstdio>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr size_t kMaxNameBytes = 200;  // leaves room for `.ckpt`, versions and the mark of a temporary folder

// `.2f`, `d`, `02d`, `e`, `g` as in Python; empty: integers as such, else the shortest text.
std::string format_value(double value, std::string_view format, std::string_view pattern) {
  const bool whole = std::isfinite(value) && value == std::floor(value) && std::fabs(value) < 1e15;
  if (format.empty()) return whole ? cat(static_cast<int64_t>(value)) : format_double(value);
  const char kind = format.back();
  std::string_view digits = format.substr(0, format.size() - 1);
  const bool good = digits.size() <= 4 && digits.find_first_not_of("0123456789.") == std::string_view::npos &&
                    digits.find('.') == digits.rfind('.');
  if (good && kind == 'd') {
    char text[64];
    std::snprintf(text, sizeof text, cat("%", digits, "lld").c_str(), static_cast<long long>(value));
    return text;
  }
  if (good && (kind == 'f' || kind == 'e' || kind == 'g')) {
    char text[512];
    std::snprintf(text, sizeof text, cat("%", digits, kind).c_str(), value);
    return text;
  }
  throw ConfigError(cat("[callbacks.ModelCheckpoint] filename '", escape_controls(pattern),
                        "' has the unknown format ':", escape_controls(format),
                        "'. Use for example :.2f, :03d or :.1e."));
}

}  // namespace

std::string fill_checkpoint_name(std::string_view pattern, bool insert_names,
                                 const std::function<std::optional<double>(std::string_view)>& value_of) {
  std::string name;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '{') {
      name += pattern[i];
      continue;
    }
    const size_t end = pattern.find('}', i);
    if (end == std::string_view::npos)
      throw ConfigError(
          cat("[callbacks.ModelCheckpoint] filename '", escape_controls(pattern), "' has a '{' without '}'."));
    std::string_view field = pattern.substr(i + 1, end - i - 1);
    std::string_view format;
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      format = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    if (field.empty())
      throw ConfigError(
          cat("[callbacks.ModelCheckpoint] filename '", escape_controls(pattern), "' has an empty field {}."));
    if (insert_names) name += cat(field, "=");
    name += format_value(value_of(field).value_or(0), format, pattern);
    i = end;
  }
  // The name is a single path component: metric names may contain slashes, which must not lead out of the folder.
  for (char& c : name)
    if (c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '_';
  if (name.size() > kMaxNameBytes) name.resize(kMaxNameBytes);
  while (!name.empty() && name.front() == '.') name.front() = '_';
  if (name.empty()) throw ConfigError("[callbacks.ModelCheckpoint] filename gives an empty name.");
  return name;
}

void refuse_link_name(std::string_view callback, std::string_view filename) {
  if (filename != "last" && filename != "best") return;
  throw ConfigError(cat("[callbacks.", callback, "] filename: ", filename, " is the name of the link ", filename,
                        ".ckpt, which points to a checkpoint. Choose another, such as {epoch}-{step}."));
}

}  // namespace fulgur::detail
