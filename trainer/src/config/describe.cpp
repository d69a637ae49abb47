#include <algorithm>

#include "config/describe.h"
#include "fulgur/core/errors.h"
#include "fulgur/core/registry.h"
#include "fulgur/core/text.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur::config {

namespace {

/// Terminal columns of a UTF-8 text without wide characters.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string padded(std::string_view text, size_t width) {
  return std::string(text) + std::string(width - std::min(width, width_of(text)), ' ');
}

std::string default_text(const Field& field) {
  if (field.required) return "required";
  const ConfigNode value = field.write();
  if (value.is_map()) {
    const ConfigNode* name = value.find("class_path");
    return name != nullptr ? name->text() : "{…}";
  }
  std::string text = to_yaml(value);
  while (text.ends_with('\n')) text.pop_back();
  return escape_controls(text);
}

/// A hint that is a question already ends its sentence.
std::string sentence(const std::string& hint) { return hint.ends_with('?') ? hint + " " : hint + ". "; }

std::string first_line(const std::string& doc) { return doc.substr(0, doc.find('\n')); }

}  // namespace

std::string table_of(const Fields& fields) {
  struct Row {
    std::string name, type, value, doc;
  };
  std::vector<Row> rows{{"option", "type", "default", "meaning"}};
  for (const Field& field : fields.all())
    rows.push_back({field.name, type_text(field.type), default_text(field), field.doc});
  size_t name = 0, type = 0, value = 0;
  constexpr size_t kWidest = 44;
  for (const Row& row : rows) {
    name = std::max(name, width_of(row.name));
    type = std::max(type, std::min(width_of(row.type), kWidest));
    value = std::max(value, std::min(width_of(row.value), kWidest));
  }
  std::string out;
  for (const Row& row : rows) {
    out += cat("  ", padded(row.name, name), "  ", padded(row.type, type), "  ", padded(row.value, value), "  ",
               row.doc, "\n");
  }
  return out;
}

std::string describe(const std::string& name) {
  std::string out;
  std::vector<std::string> all_names;
  for (const std::string& kind : registry_kinds()) {
    const ComponentRegistry& registry = component_registry(kind);
    for (std::string& known : registry.names()) all_names.push_back(std::move(known));
    const ComponentInfo* info = registry.find(name);
    if (info == nullptr) continue;
    const std::unique_ptr<AnyOptions> options = info->make_options();
    Fields fields;
    options->fields(fields);
    if (!out.empty()) out += "\n";
    out += cat(info->name, " (", kind, ")\n  ", info->doc, "\n\n");
    out += fields.all().empty() ? "  It has no options.\n" : table_of(fields);
  }
  if (!out.empty()) return out;
  throw ConfigError(cat("[describe] unknown component '", name, "'", sentence(did_you_mean(name, all_names)),
                        "`trainer list` shows all."));
}

std::string list(const std::optional<std::string>& wanted) {
  const std::vector<std::string> kinds = registry_kinds();
  if (wanted && std::find(kinds.begin(), kinds.end(), *wanted) == kinds.end()) {
    throw ConfigError(cat("[list] unknown kind '", *wanted, "'", sentence(did_you_mean(*wanted, kinds)), "There is ",
                          join(kinds), "."));
  }
  std::string out;
  for (const std::string& kind : kinds) {
    if (wanted && kind != *wanted) continue;
    const ComponentRegistry& registry = component_registry(kind);
    const std::vector<std::string> names = registry.names();
    size_t width = 0;
    for (const std::string& name : names) width = std::max(width, width_of(name));
    if (!out.empty()) out += "\n";
    out += kind + (names.empty() ? ": none\n" : ":\n");
    for (const std::string& name : names)
      out += cat("  ", padded(name, width), "  ", first_line(registry.get(name).doc), "\n");
  }
  return out;
}

}  // namespace fulgur::config
