#include <algorithm>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/contracts/verb.h"
#include "fulgur/core/system/program_name.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "fulgur/strategies/cluster_environment.h"
#include "fulgur/trainer/config.h"
#include "fulgur/trainer/default_options.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur {

namespace {

std::string default_text(const Field& field) {
  if (field.required) return "required";
  const ConfigNode value = field.write();
  const auto class_of = [](const ConfigNode& node) {
    const ConfigNode* const name = node.is_map() ? node.find("class_path") : nullptr;
    return name != nullptr ? name->text() : std::string();
  };
  if (value.is_map()) return class_of(value).empty() ? "{…}" : class_of(value);
  if (value.is_list() && !value.items().empty() && !class_of(value.items().front()).empty()) {
    std::vector<std::string> classes;
    for (const ConfigNode& item : value.items()) classes.push_back(class_of(item));
    return cat("[", join(classes), "]");
  }
  std::string text = to_yaml(value);
  while (text.ends_with('\n')) text.pop_back();
  return escape_controls(text);
}

void add_rows(std::vector<TextRow>& rows, const Fields& fields, const std::string& prefix, std::string_view not_in) {
  for (const Field& field : fields.all()) {
    rows.push_back({prefix + field.name, type_text(field.type), default_text(field), field.doc});
    if (field.type.object && field.name != not_in)
      add_rows(rows, *field.type.object(), cat(prefix, field.name, "."), not_in);
  }
}

/// Name, type, default and doc of each option, one per line, and those of the options that are maps, but of `not_in`.
std::string table_of(const Fields& fields, std::string_view not_in = {}) {
  std::vector<TextRow> rows{{"option", "type", "default", "meaning"}};
  add_rows(rows, fields, "", not_in);
  std::vector<int64_t> widths = column_widths(rows);
  constexpr int64_t kWidest = 44;
  for (size_t i = 1; i < widths.size(); ++i) widths[i] = std::min(widths[i], kWidest);
  std::string out;
  for (const TextRow& row : rows) out += cat("  ", aligned(row, widths), "\n");
  return out;
}

/// The options that every component of this kind has beside `class_path`, unless the class has one of that name.
std::string common_table(const ComponentRegistry& registry, const Fields& own) {
  std::unique_ptr<AnyOptions> options = registry.make_common_options();
  if (!options) return {};
  const OptionFields common(std::move(options));
  const bool is_hidden = std::ranges::any_of(common.fields.all(), [&](const Field& f) { return own.find(f.name); });
  return cat("\n  Beside class_path", is_hidden ? ", unless the class has an option of that name" : "", ":\n",
             table_of(common.fields));
}

/// The components with an option of that name.
std::vector<std::string> owners_of_option(std::string_view name) {
  std::vector<std::string> owners;
  for (const std::string& kind : registry_kinds())
    for (const std::string& known : component_registry(kind).names())
      if (OptionFields(component_registry(kind).get(known).make_options()).fields.find(name) != nullptr)
        owners.push_back(known);
  return owners;
}

/// Doc and options of the components of that name, of every kind.
std::string describe(const std::string& name) {
  std::string out;
  std::vector<std::string> all_names;
  for (const std::string& kind : registry_kinds()) {
    const ComponentRegistry& registry = component_registry(kind);
    for (std::string& known : registry.names()) all_names.push_back(std::move(known));
    const ComponentInfo* info = registry.find(name);
    if (info == nullptr) continue;
    const OptionFields made(info->make_options());
    if (!out.empty()) out += "\n";
    out += cat(info->name, " (", kind, ")\n  ", info->doc, "\n\n");
    out += made.fields.all().empty() ? "  It has no options.\n" : table_of(made.fields);
    if (!info->exports.empty()) out += cat("\n  Provides for link, as data.NAME: ", info->exports, "\n");
    out += common_table(registry, made.fields);
  }
  if (!out.empty()) return out;
  const std::vector<std::string> kinds = registry_kinds();
  if (std::ranges::find(kinds, name) != kinds.end())
    throw ConfigError(cat("[describe] '", name, "' is a kind of component. `", program_name(), " list ", name,
                          "` lists those of it, and `", program_name(), " describe NAME` the options of one."));
  if (const std::vector<std::string> owners = owners_of_option(name); !owners.empty())
    throw ConfigError(cat("[describe] '", name, "' is an option of ", join(owners), ". `", program_name(), " describe ",
                          owners.front(), "` shows it."));
  throw ConfigError(cat("[describe] unknown component '", name, "'", as_sentence(did_you_mean(name, all_names)), "`",
                        program_name(),
                        " list` shows all. Those of a plug-in need --plugin FILE.so, or -c with a "
                        "config that names it."));
}

}  // namespace

std::optional<ConfigNode> detail::default_options(std::string_view class_path) {
  for (const std::string& kind : registry_kinds()) {
    const ComponentInfo* const info = component_registry(kind).find(class_path);
    if (info == nullptr) continue;
    std::vector<ConfigNode::Entry> entries;
    const OptionFields made(info->make_options());
    for (const Field& field : made.fields.all())
      entries.emplace_back(field.name, field.required ? ConfigNode::null() : field.write());
    return ConfigNode::map(std::move(entries));
  }
  return std::nullopt;
}

std::string describe_component(const std::string& name) {
  if (name == "config")
    return "The top keys of a config\n\n" + table_of(*FieldTraits<Config>::type().object(), "trainer");
  if (name == "trainer") return "The keys under trainer\n\n" + table_of(*FieldTraits<TrainerOptions>::type().object());
  return describe(name);
}

std::string list_components(const std::optional<std::string>& wanted) {
  const std::vector<std::string> kinds = registry_kinds();
  // Fulgur contains no component of these kinds: their registries exist only in programs with some.
  for (const char* added : {Verb::kRegistryKind, ClusterEnvironment::kRegistryKind}) {
    if (wanted == added && std::ranges::find(kinds, *wanted) == kinds.end())
      return cat(added, ": none; a program adds its own, and so does a plug-in: `", program_name(), " list ", added,
                 " --plugin FILE.so`\n");
  }
  if (wanted && std::ranges::find(kinds, *wanted) == kinds.end()) {
    throw ConfigError(cat("[list] unknown kind '", *wanted, "'", as_sentence(did_you_mean(*wanted, kinds)),
                          "The kinds are ", join(kinds), "."));
  }
  std::string out;
  for (const std::string& kind : kinds) {
    if (wanted && kind != *wanted) continue;
    const ComponentRegistry& registry = component_registry(kind);
    std::vector<TextRow> rows;
    for (const std::string& name : registry.names()) rows.push_back({name, first_line(registry.get(name).doc)});
    const std::vector<int64_t> widths = column_widths(rows);
    if (!out.empty()) out += "\n";
    out += kind + (rows.empty() ? ": none\n" : ":\n");
    for (const TextRow& row : rows) out += cat("  ", aligned(row, widths), "\n");
  }
  return out;
}

}  // namespace fulgur
