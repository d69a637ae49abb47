#include "config/links.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "fulgur/core/options/option_path.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

namespace {

/// nullopt for what cannot be an option.
std::optional<OptionPath> parse_target(const std::string& text) {
  const std::vector<std::string> parts = split_text(text, '.');
  if (std::ranges::find(parts, "") != parts.end()) return std::nullopt;
  OptionPath target = option_path(text);
  return target.options.empty() ? std::nullopt : std::optional(std::move(target));
}

ComponentSpec* spec_of(Config& config, const std::string& group) {
  if (group == "model") return &config.model;
  if (group == "optimizer") return config.optimizer ? &*config.optimizer : nullptr;
  if (group == "lr_scheduler") return config.lr_scheduler ? &*config.lr_scheduler : nullptr;
  return nullptr;
}

/// The field at `options` below `fields`; `made` keeps the intermediate objects alive.
const Field* find_field(const Fields& fields, const OptionPath& target, std::vector<std::unique_ptr<Fields>>& made,
                        std::string& why) {
  const Fields* level = &fields;
  const Field* found = nullptr;
  for (const std::string& name : target.options) {
    if (level == nullptr) return nullptr;
    found = level->find(name);
    if (found == nullptr) {
      const std::string nearest = did_you_mean(name, level->names());
      why = cat("there is no option '", name, "'", nearest);
      if (nearest.empty()) why += cat("; the options are ", join_some(level->names(), 30));
      return nullptr;
    }
    level = nullptr;
    if (found->type.object) {
      made.push_back(found->type.object());
      level = made.back().get();
    }
  }
  return found;
}

/// Why the link is invalid, or nullopt.
std::optional<std::string> check_link(Config& config, const std::string& target_text, const std::string& source) {
  const std::optional<OptionPath> target = parse_target(target_text);
  if (!target) return "the target must be an option such as model.init_args.num_classes";
  if (!source.starts_with("data.") || source.size() == 5 || source == "data.?")
    return cat("the source must be a fact of the data module such as data.num_classes; got '", source, "'");
  if (target->group != "model" && target->group != "optimizer" && target->group != "lr_scheduler") {
    return cat(
        "only options of model, optimizer and lr_scheduler can be targets: the rest is set up before the data's facts "
        "are known; got '",
        target->group, "'");
  }
  const ComponentSpec* spec = spec_of(config, target->group);
  if (spec == nullptr || !*spec) return cat("no ", target->group, " is chosen");
  const OptionFields copy(spec->options().clone());
  std::vector<std::unique_ptr<Fields>> made;
  std::string why;
  if (find_field(copy.fields, *target, made, why) != nullptr) return std::nullopt;
  return why.empty() ? cat(target_text, " is not an option of ", spec->class_path())
                     : cat(spec->class_path(), ": ", why);
}

/// A fact as the config would write it; nullopt for tensors and maps.
std::optional<ConfigNode> as_node(const StateTree& fact) {
  if (fact.holds<bool>()) return ConfigNode::boolean(fact.as_bool());
  if (fact.holds<int64_t>()) return ConfigNode::integer(fact.as_int());
  if (fact.holds<uint64_t>()) return ConfigNode::scalar(std::to_string(fact.as_uint()));
  if (fact.holds<double>()) return ConfigNode::number(fact.as_double());
  if (fact.holds<std::string>()) return ConfigNode::string(fact.as_string());
  if (!fact.is_list()) return std::nullopt;
  std::vector<ConfigNode> items;
  for (const StateTree& item : fact.as_list()) {
    std::optional<ConfigNode> node = as_node(item);
    if (!node) return std::nullopt;
    items.push_back(std::move(*node));
  }
  return ConfigNode::list(std::move(items));
}

// For messages: short lists with their values.
std::string shown_value(const ConfigNode& node) {
  if (!node.is_list() || !std::ranges::all_of(node.items(), &ConfigNode::is_scalar)) return node.describe();
  std::vector<std::string> texts;
  for (const ConfigNode& item : node.items()) texts.push_back(escape_controls(item.text()));
  return cat("[", join_some(texts, 6), "]");
}

void set_places(ConfigNode& node, const Location& where) {
  node.where = where;
  for (ConfigNode& item : node.items()) set_places(item, where);
}

// A link to a value that the data module does not provide, and need not: the option keeps what the config says.
void leave_out(Config& config, const OptionPath& target, const std::string& fact_name, Problems& problems) {
  Fields fields;
  spec_of(config, target.group)->options().fields(fields);
  std::vector<std::unique_ptr<Fields>> made;
  std::string why;
  const Field* const field = find_field(fields, target, made, why);
  const bool is_written = config.written_at_links.contains(target.text());
  const std::string what = cat(config.data.class_path(), " provides no value '", fact_name, "'");
  if (field != nullptr && field->required && !is_written)
    return problems.add({"link", 0, 0}, target.text(),
                        cat("required option is missing: its link is left out, since ", what, ". Set it"));
  log::info(cat("the link of ", target.text(), " is left out: ", what, "; the option is ",
                field != nullptr ? field->write().describe() : std::string("unchanged")));
}

void apply_link(Config& config, const std::string& target_text, const std::string& source, const StateTree& facts,
                const WhyNoFact& why_no_fact, Problems& problems) {
  const Location where{"link", 0, 0};
  if (const std::optional<std::string> why = check_link(config, target_text, source))
    return problems.add(where, target_text, *why);
  const OptionPath target = *parse_target(target_text);
  const bool is_optional = source.ends_with('?');
  const std::string fact_name = source.substr(5, source.size() - 5 - (is_optional ? 1 : 0));
  std::vector<std::string> known;
  for (const auto& [name, fact] : facts.as_map()) known.push_back(name);
  if (!facts.contains(fact_name) && is_optional) return leave_out(config, target, fact_name, problems);
  if (!facts.contains(fact_name)) {
    if (const std::string reason = why_no_fact ? why_no_fact(fact_name) : ""; !reason.empty())
      return problems.add(where, target_text, cat("the data module provides no value '", fact_name, "': ", reason));
    return problems.add(where, target_text,
                        cat("the data module provides no value '", fact_name, "'", did_you_mean(fact_name, known),
                            "; it provides ", known.empty() ? "nothing" : join(known)));
  }
  const std::optional<ConfigNode> written = as_node(facts.at(fact_name));
  if (!written)
    return problems.add(where, target_text,
                        cat(source, " is a ", facts.at(fact_name).type_name(), ", which no option accepts"));
  const auto own = config.written_at_links.find(target.text());
  if (own != config.written_at_links.end() && !own->second.same_as(*written)) {
    return problems.add(own->second.where, target.text(),
                        cat("the config sets ", shown_value(own->second), ", but the link to ", source, " gives ",
                            shown_value(*written), ". Remove one of them"));
  }
  Fields fields;
  spec_of(config, target.group)->options().fields(fields);
  std::vector<std::unique_ptr<Fields>> made;
  std::string why;
  const Field* field = find_field(fields, target, made, why);
  ConfigNode value = *written;
  set_places(value, {source, 0, 0});
  if (!check_conditions(value, field->type, problems, target_text)) return;
  // Options inside an object are set through the option that contains it.
  for (size_t i = target.options.size(); i-- > 1;) {
    ConfigNode holder = ConfigNode::map();
    holder.set(target.options[i], std::move(value));
    value = std::move(holder);
  }
  if (const Field* top = fields.find(target.options.front()))
    top->read(value, problems, target.group + ".init_args." + top->name);
}

}  // namespace

