#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "columns/cell_text.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "reading/csv_file.h"
#include "targets.h"

namespace fulgur::fuzz {
namespace {

using TableRecord = std::vector<std::string>;

TableRecord record_of(const tables::CsvFile& file) { return {file.fields().begin(), file.fields().end()}; }

/// A record that is written comes back, and the beginning of a text is incomplete or has the record of the whole.
void check_scanner(std::string_view input) {
  CsvScanner whole;
  if (whole.scan(input, /*at_end=*/true) != CsvFault::none) return;
  expect(whole.length() <= input.size(), "a record lies in its text");
  const TableRecord fields(whole.fields().begin(), whole.fields().end());
  for (size_t size = 0; size <= input.size() && size < 64; ++size) {
    CsvScanner part;
    const CsvFault fault = part.scan(input.substr(0, size), /*at_end=*/false);
    expect(fault == CsvFault::incomplete || TableRecord(part.fields().begin(), part.fields().end()) == fields,
           "what is complete is the record");
  }
  CsvScanner again;
  const std::string text = csv_row(fields);
  expect(again.scan(text, /*at_end=*/false) == CsvFault::none && again.length() == text.size() &&
             TableRecord(again.fields().begin(), again.fields().end()) == fields,
         "a record comes back as it was written");
}

}  // namespace

void csv_table(std::string_view input) {
  check_scanner(input);
  const int fd = memfd_create("table", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, input.data(), input.size()) != static_cast<ssize_t>(input.size()))
    throw std::runtime_error("no file in memory");
  try {
    tables::CsvFile file("/proc/self/fd/" + std::to_string(fd), ',');
    std::vector<std::pair<tables::CsvPlace, TableRecord>> records;
    for (tables::CsvPlace place = file.place(); file.next(); place = file.place()) {
      records.emplace_back(place, record_of(file));
      expect(records.back().second.size() == file.header().size(), "each record has the fields of the header");
      for (const std::string& cell : records.back().second) {
        (void)tables::parse_datetime(cell);
        (void)tables::parse_number(trimmed(cell));
      }
    }
    for (size_t i = records.size(); i-- > 0;) {
      file.seek(records[i].first);
      expect(file.next() && record_of(file) == records[i].second, "a place in a file is reached again");
    }
  } catch (const DataError&) {
  }
  ::close(fd);
}

}  // namespace fulgur::fuzz
