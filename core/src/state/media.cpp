#include "fulgur/core/state/media.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>

#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

[[noreturn]] void refuse_media(const std::string& name, std::string_view rule, std::string_view found,
                               std::string_view advice) {
  throw Error(cat("[core.log_media] '", escape_controls(name), "': ", rule, "; ", found, ". ", advice));
}

void check_tensor(const std::string& name, const Tensor& values, std::string_view what) {
  if (!values.defined()) refuse_media(name, cat(what, " must be a tensor"), "it is undefined", "Pass a tensor.");
  if (values.layout() != at::kStrided || c10::isComplexType(values.scalar_type()) ||
      c10::isQIntType(values.scalar_type()))
    refuse_media(name, cat(what, " must be dense real numbers"),
                 cat("they are ", c10::toString(values.scalar_type()), ", ", values.is_sparse() ? "sparse" : "strided"),
                 "Convert them before they are logged.");
}

void check_record(const ImageRecord& image) {
  check_tensor(image.name, image.pixels, "the pixels of an image");
  const Tensor& pixels = image.pixels;
  if (pixels.dim() != 3 || pixels.size(0) < 1 || pixels.size(0) > 4 || pixels.size(1) < 1 || pixels.size(2) < 1)
    refuse_media(image.name, "the pixels of an image must have the shape (C, H, W) with 1 to 4 channels",
                 cat("the shape is ", shape_text(pixels.sizes())),
                 "Select one image of a batch, and permute (H, W, C).");
  if (pixels.scalar_type() != at::kByte && !c10::isFloatingType(pixels.scalar_type()))
    refuse_media(image.name, "the pixels of an image must be uint8, or floating with values of 0 to 1",
                 cat("they are ", c10::toString(pixels.scalar_type())), "Convert them with .to(at::kByte).");
}

void check_record(const HistogramRecord& histogram) {
  check_tensor(histogram.name, histogram.values, "the values of a histogram");
  if (histogram.values.numel() == 0)
    refuse_media(histogram.name, "a histogram must have values",
                 cat("the shape is ", shape_text(histogram.values.sizes())), "Do not log an empty tensor.");
}

void check_record(const TextRecord&) {}

void check_record(const TableRecord& table) {
  if (table.columns.empty())
    refuse_media(table.name, "a table must have columns", "it has none", "Name at least one column.");
  for (size_t row = 0; row < table.rows.size(); ++row)
    if (table.rows[row].size() != table.columns.size())
      refuse_media(table.name, cat("each row of the table must have ", counted(table.columns.size(), "cell")),
                   cat("row ", row, " has ", table.rows[row].size()), "Pass one cell per column.");
}

void escape_cell(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (c == '|')
      out += "\\|";
    else if (c == '\n')
      out += "<br>";
    else if (c != '\r')
      out += c;
  }
}

void add_cell(std::string& out, std::string_view text) {
  out += ' ';
  escape_cell(out, text);
  out += text.empty() ? "|" : " |";
}

}  // namespace

const std::string& media_name(const MediaRecord& record) {
  return std::visit([](const auto& media) -> const std::string& { return media.name; }, record);
}

void check_media(const MediaRecord& record) {
  if (media_name(record).empty())
    throw Error("[core.log_media] a record must have a name; it is empty. Name it as a metric is named.");
  std::visit([](const auto& media) { check_record(media); }, record);
}

MediaRecord as_logged(MediaRecord record) {
  const at::NoGradGuard no_grad;
  if (auto* image = std::get_if<ImageRecord>(&record)) {
    Tensor pixels = image->pixels;
    if (pixels.scalar_type() != at::kByte)
      pixels = pixels.to(at::kFloat).nan_to_num(0).mul(255).round().clamp(0, 255).to(at::kByte);
    image->pixels = pixels.contiguous();
  } else if (auto* histogram = std::get_if<HistogramRecord>(&record)) {
    histogram->values = histogram->values.reshape({-1}).contiguous();
  }
  return record;
}

std::string cell_text(const TableCell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* number = std::get_if<double>(&cell)) return format_double(*number);
  return cat(std::get<int64_t>(cell));
}

std::string markdown_table(const TableRecord& table) {
  std::string text = "|", line = "\n|";
  for (const std::string& column : table.columns) {
    add_cell(text, column);
    line += "---|";
  }
  text += line;
  for (const auto& row : table.rows) {
    text += "\n|";
    for (const TableCell& cell : row) add_cell(text, cell_text(cell));
  }
  return text + "\n";
}

}  // namespace fulgur
