#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fulgur::history {

/// A number of a row; `column` is an index into RowReader::names().
struct Cell {
  size_t column = 0;
  double value = 0;
};

/// A row of a log. The cells are valid during the call only.
struct Row {
  int64_t step = 0;
  double epoch = 0;  ///< NaN if the row has none
  const std::vector<Cell>& cells;
};

/// Reads the rows of `metrics.csv` or `metrics.jsonl` once, in blocks, while another process may be adding to the file.
/// It keeps one block and one row in memory.
class RowReader {
 public:
  using Sink = std::function<void(const Row&)>;

  explicit RowReader(std::filesystem::path file);

  /// Passes the complete rows that were added since the last call to `sink`. If the file was replaced, cut or
  /// rewritten, it is read from the start, and starts() increases. Throws a DataError that names the line of a damaged
  /// row, and of a row that is not complete if `whole`. A file that does not exist has no rows.
  void read(const Sink& sink, bool whole = false);

  /// The names of the metrics found so far. `step` and `epoch` are not among them.
  const std::vector<std::string>& names() const { return names_; }
  /// How often the file was read from its start.
  int64_t starts() const { return starts_; }

 private:
  void restart(dev_t device, ino_t inode);
  bool continues(int fd, const struct stat& found) const;
  void remember(std::string_view taken);
  size_t take_lines(std::string_view text, const Sink& sink);
  size_t take_header(std::string_view text);
  void take_csv(std::string_view line);
  void take_json(std::string_view line);
  size_t column_of(std::string_view name);
  [[noreturn]] void damaged(const std::string& what) const;

  std::filesystem::path file_;
  bool is_csv_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  off_t offset_ = 0;           ///< of the first byte that is not part of a complete row
  std::string header_, tail_;  ///< bytes of the table's header, and the last ones before `offset_`
  int64_t line_ = 0, starts_ = 0;
  bool has_header_ = false;
  std::vector<std::string> names_;
  std::vector<size_t> columns_;  ///< of a CSV table: the metric of each field after `step`; kNoColumn: the epoch
  std::unordered_map<std::string, size_t> indices_;
  size_t expected_ = 0;  ///< the column that follows the last one found: rows mostly have the same order
  std::vector<Cell> cells_;
  int64_t step_ = 0;
  double epoch_ = 0;
};

}  // namespace fulgur::history
