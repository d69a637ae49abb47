#include "media/media_file.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "files/tf_record.h"
#include "fulgur/core/text/csv_format.h"
#include "fulgur/core/text/text.h"
#include "media/histogram.h"
#include "media/png_image.h"

namespace fulgur {
namespace {

constexpr std::string_view kStep = "step=";
constexpr std::string_view kExtensions[] = {".png", ".json", ".txt", ".csv"};  // in the order of MediaRecord
constexpr size_t kLongestPart = 200;                                           // of the 255 bytes of a file name

std::string hex(uint32_t value, int digits) {
  std::string text;
  for (int i = digits; i-- > 0;) text += "0123456789ABCDEF"[value >> (4 * i) & 0xf];
  return text;
}

std::string file_name_of(std::string_view part, bool keeps_utf8) {
  std::string out;
  for (const char c : part) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte >= 0x80 ? keeps_utf8
                                    : (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                                          std::string_view(" _-.+=@()[],").find(c) != std::string_view::npos;
    if (plain)
      out += c;
    else
      out += '%' + hex(byte, 2);
  }
  if (out.empty() || out == "." || out == "..") return out.empty() ? "%" : "%2E" + out.substr(1);
  // A part of the name "step=N.png" would look like a file.
  if (step_of_media_file(out)) out = "%" + hex(static_cast<unsigned char>(out[0]), 2) + out.substr(1);
  if (out.size() <= kLongestPart) return out;
  size_t end = kLongestPart - 9;
  while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xc0) == 0x80) --end;  // not inside a character
  return out.substr(0, end) + '%' + hex(crc32c(part), 8);
}

std::string content_of(const ImageRecord& image) { return png_image(image.pixels); }

std::string content_of(const HistogramRecord& record) {
  const Histogram histogram = histogram_of(record.values);
  nlohmann::ordered_json out;
  out["num"] = histogram.num;
  out["nonfinite"] = histogram.nonfinite;
  if (histogram.num > 0) {
    out["min"] = histogram.min;
    out["max"] = histogram.max;
    out["sum"] = histogram.sum;
    out["sum_squares"] = histogram.sum_squares;
  }
  out["limits"] = histogram.limits;
  out["counts"] = histogram.counts;
  return out.dump() + '\n';
}

std::string content_of(const TextRecord& text) { return text.text; }

std::string content_of(const TableRecord& table) {
  std::string text = csv_row(table.columns);
  for (const auto& row : table.rows) {
    std::vector<std::string> fields;
    for (const TableCell& cell : row)
      fields.push_back(std::holds_alternative<double>(cell) ? csv_number(std::get<double>(cell)) : cell_text(cell));
    text += csv_row(fields);
  }
  return text;
}

}  // namespace

std::filesystem::path path_of_name(std::string_view name) {
  const bool keeps_utf8 = is_utf8(name);
  std::filesystem::path path;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    path /= file_name_of(name.substr(begin, end - begin), keeps_utf8);
    begin = end + 1;
  }
  return path;
}

std::optional<int64_t> step_of_media_file(std::string_view file_name) {
  if (!file_name.starts_with(kStep)) return std::nullopt;
  int64_t step = 0;
  const char* const last = file_name.data() + file_name.size();
  const auto [end, error] = std::from_chars(file_name.data() + kStep.size(), last, step);
  const std::string_view extension(end, static_cast<size_t>(last - end));
  if (error != std::errc() || std::ranges::find(kExtensions, extension) == std::end(kExtensions)) return std::nullopt;
  return step;
}

MediaFile media_file(const MediaRecord& record, int64_t step) {
  return {.path = std::filesystem::path("media") / path_of_name(media_name(record)) /
                  cat(kStep, step, kExtensions[record.index()]),
          .content = std::visit([](const auto& media) { return content_of(media); }, record)};
}

}  // namespace fulgur
