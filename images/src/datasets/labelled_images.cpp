#include "fulgur/images/labelled_images.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/csv_format.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

constexpr size_t kMostLineBytes = size_t{1} << 20;
constexpr int64_t kMostClasses = 1'000'000;

struct NamedImage {
  std::string file;
  std::string label;
};

class LabelledFile {
 public:
  LabelledFile(const std::filesystem::path& path, const LabelledImagesOptions& options)
      : path_(path), options_(options) {}

  [[noreturn]] void fail(int64_t line, const std::string& text) const {
    throw DataError(cat("[images.read_labelled_images] ", text, "; file ", escape_controls(path_.string()), ", line ",
                        line, ". Correct the file."));
  }

  std::vector<NamedImage> read() {
    std::string text = contents();
    std::string_view rest = text;
    if (rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);
    if (rest.find('\0') != std::string_view::npos)
      fail(1 + std::count(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(rest.find('\0')), '\n'),
           "a text file has no NUL bytes; this one has some");
    const size_t first = rest.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) fail(1, "the file must name images; it is empty");
    if (rest[first] == '{')
      read_jsonl(rest);
    else
      read_csv(rest);
    if (images_.empty()) fail(line_, "the file must name images; it has no line but its header");
    return std::move(images_);
  }

  int64_t line_of(size_t image) const { return lines_[image]; }

 private:
  std::string contents() const {
    std::optional<std::string> text;
    try {
      text = read_regular_file(path_);
    } catch (const Error& error) {
      throw DataError(
          cat("[images.read_labelled_images] the list of images must be a file that can be read. ", error.what()));
    }
    if (!text)
      throw DataError(cat("[images.read_labelled_images] the list of images must exist; ",
                          escape_controls(path_.string()), " does not. Check the path."));
    return std::move(*text);
  }

  void add(std::string file, std::string label) {
    if (file.empty()) fail(line_, cat("the column '", options_.file_column, "' must name a file; it is empty"));
    if (options_.labels && label.empty())
      fail(line_, cat("the column '", options_.label_column, "' must have a label; it is empty"));
    if (options_.labels && !is_utf8(label)) fail(line_, "labels must be UTF-8");
    images_.push_back({std::move(file), std::move(label)});
    lines_.push_back(line_);
  }

  void read_csv(std::string_view given) {
    // A last line without its end counts.
    std::string with_end(given);
    if (!with_end.ends_with('\n')) with_end += '\n';
    const std::string_view text = with_end;
    size_t at = 0;
    std::vector<std::string> header;
    size_t file_column = 0, label_column = 0;
    for (line_ = 1; at < text.size();) {
      const size_t begin = at;
      const auto row = read_csv_row(text, at);
      if (!row) fail(line_, "a quote must be closed; one is open at the end of the file");
      const std::string_view record = text.substr(begin, at - begin);
      if (record.size() > kMostLineBytes)
        fail(line_, cat("a line may have at most ", kMostLineBytes, " bytes; got ", record.size()));
      const auto lines = std::count(record.begin(), record.end(), '\n');
      const bool blank = row->size() == 1 && row->front().empty();
      if (blank) {
        line_ += lines;
        continue;
      }
      if (header.empty()) {
        header = *row;
        file_column = column(header, options_.file_column);
        if (options_.labels) label_column = column(header, options_.label_column);
      } else {
        if (row->size() != header.size())
          fail(line_, cat("each line must have as many columns as the header, ", header.size(), "; got ", row->size()));
        add((*row)[file_column], options_.labels ? (*row)[label_column] : std::string());
      }
      line_ += lines;
    }
  }

  size_t column(const std::vector<std::string>& header, const std::string& name) const {
    const auto found = std::ranges::find(header, name);
    if (found == header.end())
      fail(line_, cat("the first line must name the column '", name, "'; it has ",
                      escape_controls(join_some(header, 20)), did_you_mean(name, header)));
    if (std::find(found + 1, header.end(), name) != header.end())
      fail(line_, cat("the first line must name the column '", name, "' once; it does so twice"));
    return static_cast<size_t>(found - header.begin());
  }

  void read_jsonl(std::string_view text) {
    for (line_ = 1; !text.empty(); ++line_) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string_view record = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (record.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      if (record.size() > kMostLineBytes)
        fail(line_, cat("a line may have at most ", kMostLineBytes, " bytes; got ", record.size()));
      const auto object = nlohmann::json::parse(record, nullptr, /*allow_exceptions=*/false);
      if (!object.is_object()) fail(line_, "each line must be a JSON object");
      const auto file = object.find(options_.file_column);
      if (file == object.end() || !file->is_string())
        fail(line_, cat("the key '", options_.file_column, "' must be there and name a file"));
      std::string label;
      if (options_.labels) {
        const auto value = object.find(options_.label_column);
        if (value == object.end() || !(value->is_string() || value->is_number_integer()))
          fail(line_, cat("the key '", options_.label_column, "' must be there, with a text or an integer"));
        label = value->is_string() ? value->template get<std::string>() : value->dump();
      }
      add(file->template get<std::string>(), std::move(label));
    }
  }

  const std::filesystem::path& path_;
  const LabelledImagesOptions& options_;
  std::vector<NamedImage> images_;
  std::vector<int64_t> lines_;
  int64_t line_ = 1;
};

