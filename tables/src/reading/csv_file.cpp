#include "reading/csv_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::tables {
namespace {

constexpr size_t kCsvBlockBytes = size_t{1} << 20;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// A header of one column whose name contains another usual delimiter.
std::string delimiter_hint(const std::vector<std::string>& header) {
  if (header.size() != 1) return {};
  for (const auto& [delimiter, text] : {std::pair(';', ";"), {'\t', "\\t"}, {'|', "|"}, {',', ","}})
    if (header.front().find(delimiter) != std::string::npos)
      return cat(" Is its delimiter another one? Set data.init_args.delimiter to \"", text, "\".");
  return {};
}

}  // namespace

CsvFile::CsvFile(std::filesystem::path path, char delimiter)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)),
      scanner_(delimiter, /*strict=*/true) {
  struct stat found {};
  const bool is_open = fd_.get() >= 0;
  if (!is_open || ::fstat(fd_.get(), &found) != 0 || !S_ISREG(found.st_mode))
    throw DataError(cat("[tables.csv] a table must be a regular file that can be read; '",
                        escape_controls(path_.string()), "' ",
                        is_open ? "is not one" : cat("cannot be opened: ", std::strerror(errno)), ". Check the path."));
  fill();
  if (std::string_view(block_).starts_with("PAR1"))
    throw DataError(cat("[tables.csv] a table must be a CSV file; '", escape_controls(path_.string()),
                        "' is a Parquet file, which Fulgur does not read. docs/tables.md has the lines of Python that "
                        "convert it."));
  if (std::string_view(block_).starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
  if (!read_record())
    throw DataError(cat("[tables.csv] a table must begin with a row of column names; '",
                        escape_controls(path_.string()), "' is empty."));
  for (const std::string_view name : fields()) {
    if (name.empty()) fail_line(record_line_, cat("has no name for column ", header_.size() + 1));
    if (!is_utf8(name)) fail_line(record_line_, cat("has a name that is not UTF-8 for column ", header_.size() + 1));
    if (!columns_.emplace(name, header_.size()).second)
      fail_line(record_line_, cat("names the column '", escape_controls(name), "' twice"));
    header_.emplace_back(name);
  }
  start_ = place();
}

void CsvFile::fail_line(int64_t line, const std::string& what) const {
  throw DataError(cat("[tables.csv] a table must follow RFC 4180; line ", line, " of '",
                      escape_controls(path_.string()), "' ", what, "."));
}

void CsvFile::fail(size_t column, const std::string& what) const {
  throw DataError(cat("[tables.csv] line ", record_line_, " of '", escape_controls(path_.string()), "', column '",
                      escape_controls(header_.at(column)), "': ", what));
}

size_t CsvFile::column(const std::string& name) const {
  const auto found = columns_.find(name);
  if (found == columns_.end())
    throw DataError(cat("[tables.csv] '", escape_controls(path_.string()), "' must have the column '",
                        escape_controls(name), "', which it lacks", as_sentence(did_you_mean(name, header_)),
                        "Its columns are ", escape_controls(join_some(header_, 20)), ".", delimiter_hint(header_)));
  return found->second;
}

void CsvFile::fill() {
  block_.erase(0, at_);
  block_start_ += static_cast<int64_t>(at_);
  at_ = 0;
  const size_t held = block_.size();
  // A long record doubles the block, so that it is scanned a few times only.
  block_.resize(held + std::max(kCsvBlockBytes, held));
  size_t done = held;
  while (done < block_.size()) {
    const ssize_t got =
        ::pread(fd_.get(), block_.data() + done, block_.size() - done, block_start_ + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw DataError(cat("[tables.csv] reading '", escape_controls(path_.string()), "' failed: ", std::strerror(errno),
                          ". Check the disk."));
    if (got == 0) {
      at_end_ = true;
      break;
    }
    done += static_cast<size_t>(got);
  }
  block_.resize(done);
}

bool CsvFile::read_record() {
  while (true) {
    const std::string_view rest = std::string_view(block_).substr(at_);
    if (rest.empty() && at_end_) return false;
    const CsvFault fault = rest.empty() ? CsvFault::incomplete : scanner_.scan(rest, at_end_);
    if (fault == CsvFault::none) break;
    if (fault != CsvFault::incomplete) fail_line(line_ + scanner_.line_feeds(), csv_fault_text(fault));
    if (at_end_) fail_line(line_, csv_fault_text(fault));
    if (rest.size() > kLongestRecord) fail_line(line_, cat("is longer than ", kLongestRecord, " bytes"));
    fill();
  }
  if (scanner_.length() > kLongestRecord) fail_line(line_, cat("is longer than ", kLongestRecord, " bytes"));
  record_line_ = line_;
  line_ += scanner_.line_feeds();
  at_ += scanner_.length();
  return true;
}

bool CsvFile::next() {
  while (read_record()) {
    const size_t found = fields().size(), wanted = header_.size();
    if (found == wanted) return true;
    if (found == 1 && fields()[0].empty()) continue;
    fail_line(record_line_,
              cat("has ", counted(static_cast<int64_t>(found), "field"), ", but the header has ", wanted));
  }
  return false;
}

void CsvFile::seek(const CsvPlace& place) {
  block_.clear();
  block_start_ = place.byte;
  at_ = 0;
  at_end_ = false;
  line_ = record_line_ = place.line;
}

}  // namespace fulgur::tables
