#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/options/config_node.h"
#include "fulgur/core/options/options.h"

namespace fulgur::config {

/// `Name` stands for `{class_path: Name}`.
ConfigNode as_component(ConfigNode name);

/// Merges `over` into `base`: maps merge deeply, everything else replaces. A different class_path drops the old
/// init_args.
void merge_into(ConfigNode& base, ConfigNode over);

/// The value of an override: text in brackets, braces or quotes is YAML, `null` and empty text are null, and anything
/// else is taken literally as a scalar (so that `#`, `: ` and `*` need no quotes).
ConfigNode parse_value(const std::string& text, const Location& where, Problems& problems);

/// Where the value begins in `--KEY VALUE`, from 1; the key begins in column 3.
inline int value_column(std::string_view key) { return static_cast<int>(key.size()) + 4; }

/// Applies dotted overrides to a config tree. The schema says where components, lists and maps are, which determines
/// what a short form means (`model.lr` is `model.init_args.lr`).
class Overrider {
 public:
  Overrider(const Fields& schema, Problems& problems) : schema_(schema), problems_(problems) {}

  /// Sets `key` (`trainer.max_epochs`, `trainer.callbacks.0.patience`, `trainer.callbacks+`) to `value`.
  void apply(ConfigNode& root, const std::string& key, const std::string& value, const Location& where);

 private:
  void set(ConfigNode& node, const TypeInfo* type, size_t at);
  void set_in_fields(ConfigNode& node, const Fields& fields, size_t at);
  void set_in_component(ConfigNode& node, const TypeInfo& type, size_t at);
  /// False, with a report, if the last component of a list does not have the option at `path_[at]`.
  bool is_common_option(const ConfigNode& node, const TypeInfo& type, size_t at);
  bool last_has_option(const ConfigNode& last, const TypeInfo& type, size_t at);
  void set_in_list(ConfigNode& node, const TypeInfo& type, size_t at);
  void set_in_map(ConfigNode& node, const TypeInfo& type, size_t at);
  void assign(ConfigNode& node, const TypeInfo* type);
  /// True, with a report, if the value is not valid YAML.
  bool report_unreadable();
  void keep_arguments(ConfigNode& node, ConfigNode before);
  /// Reports lists of files of which arguments have changed items: another class does not get them.
  void report_changed_lists(const ConfigNode& before);
  void append(ConfigNode& node, const TypeInfo* type);
  bool load_group(ConfigNode& node);
  ConfigNode& child(ConfigNode& node, const std::string& key);
  void problem(std::string message);
  /// The place of the key: an argument has both on one line.
  Location key_place() const;
  void remove_created();
  const TypeInfo& alternative(const ConfigNode& node, const TypeInfo& type, size_t at) const;
  const Fields* fields_of(const TypeInfo& type);
  const Fields* fields_of_component(const std::string& kind, const std::string& name);

  const Fields& schema_;
  Problems& problems_;
  std::vector<std::string> path_;
  std::string key_;
  bool append_ = false;
  ConfigNode value_;
  std::string text_;  // from which `value_` was read
  Problems unreadable_;
  std::vector<std::pair<ConfigNode*, std::string>> created_;  // keys that the override has added, with their maps
  // Created once: a command line may have many overrides.
  std::map<const TypeInfo*, std::unique_ptr<Fields>> objects_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<OptionFields>> components_;
};

/// `FULGUR_TRAINER__MAX_EPOCHS` → `trainer.max_epochs`; nullopt for names that are not config options (without `__`).
std::optional<std::string> key_of_variable(std::string_view name);

/// Resolves `${key.path}` and `${env:NAME}` everywhere in the tree; `$${` becomes `${`.
void interpolate(ConfigNode& root, Problems& problems);

/// Escapes `${` in all scalars so that `interpolate` restores them.
void escape_references(ConfigNode& root);

}  // namespace fulgur::config
