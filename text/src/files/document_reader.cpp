#include "files/document_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/system/unique_fd.h"
#include "fulgur/core/text/csv_format.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "unicode/characters.h"

namespace fulgur::detail {
namespace {

constexpr size_t kPiece = size_t{4} << 20;
constexpr size_t kLongestPiece = size_t{1} << 30;

// An input that is read from its beginning.
class DocumentInput {
 public:
  explicit DocumentInput(const std::filesystem::path& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat about {};
    if (!fd_ || ::fstat(fd_.get(), &about) != 0) fail(std::strerror(errno));
    if (!S_ISREG(about.st_mode)) fail("it is not a regular file");
    size_ = about.st_size;
  }

  int64_t size() const { return size_; }
  std::string shown() const { return cat("'", escape_controls(path_.string()), "'"); }

  /// Appends up to `count` bytes; fewer only at the end of the file.
  size_t append_to(std::string& text, size_t count) {
    const size_t before = text.size();
    text.resize(before + count);
    size_t have = 0;
    while (have < count) {
      const ssize_t got = ::read(fd_.get(), text.data() + before + have, count - have);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(std::strerror(errno));
      if (got == 0) break;
      have += static_cast<size_t>(got);
    }
    text.resize(before + have);
    return have;
  }

 private:
  [[noreturn]] void fail(const char* reason) const {
    throw DataError(cat("[text.tokenize] each input must be a file that can be read; ", shown(), ": ", reason, "."));
  }
  std::filesystem::path path_;
  UniqueFd fd_;
  int64_t size_ = 0;
};

[[noreturn]] void too_long(const DocumentInput& input, uint64_t offset, std::string_view what) {
  throw DataError(cat("[text.tokenize] ", input.shown(), ": ", what, " must have at most ", kLongestPiece >> 20,
                      " MiB; that from byte ", offset, " on has more."));
}

struct DocumentUses {
  const std::function<size_t(std::string_view)>& cut;
  const std::function<void(std::string_view, bool)>& use;
  const std::function<void(int64_t)>& advance;
};

// The documents of a text file.
class TextDocuments {
 public:
  TextDocuments(DocumentInput& input, const std::string& separator, const DocumentUses& uses)
      : input_(input), separator_(separator), uses_(uses) {}

  void read() {
    for (bool at_end = false; !at_end;) {
      text_.erase(0, begin_);
      offset_ += begin_;
      searched_ -= begin_;
      begin_ = 0;
      const size_t got = input_.append_to(text_, kPiece);
      at_end = got < kPiece;
      uses_.advance(static_cast<int64_t>(got));
      use_separated();
      if (at_end)
        end_document(text_.size(), text_.size());
      else
        use_piece();
    }
  }

 private:
  void use_separated() {
    while (!separator_.empty()) {
      const size_t found = text_.find(separator_, searched_);
      if (found == std::string::npos) break;
      end_document(found, found + separator_.size());
    }
    // A separator may have begun at the end.
    const size_t keep = separator_.empty() ? 0 : separator_.size() - 1;
    searched_ = std::max(begin_, text_.size() > keep ? text_.size() - keep : 0);
  }

  void use_piece() {
    const std::string_view rest = std::string_view(text_).substr(begin_);
    const size_t length = uses_.cut(rest);
    if (length > 0)
      give(begin_ + length, false);
    else if (rest.size() > kLongestPiece)
      too_long(input_, offset_ + begin_, "text that this tokenizer cannot divide");
  }

  void end_document(size_t end, size_t next) {
    if (end > begin_ || in_document_) give(end, true);
    begin_ = searched_ = next;
    in_document_ = false;
  }

  void give(size_t end, bool is_last) {
    const std::string_view piece = std::string_view(text_).substr(begin_, end - begin_);
    require_utf8(piece, cat("[text.tokenize] ", input_.shown()), offset_ + begin_);
    uses_.use(piece, is_last);
    begin_ = end;
    searched_ = std::max(searched_, begin_);
    in_document_ = true;
  }

  DocumentInput& input_;
  const std::string& separator_;
  const DocumentUses& uses_;
  std::string text_;
  uint64_t offset_ = 0;  // of text_ in the file
  size_t begin_ = 0;     // what is before it has been used
  size_t searched_ = 0;  // no separator begins between begin_ and this
  bool in_document_ = false;
};

void read_json_line(const DocumentInput& input, std::string_view line, int64_t number, const std::string& field,
                    const DocumentUses& uses) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
  const auto fail = [&](std::string_view found) {
    throw DataError(cat("[text.tokenize] ", input.shown(), ":", number, ": a line must be a JSON object with a text '",
                        escape_controls(field), "'; ", found, "."));
  };
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) fail("it cannot be parsed");
  if (!json.is_object()) fail(cat("it is of type ", json.type_name()));
  const auto found = json.find(field);
  if (found == json.end()) fail("it has no such field");
  if (!found->is_string()) fail(cat("the field is of type ", found->type_name()));
  const std::string& text = found->get_ref<const std::string&>();
  require_utf8(text, cat("[text.tokenize] ", input.shown(), ":", number, ": the text"));
  if (!text.empty()) uses.use(text, true);
}

