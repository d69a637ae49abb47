#include "reading/table_rows.h"

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::tables {

TableRows::TableRows(std::vector<std::filesystem::path> paths, char delimiter, std::vector<std::string> columns)
    : paths_(std::move(paths)), delimiter_(delimiter), columns_(std::move(columns)) {
  restart();
}

void TableRows::restart() { open(0); }

void TableRows::open(size_t index) {
  file_ = std::make_unique<CsvFile>(paths_.at(index), delimiter_);
  index_ = index;
  places_.clear();
  for (const std::string& column : columns_) places_.push_back(file_->column(column));
}

bool TableRows::next() {
  while (!file_->next()) {
    if (index_ + 1 >= paths_.size()) return false;
    open(index_ + 1);
  }
  return true;
}

std::string TableRows::line_text() const {
  return cat("line ", file_->line(), " of '", escape_controls(file_->path().string()), "'");
}

RowPlace TableRows::place() const { return {index_, file_->place()}; }

void TableRows::seek(const RowPlace& place) {
  if (place.file >= paths_.size())
    throw DataError(cat("[tables.rows] the data must have the files that it had; a position is in file ",
                        place.file + 1, " of ", paths_.size(), "."));
  if (place.file != index_) open(place.file);
  file_->seek(place.in_file);
}

}  // namespace fulgur::tables
