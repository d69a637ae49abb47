#include "report_media.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "drawing/html.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/csv_format.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "report_charts.h"

namespace fulgur::history {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMostFigures = 24, kMostFiles = 100'000;
constexpr uintmax_t kMostBytes = 500'000, kMostTextBytes = 20'000;

constexpr const char* kTable = ".csv";
constexpr size_t kMostRows = 64, kMostColumns = 32;

struct MediaFile {
  fs::path path;
  int64_t step = -1;
};

// SVG is shown as a picture too, in which scripts do not run.
const char* image_type(const fs::path& path) {
  const std::string end = path.extension().string();
  return end == ".png"                     ? "image/png"
         : end == ".jpg" || end == ".jpeg" ? "image/jpeg"
         : end == ".gif"                   ? "image/gif"
         : end == ".webp"                  ? "image/webp"
         : end == ".svg"                   ? "image/svg+xml"
                                           : nullptr;
}

/// The name without the last number, and that number; -1 if there is none.
std::pair<std::string, int64_t> split_step(const std::string& path) {
  const size_t end = path.find_last_of("0123456789");
  if (end == std::string::npos) return {path, -1};
  const size_t before = path.find_last_not_of("0123456789", end);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  int64_t step = -1;
  if (std::from_chars(path.data() + begin, path.data() + end + 1, step).ec != std::errc()) return {path, -1};
  return {path.substr(0, begin) + path.substr(end + 1), step};
}

std::map<std::string, MediaFile> newest_media(const fs::path& folder) {
  std::map<std::string, MediaFile> newest;
  std::error_code error;
  size_t seen = 0;
  for (fs::recursive_directory_iterator file(folder, error), end; !error && file != end && seen < kMostFiles;
       file.increment(error), ++seen) {
    std::error_code ignored;
    if (file->is_symlink(ignored) || !file->is_regular_file(ignored)) continue;
    const fs::path extension = file->path().extension();
    if (!image_type(file->path()) && extension != ".txt" && extension != kTable) continue;
    const std::string below = file->path().lexically_relative(folder).replace_extension().string();
    const auto [name, step] = split_step(below);
    MediaFile& best = newest[name + file->path().extension().string()];
    if (best.path.empty() || step > best.step) best = {file->path(), step};
  }
  return newest;
}

/// A figure, or why there is none.
struct Figure {
  std::string html, reason;
};

// A CSV file as a table.
Figure small_table(const std::string& bytes) {
  std::string rows;
  size_t count = 0;
  for (size_t position = 0; position < bytes.size(); ++count) {
    const auto fields = read_csv_row(bytes, position);
    if (!fields) return {.html = "", .reason = "it is damaged"};
    if (fields->size() > kMostColumns)
      return {.html = "",
              .reason = cat("it has ", fields->size(), " columns, and a page shows at most ", kMostColumns)};
    if (count > kMostRows) return {.html = "", .reason = cat("it has more than ", kMostRows, " rows")};
    const char* const cell = count == 0 ? "th" : "td";
    rows += "<tr>";
    for (const std::string& field : *fields) rows += cat("<", cell, ">", html_escaped(field), "</", cell, ">");
    rows += "</tr>\n";
  }
  if (rows.empty()) return {.html = "", .reason = "it is empty"};
  return {.html = cat("<table>", rows, "</table>"), .reason = ""};
}

Figure figure_of(const MediaFile& file, const std::string& caption, uintmax_t& bytes_left) {
  std::error_code error;
  const uintmax_t size = fs::file_size(file.path, error);
  const char* const type = image_type(file.path);
  if (!error && !type && size > kMostTextBytes)
    return {.html = "", .reason = cat("it has more than ", kMostTextBytes / 1000, " kB")};
  if (!error && size > bytes_left)
    return {.html = "", .reason = cat("the media of a page have at most ", kMostBytes / 1000, " kB")};
  std::optional<std::string> bytes;
  try {
    bytes = read_regular_file(file.path);
  } catch (const Error&) {
  }
  // The file may have grown since.
  if (error || !bytes || bytes->size() > bytes_left) return {.html = "", .reason = "it cannot be read"};
  Figure body;
  if (type)
    body.html = cat("<img alt=\"", caption, "\" src=\"", data_url(type, *bytes), "\">");
  else if (file.path.extension() == kTable)
    body = small_table(*bytes);
  else
    body.html = cat("<pre>", html_escaped(*bytes), "</pre>");
  if (body.html.empty()) return body;
  bytes_left -= bytes->size();
  return {.html = cat("<figure><figcaption>", caption, "</figcaption>", body.html, "</figure>\n"), .reason = ""};
}

}  // namespace

std::string media_section(const std::vector<RunCurves>& runs) {
  std::string figures, not_shown;
  size_t shown = 0, refused = 0, beyond = 0;  // beyond: the page has no room for it, nor for why
  uintmax_t bytes_left = kMostBytes;
  for (const RunCurves& run : runs) {
    for (const auto& [name, file] : newest_media(run.run.folder / "media")) {
      const std::string below = file.path.lexically_relative(run.run.folder / "media").string();
      const std::string caption =
          html_escaped(runs.size() > 1 ? cat(shown_name(run.run.name), ": ", shown_name(below)) : shown_name(below));
      if (shown == kMostFigures || refused == kMostFigures) {
        ++beyond;
        continue;
      }
      const Figure figure = figure_of(file, caption, bytes_left);
      figure.html.empty() ? ++refused : ++shown;
      if (figure.html.empty())
        not_shown += cat("<p class=\"note\">", caption, " is not shown: ", figure.reason, ".</p>");
      figures += figure.html;
    }
  }
  if (figures.empty() && not_shown.empty()) return "";
  return cat("<section><h2>Media</h2><div class=\"grid\">\n", figures, "</div>", not_shown,
             beyond > 0
                 ? cat("<p class=\"note\">", beyond, " more are not shown: a page has at most ", kMostFigures, ".</p>")
                 : "",
             "</section>\n");
}

}  // namespace fulgur::history
