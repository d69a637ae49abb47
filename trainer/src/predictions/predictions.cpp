#include "predictions/predictions.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "fulgur/checkpoint/new_file.h"
#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/checkpoint/safetensors_writer.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "predictions/merged_predictions.h"

namespace fulgur::detail {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

template <class T>
Json numbers(const Tensor& row) {
  Json list = Json::array();
  const T* data = row.const_data_ptr<T>();
  for (int64_t i = 0; i < row.numel(); ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(data[i]))
        list.push_back("NaN");
      else if (std::isinf(data[i]))
        list.push_back(data[i] > 0 ? "Infinity" : "-Infinity");
      else
        list.push_back(data[i]);
    } else {
      list.push_back(data[i]);
    }
  }
  return list;
}

// Numbers of one dimension, as nested lists by the shape of the row.
Json nested(Json& flat, c10::ArrayRef<int64_t> sizes, size_t& next) {
  if (sizes.empty()) return std::move(flat[next++]);
  Json list = Json::array();
  for (int64_t i = 0; i < sizes.front(); ++i) list.push_back(nested(flat, sizes.slice(1), next));
  return list;
}

Json row_of(const Tensor& row) {
  const at::ScalarType type = row.scalar_type();
  Json flat = type == at::kFloat        ? numbers<float>(row)
              : type == at::kDouble     ? numbers<double>(row)
              : type == at::kLong       ? numbers<int64_t>(row)
              : type == at::kBool       ? numbers<bool>(row)
              : row.is_floating_point() ? numbers<float>(row.to(at::kFloat))
                                        : numbers<int64_t>(row.to(at::kLong));
  size_t next = 0;
  return nested(flat, row.sizes(), next);
}

// What the data module says about a row: its number, and its place in the columns.
using RowTexts =
    std::function<PredictionTexts(int64_t row, const std::vector<std::pair<std::string, Tensor>>& columns, int64_t i)>;

RowTexts texts_by(const DataModule* data, size_t loader) {
  if (data == nullptr) return {};
  return [data, loader](int64_t row, const auto& columns, int64_t i) {
    PredictedRow predicted{.loader_idx = static_cast<int64_t>(loader), .row = row, .values = {}};
    for (const auto& [name, value] : columns) predicted.values.add(name, value[i]);
    return data->prediction_texts(predicted);
  };
}

// Rows of all columns (on the CPU, contiguous) and of all texts.
struct PredictedRows {
  std::vector<std::pair<std::string, Tensor>> columns;
  std::vector<std::pair<std::string, std::vector<std::string>>> texts;
};

// Whether the columns are the predictions of a classifier of so many classes, for which `class` is not yet taken.
bool predicts_classes(const MergedPredictions& merged, size_t classes) {
  bool has_prediction = false, has_probabilities = false;
  for (const auto& column : merged.columns()) {
    if (column.name == "class") return false;
    if (column.name == "prediction") has_prediction = column.dtype == at::kLong && column.row.empty();
    if (column.name == "probabilities")
      has_probabilities = column.row.size() == 1 && column.row.front() == static_cast<int64_t>(classes);
  }
  const auto& texts = merged.texts();
  return has_prediction && has_probabilities && std::find(texts.begin(), texts.end(), "class") == texts.end();
}

// Adds the names of the predicted classes.
void name_classes(PredictedRows& rows, const std::vector<std::string>& classes) {
  std::vector<std::string> names;
  for (const auto& [name, value] : rows.columns) {
    if (name != "prediction") continue;
    const auto* const predicted = value.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < value.size(0); ++i) names.push_back(classes.at(static_cast<size_t>(predicted[i])));
  }
  rows.texts.emplace_back("class", std::move(names));
}

