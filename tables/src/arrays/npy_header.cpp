#include "arrays/npy_header.h"

#include <algorithm>
#include <optional>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::tables {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr size_t kLongestNpyHeader = 65536;
constexpr size_t kMostNpyDimensions = 64;

/// Reads the dict of a header: the keys descr, fortran_order and shape, each once, as Python's literals.
class NpyDictReader {
 public:
  NpyDictReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  void read(NpyHeader& header) {
    std::optional<std::string> descr;
    bool has_order = false, has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !descr) {
        skip_spaces();
        if (!text_.empty() && text_.front() == '[') fail("is a structured array. Save each field as an array");
        descr = string();
      } else if (key == "fortran_order" && !has_order) {
        header.fortran_order = boolean();
        has_order = true;
      } else if (key == "shape" && !has_shape) {
        header.shape = tuple();
        has_shape = true;
      } else {
        fail("has an unknown key, or one twice, in its header");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_spaces();
    if (!text_.empty()) fail("has text after its header");
    if (!descr || !has_order || !has_shape) fail("has a header without descr, fortran_order or shape");
    set_dtype(*descr, header);
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(cat("[tables.npy] ", name_, " ", what, "."));
  }

 private:
  void skip_spaces() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\n')) text_.remove_prefix(1);
  }
  bool accept(char wanted) {
    skip_spaces();
    if (text_.empty() || text_.front() != wanted) return false;
    text_.remove_prefix(1);
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) fail(cat("has a damaged header: '", wanted, "' is missing"));
  }
  std::string string() {
    skip_spaces();
    if (text_.empty() || (text_.front() != '\'' && text_.front() != '"'))
      fail("has a damaged header: a text is missing");
    const size_t end = text_.find(text_.front(), 1);
    if (end == std::string_view::npos) fail("has a damaged header: a text has no end");
    const std::string value(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return value;
  }
  bool boolean() {
    skip_spaces();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>("True", true), {"False", false}})
      if (text_.starts_with(word)) {
        text_.remove_prefix(word.size());
        return value;
      }
    fail("has a damaged header: fortran_order is neither True nor False");
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> sizes;
    expect('(');
    while (!accept(')')) {
      skip_spaces();
      size_t digits = 0;
      while (digits < text_.size() && text_[digits] >= '0' && text_[digits] <= '9') ++digits;
      const auto size = parse_whole<int64_t>(text_.substr(0, digits));
      if (!size) fail("has a damaged header: a size in its shape is no number");
      text_.remove_prefix(digits);
      sizes.push_back(*size);
      if (sizes.size() > kMostNpyDimensions) fail(cat("has more than ", kMostNpyDimensions, " dimensions"));
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return sizes;
  }
  void set_dtype(const std::string& descr, NpyHeader& header) const {
    const auto refuse = [&] {
      fail(cat(
          "has the dtype '", escape_controls(descr.substr(0, 40)),
          "'; bools, integers and floats of up to 8 bytes in little-endian order are read. Convert it with astype"));
    };
    if (descr.size() != 3) refuse();
    const char order = descr[0];
    header.kind = descr[1];
    header.item_bytes = descr[2] - '0';
    const bool sized =
        header.item_bytes == 1 || header.item_bytes == 2 || header.item_bytes == 4 || header.item_bytes == 8;
    const bool known = (header.kind == 'b' && header.item_bytes == 1) || (header.kind == 'i' && sized) ||
                       (header.kind == 'u' && sized) || (header.kind == 'f' && sized && header.item_bytes > 1);
    // The order of a single byte does not matter, and `=` is that of the machine that wrote it.
    if (!known || !(order == '<' || (header.item_bytes == 1 && order == '|'))) refuse();
  }

  std::string_view text_;
  const std::string& name_;
};

}  // namespace

int64_t NpyHeader::count() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

NpyHeader read_npy_header(std::string_view bytes, const std::string& name) {
  const NpyDictReader report({}, name);
  if (!bytes.starts_with(kNpyMagic) || bytes.size() < 10) report.fail("is no array in NumPy's format");
  const auto byte = [&](size_t at) { return static_cast<size_t>(static_cast<unsigned char>(bytes[at])); };
  const size_t version = byte(6);
  if (version < 1 || version > 3) report.fail(cat("has version ", version, " of NumPy's format; 1 to 3 are read"));
  const size_t begin = version == 1 ? 10 : 12;
  if (bytes.size() < begin) report.fail("is truncated");
  const size_t length = byte(8) | byte(9) << 8 | (version == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (length > kLongestNpyHeader)
    report.fail(cat("has a header of ", length, " bytes; at most ", kLongestNpyHeader, " are read"));
  if (bytes.size() - begin < length) report.fail("is truncated");
  NpyHeader header;
  NpyDictReader(bytes.substr(begin, length), name).read(header);
  header.data_begin = begin + length;
  // As strides are: a size of 0 counts as 1.
  int64_t wanted = header.item_bytes;
  bool is_empty = false;
  for (const int64_t size : header.shape) {
    is_empty = is_empty || size == 0;
    if (__builtin_mul_overflow(wanted, std::max<int64_t>(size, 1), &wanted))
      report.fail("has a shape with more than 2^63 bytes");
  }
  if (is_empty) wanted = 0;
  const size_t found = bytes.size() - header.data_begin;
  if (found != static_cast<size_t>(wanted))
    report.fail(cat("must have ", wanted, " bytes of values by its shape; it has ", found));
  return header;
}

}  // namespace fulgur::tables