/// The classes of integer labels; nullopt if not all of them are integers.
std::optional<std::vector<std::string>> numbered_classes(const LabelledFile& file,
                                                         const std::vector<NamedImage>& images) {
  int64_t largest = 0;
  for (const NamedImage& image : images)
    if (!parse_whole<int64_t>(image.label)) return std::nullopt;
  for (size_t i = 0; i < images.size(); ++i) {
    const int64_t label = *parse_whole<int64_t>(images[i].label);
    if (label < 0 || label >= kMostClasses)
      file.fail(file.line_of(i), cat("labels must be in [0, ", kMostClasses, "); got ", label));
    largest = std::max(largest, label);
  }
  std::vector<std::string> classes;
  for (int64_t label = 0; label <= largest; ++label) classes.push_back(std::to_string(label));
  return classes;
}

std::vector<std::string> classes_of(const LabelledFile& file, const std::vector<NamedImage>& images) {
  if (auto numbers = numbered_classes(file, images)) return std::move(*numbers);
  std::vector<std::string> names;
  for (const NamedImage& image : images) names.push_back(image.label);
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

ImageList read_labelled_images(const std::filesystem::path& path, const LabelledImagesOptions& options) {
  LabelledFile file(path, options);
  std::vector<NamedImage> images = file.read();
  ImageList list{.root = options.root.empty() ? path.parent_path() : options.root,
                 .files = {},
                 .labels = {},
                 .classes = options.classes};
  list.files.reserve(images.size());
  if (options.labels) {
    if (list.classes.empty()) list.classes = classes_of(file, images);
    std::map<std::string, int64_t, std::less<>> numbers;
    for (size_t label = 0; label < list.classes.size(); ++label)
      numbers.emplace(list.classes[label], static_cast<int64_t>(label));
    for (size_t i = 0; i < images.size(); ++i) {
      auto found = numbers.find(images[i].label);
      // `007` is class 7 if classes are numbers.
      if (const auto number = parse_whole<int64_t>(images[i].label); number && found == numbers.end())
        found = numbers.find(std::to_string(*number));
      if (found == numbers.end())
        file.fail(file.line_of(i),
                  cat("labels must be classes of the training data, of which there are ", list.classes.size(),
                      "; got '", escape_controls(images[i].label), "'", did_you_mean(images[i].label, list.classes)));
      list.labels.push_back(found->second);
    }
  }
  for (NamedImage& image : images) list.files.push_back(std::move(image.file));
  return list;
}

}  // namespace fulgur
