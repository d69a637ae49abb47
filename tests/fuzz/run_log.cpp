#include <bit>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "fulgur/core/text/errors.h"
#include "reading/row_reader.h"
#include "support/temporary_folder.h"
#include "targets.h"

namespace fulgur::fuzz {
namespace {

/// Step, epoch, column and value of each cell, as bits: NaN equals itself.
using LogCells = std::vector<std::tuple<int64_t, uint64_t, size_t, uint64_t>>;

/// Reads what the file has now.
void read_into(history::RowReader& reader, LogCells& cells) {
  reader.read([&](const history::Row& row) {
    for (const auto& [column, value] : row.cells) {
      expect(column < reader.names().size(), "a cell has a name");
      cells.emplace_back(row.step, std::bit_cast<uint64_t>(row.epoch), column, std::bit_cast<uint64_t>(value));
    }
  });
}

}  // namespace

// A byte for the format, then the log, which is read whole and while it grows.
void run_log(std::string_view input) {
  if (input.empty()) return;
  static const test::TemporaryFolder folder;
  const auto file = folder / (input[0] % 2 == 0 ? "metrics.csv" : "metrics.jsonl");
  const std::string_view log = input.substr(1), first = log.substr(0, log.size() / 2);
  LogCells whole, parts;
  test::write_text(file, log);
  history::RowReader reader(file);
  try {
    read_into(reader, whole);
  } catch (const DataError&) {
    return;
  }
  test::write_text(file, first);
  history::RowReader growing(file);
  read_into(growing, parts);
  std::ofstream(file, std::ios::app | std::ios::binary) << log.substr(first.size());
  read_into(growing, parts);
  expect(growing.starts() == 1, "a log that grows is read once");
  expect(growing.names() == reader.names() && parts == whole, "rows do not depend on when they are read");
}

}  // namespace fulgur::fuzz
