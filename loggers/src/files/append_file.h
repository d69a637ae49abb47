#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "files/file_mark.h"

namespace fulgur {

/// The file of a logger; grows by whole rows. What cannot be written (read-only folder, full disk) causes one warning
/// and is retried with the next flush, up to 1 MiB of it by default; rows lost beyond that are counted and reported as
/// an error. A row is in the file either completely or not at all.
class AppendFile {
 public:
  static constexpr size_t kMostWaiting = 1 << 20;  ///< bytes
  /// `component` and `warning`, the id of the warning, must outlive this object. Rows of at most `most_waiting` bytes
  /// wait; a single row may be longer.
  AppendFile(const char* component, const char* warning, size_t most_waiting = kMostWaiting)
      : component_(component), warning_(warning), most_waiting_(most_waiting) {}
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// From now on appends to `path`, whose current contents match `mark`. Its folder is created if missing. Rows waiting
  /// for an earlier file are first written to that, or lost.
  void open(std::filesystem::path path, FileMark mark = {});
  /// The file was replaced by one whose contents match `mark`.
  void replaced(FileMark mark);
  const std::filesystem::path& path() const { return path_; }
  /// Throws an Error that names `function` before the first `open`.
  void require_open(std::string_view function) const;
  /// Writes a file into the same folder; warns if that fails.
  void write_beside(const char* name, const std::string& text) const;
  /// Warns that the metric named `step` is left out.
  void warn_of_reserved_name() const;
  const FileMark& mark() const { return mark_; }
  void add(std::string_view row);
  /// Rows wait until the file is replaced: its header does not match them yet.
  void hold() { held_ = true; }
  void change_waiting(const std::function<std::string(std::string_view)>& change) { waiting_ = change(waiting_); }
  /// True if so much is waiting that rows would soon be lost: time to flush, regardless of the options.
  bool is_filling() const;
  /// False if rows are still waiting; a warning then says why.
  bool flush();
  /// Warns that metrics are not written, once per process; `what` says which call failed and why.
  void warn(const std::string& what) const;
  /// Warns that a resume could not truncate the file to its state at the checkpoint, and truncates by `step` instead.
  void warn_of_cut_by_step(int64_t step) const;
  /// Writes waiting rows, without a warning, and closes the file. A later flush reopens it.
  void close() noexcept;
  /// The end of a run: calls `last`, which may add rows, then flushes and closes. Rows still waiting are lost.
  void finish(const std::function<void()>& last = {}) noexcept;

 private:
  bool write_waiting() noexcept;
  void report_lost();
  bool fail(const char* action) noexcept;
  const char* component_;
  const char* warning_;
  size_t most_waiting_;
  std::filesystem::path path_;
  int file_ = -1;
  int64_t good_size_ = 0;
  FileMark mark_;
  std::string waiting_;
  int64_t rows_waiting_ = 0, rows_lost_ = 0;
  std::string error_;
  bool held_ = false;
};

/// Writes `path` through a temporary sibling and a rename: readers see the old file or the new one. `write` passes the
/// content in parts to its argument. Returns the error, or an empty string; on error the old file is unchanged.
std::string replace_file(const std::filesystem::path& path,
                         const std::function<void(const std::function<void(std::string_view)>&)>& write);

}  // namespace fulgur