void read_json_lines(DocumentInput& input, const std::string& field, const DocumentUses& uses) {
  std::string text;
  uint64_t offset = 0;
  int64_t number = 0;
  for (bool at_end = false; !at_end;) {
    const size_t searched = text.size(), got = input.append_to(text, kPiece);
    at_end = got < kPiece;
    uses.advance(static_cast<int64_t>(got));
    size_t begin = 0;
    for (size_t end = text.find('\n', searched); end != std::string::npos; end = text.find('\n', begin)) {
      read_json_line(input, std::string_view(text).substr(begin, end - begin), ++number, field, uses);
      begin = end + 1;
    }
    text.erase(0, begin);
    offset += begin;
    if (text.size() > kLongestPiece) too_long(input, offset, "a line");
  }
  if (!text.empty()) read_json_line(input, text, ++number, field, uses);
}

// The rows of a CSV file with a header.
class CsvDocuments {
 public:
  CsvDocuments(DocumentInput& input, const std::string& column, const DocumentUses& uses)
      : input_(input), column_(column), uses_(uses) {}

  void read() {
    std::string text;
    uint64_t offset = 0;
    for (bool at_end = false; !at_end;) {
      const size_t got = input_.append_to(text, kPiece);
      at_end = got < kPiece;
      uses_.advance(static_cast<int64_t>(got));
      std::string_view rest = text;
      if (offset == 0 && line_ == 1 && rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);
      while (!rest.empty()) {
        const CsvFault fault = scanner_.scan(rest, at_end);
        if (fault == CsvFault::incomplete && !at_end) break;
        if (fault != CsvFault::none)
          fail(line_ + (fault == CsvFault::incomplete ? 0 : scanner_.line_feeds()),
               cat("the line ", csv_fault_text(fault)));
        use_row();
        line_ += scanner_.line_feeds();
        rest.remove_prefix(scanner_.length());
      }
      const size_t used = text.size() - rest.size();
      text.erase(0, used);
      offset += used;
      if (text.size() > kLongestPiece) too_long(input_, offset, "a row");
    }
    if (!place_) fail(1, "the file must have a header; it is empty");
  }

 private:
  [[noreturn]] void fail(int64_t line, std::string_view what) const {
    throw DataError(
        cat("[text.tokenize] ", input_.shown(), ":", line, ": ", as_sentence(std::string(what)), "Correct the file."));
  }

  void use_row() {
    const std::vector<std::string_view>& fields = scanner_.fields();
    if (fields.size() == 1 && fields.front().empty()) return;  // a blank line
    if (!place_) {
      const auto found = std::ranges::find(fields, column_);
      if (found == fields.end()) {
        const std::vector<std::string> names(fields.begin(), fields.end());
        fail(line_, cat("the first line must name the column '", escape_controls(column_), "'; it has ",
                        escape_controls(join_some(names, 20)), did_you_mean(column_, names)));
      }
      place_ = static_cast<size_t>(found - fields.begin());
      columns_ = fields.size();
      return;
    }
    if (fields.size() != columns_)
      fail(line_, cat("each line must have as many columns as the header, ", columns_, "; got ", fields.size()));
    const std::string_view text = fields[*place_];
    require_utf8(text, cat("[text.tokenize] ", input_.shown(), ":", line_, ": the text"));
    if (!text.empty()) uses_.use(text, true);
  }

  DocumentInput& input_;
  const std::string& column_;
  const DocumentUses& uses_;
  CsvScanner scanner_;
  std::optional<size_t> place_;  // of the column; nothing before the header
  size_t columns_ = 0;
  int64_t line_ = 1;
};

}  // namespace

void read_documents(const DocumentFiles& documents, const std::function<size_t(std::string_view)>& cut,
                    const std::function<void(std::string_view, bool)>& use,
                    const std::function<void(int64_t)>& advance) {
  const DocumentUses uses{cut, use, advance};
  for (const std::filesystem::path& path : documents.inputs) {
    DocumentInput input(path);
    if (documents.jsonl_field)
      read_json_lines(input, *documents.jsonl_field, uses);
    else if (documents.csv_column)
      CsvDocuments(input, *documents.csv_column, uses).read();
    else
      TextDocuments(input, documents.separator, uses).read();
  }
}

int64_t bytes_of_inputs(const DocumentFiles& documents) {
  int64_t bytes = 0;
  for (const std::filesystem::path& path : documents.inputs) bytes += DocumentInput(path).size();
  return bytes;
}

}  // namespace fulgur::detail