void config::remove_null_links(ConfigNode& root) {
  ConfigNode* const link = root.find("link");
  if (link == nullptr) return;
  if (link->is_null()) return root.erase("link");
  if (link->is_map()) std::erase_if(link->entries(), [](const auto& entry) { return entry.second.is_null(); });
}

void config::replace_earlier_links(ConfigNode& root) {
  ConfigNode* const link = root.find("link");
  if (link == nullptr || !link->is_map()) return;
  auto& entries = link->entries();
  for (size_t i = entries.size(); i-- > 1;) {
    const std::optional<OptionPath> target = parse_target(entries[i].first);
    if (!target) continue;
    for (size_t earlier = i; earlier-- > 0;) {
      const std::optional<OptionPath> other = parse_target(entries[earlier].first);
      if (!other || other->text() != target->text()) continue;
      entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(earlier));
      --i;
    }
  }
}

void config::check_links_once(const ConfigNode& root, Problems& problems) {
  const ConfigNode* const link = root.find("link");
  if (link == nullptr || !link->is_map()) return;
  std::map<std::string, std::string> keys;
  for (const auto& [key, source] : link->entries()) {
    const std::optional<OptionPath> target = parse_target(key);
    if (!target) continue;
    const auto [first, is_new] = keys.emplace(target->text(), key);
    if (!is_new)
      problems.add(source.key_where, join_path("link", key),
                   cat("the option has another link, ", first->second, "; remove one of them"));
  }
}

