#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/text/errors.h"

namespace fulgur {

/// Where a config value was written. `line` and `column` start at 1; 0 if unknown.
struct Location {
  std::string source;  ///< file name, `command line`, `environment variable NAME`, or empty for defaults
  int line = 0;
  int column = 0;
  /// Of a value of the command line: its number among the overrides, from 1; `column` is then a place in
  /// `--KEY VALUE`. 0 for values of files and variables.
  int argument = 0;

  /// `file:line:column`, or only the source.
  FULGUR_API std::string text() const;
};

/// False if an unquoted scalar with this text is, or may be taken for, null, a boolean or a number.
FULGUR_API bool reads_as_text(std::string_view plain);

/// A config value as written: null, scalar text, list or map (ordered, unique keys). A scalar keeps its text and
/// whether it was quoted; the field that reads it decides its type. Independent of the YAML library.
class FULGUR_API ConfigNode {
 public:
  enum class Kind { null, scalar, list, map };
  using Entry = std::pair<std::string, ConfigNode>;

  ConfigNode() = default;
  static ConfigNode null() { return {}; }
  static ConfigNode scalar(std::string text, bool quoted = false);
  static ConfigNode string(std::string text) { return scalar(std::move(text), true); }
  static ConfigNode boolean(bool value) { return scalar(value ? "true" : "false"); }
  static ConfigNode integer(int64_t value) { return scalar(std::to_string(value)); }
  static ConfigNode number(double value);
  static ConfigNode list(std::vector<ConfigNode> items = {});
  static ConfigNode map(std::vector<Entry> entries = {});

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::null; }
  bool is_scalar() const { return kind_ == Kind::scalar; }
  bool is_list() const { return kind_ == Kind::list; }
  bool is_map() const { return kind_ == Kind::map; }
  /// A description for messages: `null`, `'abc'`, `quoted text '2'`, `a list of 3` or `a map of 2`.
  std::string describe() const;

  const std::string& text() const { return text_; }
  bool quoted() const { return quoted_; }
  const std::vector<ConfigNode>& items() const { return items_; }
  std::vector<ConfigNode>& items() { return items_; }
  const std::vector<Entry>& entries() const { return entries_; }
  std::vector<Entry>& entries() { return entries_; }

  /// The entry named `key` of a map, or nullptr.
  const ConfigNode* find(std::string_view key) const;
  ConfigNode* find(std::string_view key);
  /// The entry named `key`, created (null) if absent; turns a node that is not a map into an empty map.
  ConfigNode& get_or_add(std::string_view key);
  void set(std::string_view key, ConfigNode value) { get_or_add(key) = std::move(value); }
  void erase(std::string_view key);

  Location where;       ///< place of the value
  Location key_where;   ///< place of the key, for map entries
  std::string comment;  ///< written above the entry when it is printed with comments

  /// True if both have the same kinds, texts and entries, in the same order. Locations and comments are ignored, and
  /// quotes count only if they change the meaning (`"2"` versus `2`).
  bool same_as(const ConfigNode& other) const;

 private:
  Kind kind_ = Kind::null;
  bool quoted_ = false;
  std::string text_;
  std::vector<ConfigNode> items_;
  std::vector<Entry> entries_;
};

/// One error in a config.
struct Problem {
  Location where;
  std::string path;  ///< `trainer.max_epochs`
  std::string message;
};

/// Collects all errors, so that one report lists them all.
class FULGUR_API Problems {
 public:
  void add(const Location& where, std::string path, std::string message);
  bool empty() const { return items_.empty(); }
  const std::vector<Problem>& items() const { return items_; }
  /// Allows the required option at `path` to be missing, since it is filled in later (by a link).
  void allow_missing(std::string path) { may_miss_.push_back(std::move(path)); }
  bool may_miss(const std::string& path) const;
  /// Keeps the text of a file, for messages that show the line of a problem.
  void keep_text(const std::string& source, std::string text) { texts_[source] = std::move(text); }
  /// Keeps `--KEY VALUE`, the argument with this number (Location::argument), for the same messages.
  void keep_argument(int number, std::string text) { arguments_[number] = std::move(text); }
  /// The kept line or argument at a place; nullopt if it is not known.
  std::optional<std::string> line_at(const Location& where) const;
  /// A text with one line per problem: `file:line:col: path: message`.
  std::string report() const;
  /// Throws a BadConfig with the report, followed by `hint`, if there are any problems.
  void throw_if_any(std::string_view hint = {}) const;

 private:
  std::vector<Problem> items_;
  std::vector<std::string> may_miss_;
  std::map<std::string, std::string> texts_;
  std::map<int, std::string> arguments_;
};

/// The mistakes of a config. The message has one line for each; a terminal can show the lines of the config as well.
class FULGUR_API BadConfig : public ConfigError {
 public:
  BadConfig(const std::string& message, Problems problems, std::string hint);
  ~BadConfig() override;
  const Problems& problems() const { return *problems_; }
  /// What the message says after the problems; empty, or lines that begin with a line end.
  const std::string& hint() const { return *hint_; }

 private:
  std::shared_ptr<const Problems> problems_;
  std::shared_ptr<const std::string> hint_;
};

/// `parent.child`, or `child` if the parent is empty.
FULGUR_API std::string join_path(std::string_view parent, std::string_view child);

}  // namespace fulgur