// Lines of `predictions.jsonl`, one per row. Texts come first, and what the data
// module says last. Non-finite numbers are the strings NaN, Infinity and
// -Infinity, as in JsonlLogger.
std::string prediction_lines(const PredictedRows& block, std::optional<size_t> loader_idx, const RowTexts& texts_of,
                             int64_t first_row) {
  std::string lines;
  const int64_t rows = block.columns.empty() ? 0 : block.columns.front().second.size(0);
  for (int64_t i = 0; i < rows; ++i) {
    Json line = Json::object();
    if (loader_idx) line["dataloader_idx"] = *loader_idx;
    for (const auto& [name, texts] : block.texts) line[name] = texts.at(static_cast<size_t>(i));
    for (const auto& [name, value] : block.columns) line[name] = row_of(value[i]);
    if (texts_of)
      for (const auto& [name, text] : texts_of(first_row + i, block.columns, i)) line[name] = text;
    lines += line.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
  }
  return lines;
}

// Both files, on rank 0.
class PredictionFiles {
 public:
  PredictionFiles(const fs::path& folder, const std::vector<SafetensorsWriter::Entry>& entries)
      : binary_(folder, "predictions.safetensors", "trainer.predict"),
        lines_(folder, "predictions.jsonl", "trainer.predict"),
        writer_(binary_.hidden(), entries),
        text_(lines_.hidden(), std::ios::binary) {}

  // `first_entry` is the entry of the loader's first output.
  void write(size_t first_entry, int64_t first_row, const PredictedRows& block, std::optional<size_t> loader_idx,
             const RowTexts& texts_of) {
    for (size_t i = 0; i < block.columns.size(); ++i)
      writer_.write(first_entry + i, first_row, block.columns[i].second);
    text_ << prediction_lines(block, loader_idx, texts_of, first_row);
    if (!text_) fail();
  }

  std::vector<fs::path> publish() {
    writer_.commit();
    text_.close();
    if (!text_) fail();
    binary_.publish();
    lines_.publish();
    binary_.keep();
    lines_.keep();
    return {binary_.path(), lines_.path()};
  }

 private:
  [[noreturn]] void fail() const {
    throw CheckpointError(cat("[trainer.predict] ", lines_.path(), " could not be written. Is the disk full?"));
  }

  NewFile binary_, lines_;
  SafetensorsWriter writer_;
  std::ofstream text_;
};

}  // namespace

std::vector<fs::path> write_predictions(Collectives& collectives, const fs::path& folder,
                                        const std::vector<PredictedShare>& shares, int64_t block_bytes,
                                        const std::vector<std::string>& classes, const DataModule* data) {
  const std::vector<MergedPredictions> loaders = MergedPredictions::of(collectives, shares);
  const bool several = loaders.size() > 1;
  std::vector<SafetensorsWriter::Entry> entries;
  for (size_t l = 0; l < loaders.size(); ++l)
    for (const auto& column : loaders[l].columns()) {
      std::vector<int64_t> shape = column.row;
      shape.insert(shape.begin(), loaders[l].rows());
      entries.push_back({several ? cat("dataloader_idx_", l, "/", column.name) : column.name, column.dtype, shape});
    }
  SafetensorsWriter::check(entries);  // on every rank, so that no rank waits for one that has thrown
  std::optional<PredictionFiles> files;
  if (collectives.rank() == 0) files.emplace(folder, entries);
  size_t first_entry = 0;
  for (size_t l = 0; l < loaders.size(); ++l) {
    const MergedPredictions& merged = loaders[l];
    const int64_t rows = merged.columns().empty() ? 0 : merged.rows(), step = merged.rows_in(block_bytes);
    const bool names_classes = !classes.empty() && predicts_classes(merged, classes.size());
    for (int64_t first = 0; first < rows; first += step) {
      const int64_t count = std::min(step, rows - first);
      PredictedRows block;
      for (size_t c = 0; c < merged.columns().size(); ++c)
        block.columns.emplace_back(merged.columns()[c].name, merged.read(c, first, count));
      for (size_t t = 0; t < merged.texts().size(); ++t)
        block.texts.emplace_back(merged.texts()[t], merged.read_texts(t, first, count));
      if (files && names_classes) name_classes(block, classes);
      if (files) files->write(first_entry, first, block, several ? std::optional(l) : std::nullopt, texts_by(data, l));
    }
    first_entry += merged.columns().size();
  }
  std::vector<fs::path> paths;
  if (files) paths = files->publish();
  collectives.barrier("rank 0 has written the predictions of all");
  return paths;
}

}  // namespace fulgur::detail