void config::make_links_optional(ConfigNode& root) {
  ConfigNode* const link = root.find("link");
  if (link == nullptr || !link->is_map()) return;
  for (auto& [target, source] : link->entries()) {
    if (!source.is_scalar() || source.text().ends_with('?')) continue;
    ConfigNode marked = ConfigNode::string(source.text() + "?");
    marked.where = source.where;
    marked.key_where = source.key_where;
    source = std::move(marked);
  }
}

bool config::names_link_target(const ConfigNode& root, std::string_view path) {
  const ConfigNode* const link = root.find("link");
  if (link == nullptr) return false;
  return std::ranges::any_of(link->entries(), [&](const ConfigNode::Entry& entry) {
    const std::optional<OptionPath> target = parse_target(entry.first);
    return target && !entry.second.is_null() && target->text() == path;
  });
}

bool config::is_link_target(const Config& config, std::string_view key) {
  return std::ranges::any_of(config.link, [&](const auto& link) {
    const std::optional<OptionPath> target = parse_target(link.first);
    const std::string path = target ? target->text() : link.first;
    return key.starts_with(path) && (key.size() == path.size() || key[path.size()] == '.');
  });
}

Config config::read_with_links(const ConfigNode& node, Problems& problems) {
  Config config;
  Fields fields;
  config.fields(fields);
  const ConfigNode* link = node.find("link");
  Problems found;
  std::map<std::string, const ConfigNode*> written;
  for (const auto& [target_text, source] : link != nullptr ? link->entries() : std::vector<ConfigNode::Entry>()) {
    const std::optional<OptionPath> target = parse_target(target_text);
    if (!target) continue;
    found.allow_missing(target->text());
    if (const ConfigNode* own = find_option(std::as_const(node), target->group, target->options))
      written.emplace(target->text(), own);
  }
  fields.read(node, found, "");
  for (const Problem& problem : found.items()) problems.add(problem.where, problem.path, problem.message);
  // A component with errors was not accepted: its links cannot be checked.
  if (!found.empty()) return config;
  for (const auto& [path, own] : written) config.written_at_links.emplace(path, *own);
  for (const auto& [target_text, source] : config.link) {
    const std::optional<std::string> why = check_link(config, target_text, source);
    const ConfigNode* entry = link != nullptr ? link->find(target_text) : nullptr;
    if (why) problems.add(entry != nullptr ? entry->key_where : Location{}, join_path("link", target_text), *why);
  }
  return config;
}

void apply_links(Config& config, const StateTree& facts, const WhyNoFact& why_no_fact) {
  Problems problems;
  for (const auto& [target_text, source] : config.link)
    apply_link(config, target_text, source, facts, why_no_fact, problems);
  problems.throw_if_any();
}

}  // namespace fulgur
