#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "file_mark.h"

namespace fulgur {

/// The file of a logger; it grows by whole rows. What cannot be written (read-only folder, full disk) is one warning
/// and is tried again with the next flush, up to 1 MiB of it; what is lost beyond that is an error that counts it. A
/// row is in the file as a whole or not at all.
class AppendFile {
 public:
  /// `component` and `warning`, the id of the warning, outlive this object.
  AppendFile(const char* component, const char* warning) : component_(component), warning_(warning) {}
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Appends to `path` from now on, which has what `mark` says; its folder is made where it is missing. What waited for
  /// an earlier file is written to that first, or lost.
  void open(std::filesystem::path path, FileMark mark = {});
  /// The file was replaced by one with what `mark` says.
  void replaced(FileMark mark);
  const std::filesystem::path& path() const { return path_; }
  /// What is in the file.
  const FileMark& mark() const { return mark_; }
  void add(std::string_view row);
  /// Rows wait until the file is replaced: its header does not fit them yet.
  void hold() { held_ = true; }
  /// Changes the rows that wait.
  void change_waiting(const std::function<std::string(std::string_view)>& change) { waiting_ = change(waiting_); }
  /// True where so much waits that rows would soon be lost: time to flush, whatever the options say.
  bool is_filling() const;
  /// False where rows still wait; a warning then says why.
  bool flush();
  /// Warns that metrics are not written, once per process; `what` says which call failed and why.
  void warn(const std::string& what) const;
  /// Warns that a resume could not cut the file where its checkpoint was made, and cuts it by `step` instead.
  void warn_of_cut_by_step(int64_t step) const;
  /// Writes what waits, without a warning, and lets the file go. A later flush opens it again.
  void close() noexcept;
  /// The end of a run: calls `last`, which may add rows, then flushes and closes. Rows that still wait are lost.
  void finish(const std::function<void()>& last = {}) noexcept;

 private:
  bool write_waiting() noexcept;
  void tell_lost();
  bool fail(const char* action) noexcept;
  const char* component_;
  const char* warning_;
  std::filesystem::path path_;
  int file_ = -1;
  int64_t good_size_ = 0;
  FileMark mark_;
  std::string waiting_;
  int64_t rows_waiting_ = 0, rows_lost_ = 0;
  std::string error_;
  bool held_ = false;
};

/// Writes `path` by a temporary sibling and a rename: readers see the old file or the new one. `write` gives the
/// content in parts to its argument. Returns what went wrong, or nothing; the old file is then as it was.
std::string replace_file(const std::filesystem::path& path,
                         const std::function<void(const std::function<void(std::string_view)>&)>& write);

}  // namespace fulgur
