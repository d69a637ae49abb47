#include "reading/row_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "fulgur/core/system/unique_fd.h"
#include "fulgur/core/text/csv_format.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "reading/json_row.h"

namespace fulgur::history {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr size_t kLongestRow = size_t{16} << 20;
constexpr size_t kTailBytes = 1024;
constexpr size_t kNoColumn = std::numeric_limits<size_t>::max();

/// Whether the file has `bytes` at `position`.
bool has_bytes_at(int fd, off_t position, std::string_view bytes) {
  std::string found(bytes.size(), '\0');
  size_t done = 0;
  while (done < found.size()) {
    const ssize_t got = ::pread(fd, found.data() + done, found.size() - done, position + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return found == bytes;
}

}  // namespace

RowReader::RowReader(std::filesystem::path file) : file_(std::move(file)), is_csv_(file_.extension() == ".csv") {}

void RowReader::restart(dev_t device, ino_t inode) {
  device_ = device;
  inode_ = inode;
  offset_ = 0;
  header_.clear();
  tail_.clear();
  line_ = 0;
  ++starts_;
  has_header_ = false;
  names_.clear();
  columns_.clear();
  indices_.clear();
  expected_ = 0;
}

// A new file may have the inode of a removed one, and a file may be cut and grow again: what was read must still be
// there.
bool RowReader::continues(int fd, const struct stat& found) const {
  return starts_ > 0 && found.st_dev == device_ && found.st_ino == inode_ && found.st_size >= offset_ &&
         has_bytes_at(fd, 0, header_) && has_bytes_at(fd, offset_ - static_cast<off_t>(tail_.size()), tail_);
}

void RowReader::remember(std::string_view taken) {
  tail_ += taken.substr(taken.size() - std::min(taken.size(), kTailBytes));
  tail_.erase(0, tail_.size() - std::min(tail_.size(), kTailBytes));
}

void RowReader::damaged(const std::string& what) const {
  throw DataError(cat("[history.rows] each row has a step and numbers; line ", line_, " of ",
                      escape_controls(file_.string()), " ", what,
                      ". Repair or remove the line; --resume repairs the file of a run that it continues."));
}

size_t RowReader::column_of(std::string_view name) {
  if (expected_ < names_.size() && names_[expected_] == name) return expected_++;
  const auto [place, added] = indices_.try_emplace(std::string(name), names_.size());
  if (added) names_.emplace_back(name);
  expected_ = place->second + 1;
  return place->second;
}

size_t RowReader::take_header(std::string_view text) {
  size_t length = 0;
  const auto header = read_csv_row(text, length);
  if (!header) return 0;
  ++line_;
  const std::vector<std::string>& fields = *header;
  if (fields.front() != "step") damaged("does not begin with the column 'step'");
  for (size_t i = 1; i < fields.size(); ++i)
    columns_.push_back(fields[i] == "epoch" ? kNoColumn : column_of(fields[i]));
  has_header_ = true;
  header_ = text.substr(0, length);
  return length;
}

void RowReader::take_csv(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  size_t field = 0;
  for (size_t begin = 0; begin <= line.size(); ++field) {
    const void* comma = std::memchr(line.data() + begin, ',', line.size() - begin);
    const size_t end = comma ? static_cast<size_t>(static_cast<const char*>(comma) - line.data()) : line.size();
    const std::string_view text = line.substr(begin, end - begin);
    begin = end + 1;
    if (field == 0) {
      const auto step = parse_whole<int64_t>(text);
      if (!step) damaged("has no step");
      step_ = *step;
      continue;
    }
    if (field > columns_.size() || text.empty()) continue;
    const auto value = parse_whole<double>(text);
    if (!value) damaged(cat("has the field '", escape_controls(text.substr(0, 40)), "', which is not a number"));
    if (columns_[field - 1] == kNoColumn)
      epoch_ = *value;
    else
      cells_.push_back({columns_[field - 1], *value});
  }
  if (field != columns_.size() + 1)
    damaged(cat("has ", field > columns_.size() ? "more" : "fewer", " fields than the ", columns_.size() + 1,
                " of the header"));
}

void RowReader::take_json(std::string_view line) {
  bool has_step = false;
  const bool good = for_each_number(line, [&](std::string_view name, std::string_view text, double value) {
    if (name == "step") {
      const auto step = parse_whole<int64_t>(text);
      has_step = step.has_value();
      step_ = step.value_or(0);
    } else if (name == "epoch")
      epoch_ = value;
    else
      cells_.push_back({column_of(name), value});
  });
  if (!good) damaged("is not one JSON object with numbers");
  if (!has_step) damaged("has no step");
}

/// Returns the number of bytes of complete rows.
size_t RowReader::take_lines(std::string_view text, const Sink& sink) {
  size_t begin = 0;
  if (is_csv_ && !has_header_) begin = take_header(text);
  if (is_csv_ && !has_header_) return 0;
  while (begin < text.size()) {
    const void* feed = std::memchr(text.data() + begin, '\n', text.size() - begin);
    if (!feed) break;
    const auto end = static_cast<size_t>(static_cast<const char*>(feed) - text.data());
    const std::string_view line = text.substr(begin, end - begin);
    ++line_;
    cells_.clear();
    epoch_ = std::numeric_limits<double>::quiet_NaN();
    expected_ = 0;
    is_csv_ ? take_csv(line) : take_json(line);
    sink({step_, epoch_, cells_});
    begin = end + 1;
  }
  return begin;
}

void RowReader::read(const Sink& sink, bool whole) {
  const detail::UniqueFd fd(::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0 && errno == ENOENT) return;
  struct stat found {};
  if (fd.get() < 0 || ::fstat(fd.get(), &found) != 0 || !S_ISREG(found.st_mode))
    throw DataError(cat("[history.rows] a log is a regular file that can be read; got ",
                        escape_controls(file_.string()), ": ", fd.get() < 0 ? std::strerror(errno) : "no regular file",
                        ". Check the run folder and its permissions."));
  if (!continues(fd.get(), found)) restart(found.st_dev, found.st_ino);
  std::string text;
  size_t held = 0;  // bytes of an incomplete row at the front of `text`
  for (off_t position = offset_;;) {
    text.resize(held + kBlockBytes);
    const ssize_t got = ::pread(fd.get(), text.data() + held, kBlockBytes, position);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw DataError(cat("[history.rows] reading ", escape_controls(file_.string()), " failed; ", std::strerror(errno),
                          ". Check the disk."));
    if (got == 0) break;
    position += got;
    const std::string_view all(text.data(), held + static_cast<size_t>(got));
    const size_t taken = take_lines(all, sink);
    offset_ += static_cast<off_t>(taken);
    remember(all.substr(0, taken));
    held = all.size() - taken;
    std::memmove(text.data(), text.data() + taken, held);
    ++line_;
    if (held > kLongestRow) damaged(cat("is longer than ", kLongestRow, " bytes"));
    --line_;
  }
  ++line_;
  if (whole && held > 0) damaged("is not complete");
  --line_;
}

}  // namespace fulgur::history
