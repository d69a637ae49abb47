#include "completion/candidates.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "added_verb.h"
#include "command_line.h"
#include "completion/key_tree.h"
#include "fulgur/core/text/text.h"
#include "help/help_text.h"

namespace fulgur::cli {
namespace {

using Kind = TypeInfo::Kind;
using Words = std::vector<std::string>;

/// Whose options may be linked to values of the data module.
const Words kLinkedGroups{"model", "optimizer", "lr_scheduler"};

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

/// The program's option of that name, such as `-c`; nullptr if it has none.
const CLI::Option* find_option(const CLI::App& app, const std::string& name) {
  return name.starts_with('-') ? app.get_option_no_throw(name) : nullptr;
}

/// The verb of that name; nullptr if there is none.
const CLI::App* find_verb(const CLI::App& app, const std::string& name) {
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    if (verb->get_name() == name) return verb;
  return nullptr;
}

/// What the arguments say so far.
struct Arguments {
  const CLI::App* verb = nullptr;
  Words positionals;
  ConfigSources sources;
  std::string awaiting;  ///< the option whose value the last word is; empty: none
};

/// The name of an option in a word, and its value if it has one (`--key=value`).
std::pair<std::string, std::optional<std::string>> parts_of(const std::string& word) {
  const size_t equals = word.find('=');
  if (!word.starts_with("--") || equals == std::string::npos) return {word, std::nullopt};
  return {word.substr(0, equals), word.substr(equals + 1)};
}

/// Reads all words but the last one.
Arguments read_words(const Words& words, const CLI::App& app) {
  Arguments out;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const auto [name, written] = parts_of(words[i]);
    if (!name.starts_with('-')) {
      const CLI::App* verb = out.verb == nullptr ? find_verb(app, name) : nullptr;
      if (verb != nullptr)
        out.verb = verb;
      else
        out.positionals.push_back(name);
      continue;
    }
    const CLI::Option* option = out.verb != nullptr ? find_option(*out.verb, name) : nullptr;
    if (option == nullptr) option = find_option(app, name);
    if (option != nullptr && !takes_value(*option)) continue;
    if (!written && i + 2 == words.size()) {
      out.awaiting = name;
      break;
    }
    const std::string value = written ? *written : words[++i];
    if (option == nullptr)
      out.sources.overrides.emplace_back(name.substr(std::min<size_t>(2, name.size())), value);
    else if (option->check_name("--config"))
      out.sources.files.emplace_back(value);
  }
  return out;
}

class Completer {
 public:
  Completer(const CLI::App& app, const Words& words)
      : app_(app), current_(words.back()), arguments_(read_words(words, app)) {
    if (arguments_.verb != nullptr || arguments_.positionals.empty()) return;
    if (const ComponentInfo* added = find_added_verb(arguments_.positionals.front()); added != nullptr)
      added_verb_.emplace(added->make_options());
  }

  Candidates run() {
    if (!arguments_.awaiting.empty()) {
      add_values_of(arguments_.awaiting);
    } else if (const auto [name, value] = parts_of(current_); value) {
      prefix_ = name + "=";
      add_values_of(name);
    } else if (added_verb_) {
      add_options_of_added_verb();
    } else if (current_.starts_with('-')) {
      add_options();
    } else if (arguments_.verb == nullptr) {
      for (const CLI::App* verb : app_.get_subcommands([](const CLI::App*) { return true; }))
        add(verb->get_name(), verb->get_description());
      for (const auto& [verb, doc] : added_verb_list()) add(verb, doc);
    } else {
      add_positionals();
    }
    return std::move(out_);
  }

 private:
  void add(const std::string& word, const std::string& doc = {}) {
    std::string whole = prefix_ + word;
    if (!whole.starts_with(current_)) return;
    if (std::ranges::none_of(out_.words, [&](const auto& item) { return item.first == whole; }))
      out_.words.emplace_back(std::move(whole), doc);
  }

  /// The config so far: its mistakes are not of interest here.
  KeyTree& keys() {
    if (!keys_) {
      Problems problems;
      keys_ = std::make_unique<KeyTree>(merge_config(arguments_.sources, problems));
    }
    return *keys_;
  }

  void add_options_of_added_verb() {
    for (const Field& field : added_verb_->fields.all()) add("--" + field.name, field.doc);
    add("--plugin", app_.get_option("--plugin")->get_description());
    add("--help", "Shows the options");
  }

  bool takes_config() const {
    // The first word names a verb, which may be one of a plug-in: its options are not known here.
    if (arguments_.verb == nullptr) return arguments_.positionals.empty();
    return reads_keys(*arguments_.verb, app_);
  }

  void add_options() {
    // A long option once there are two dashes; its short form is shown with one.
    std::vector<const CLI::Option*> options =
        arguments_.verb != nullptr ? options_of_verb(*arguments_.verb, app_) : app_.get_options();
    for (const CLI::Option* option : options) {
      if (!option->nonpositional()) continue;
      for (const std::string& name : option->get_lnames()) add("--" + name, option->get_description());
    }
    if (takes_config()) add_keys();
  }

  /// `--link.model.num_classes`: the key is an option of the config.
  static bool is_target_of_link(const Words& path) { return !path.empty() && path.front() == "link"; }

  /// What the class of the data module says that it provides.
  void add_values_of_link() {
    const ComponentInfo* info = Registry<DataModule>::instance().find(keys().class_of("data"));
    if (info == nullptr) return;
    for (const std::string& value : split_text(info->exports, ','))
      if (!trimmed(value).empty()) add(cat("data.", trimmed(value)));
    add("null", "no link");
  }

  void add_keys() {
    if (!current_.starts_with("--")) return;
    Words path = split_text(std::string_view(current_).substr(2), '.');
    path.pop_back();
    const std::string parent = path.empty() ? std::string("--") : cat("--", join(path, "."), ".");
    const bool is_link = is_target_of_link(path);
    if (is_link) path.erase(path.begin());
    for (const Field* field : keys().below(path)) {
      if (is_link && path.empty() && std::ranges::find(kLinkedGroups, field->name) == kLinkedGroups.end()) continue;
      const std::string key = parent + field->name;
      if (!is_link && lists_components(field->type)) add(key + "+", "appends to the list");
      Words below = path;
      below.push_back(field->name);
      const bool has_more = (has_keys(field->type) && !keys().below(below).empty()) || key == "--link";
      if (has_more) add(key + ".", field->doc);
      if (field->type.kind != Kind::object && !(is_link && path.empty())) add(key, field->doc);
    }
    out_.continues = !out_.words.empty() &&
                     std::ranges::all_of(out_.words, [](const auto& item) { return item.first.ends_with('.'); });
  }

  static bool has_kind(const TypeInfo& type, Kind kind) {
    return type.kind == kind ||
           (type.kind == Kind::any_of && std::ranges::find(type.parts, kind, &TypeInfo::kind) != type.parts.end());
  }
  static bool lists_components(const TypeInfo& type) {
    if (type.kind == Kind::any_of) return std::ranges::any_of(type.parts, lists_components);
    return type.kind == Kind::list && !type.parts.empty() && type.parts.front().kind == Kind::component;
  }
  static bool has_keys(const TypeInfo& type) {
    return has_kind(type, Kind::object) || has_kind(type, Kind::component) || has_kind(type, Kind::list);
  }

  void add_values_of(const std::string& name) {
    const CLI::Option* option = arguments_.verb != nullptr ? find_option(*arguments_.verb, name) : nullptr;
    if (option == nullptr) option = find_option(app_, name);
    if (const Field* field =
            added_verb_ ? added_verb_->fields.find(name.substr(std::min<size_t>(2, name.size()))) : nullptr;
        field != nullptr) {
      add_values_of_type(field->type);
    } else if (name == "--ckpt_path") {
      for (const char* word : {"last", "best"}) add(word);
      out_.files = true;
    } else if (name == "--verify") {
      add_values_of_key({"load", "verify"}, false);
    } else if (option != nullptr) {
      add_values_of_option(*option);
    } else if (name.starts_with("--") && takes_config()) {
      const bool appends = name.ends_with('+');
      if (name.starts_with("--link.")) return add_values_of_link();
      add_values_of_key(split_text(std::string_view(name).substr(2, name.size() - (appends ? 3 : 2)), '.'), appends);
    }
  }

  void add_values_of_option(const CLI::Option& option) {
    const std::string type = option.get_type_name();
    if (const size_t begin = type.find('{'), end = type.find('}');
        begin != std::string::npos && end != std::string::npos)
      for (const std::string& choice : split_text(std::string_view(type).substr(begin + 1, end - begin - 1), ','))
        add(choice);
    const std::string kind = type.substr(0, type.find_first_of(":= "));
    if (kind == "DIR" || kind == "RUN") out_.folders = true;
    if (kind == "BOOL")
      for (const char* word : {"true", "false"}) add(word);
    if (kind == "MODE")
      for (const char* word : {"exponential", "linear", "power", "binsearch"}) add(word);
    for (const char* name : {"FILE", "FILE.so", "PATH", "CKPT", "NAME"})
      if (kind == name) out_.files = true;
  }

  void add_values_of_key(const Words& path, bool appends) {
    const TypeInfo* type = keys().type_of(path);
    if (type == nullptr) return;
    if (appends) {
      for (const TypeInfo& part : type->kind == Kind::any_of ? type->parts : std::vector<TypeInfo>{*type})
        if (part.kind == Kind::list && !part.parts.empty()) add_values_of_type(part.parts.front());
      return;
    }
    add_values_of_type(*type);
  }

  void add_values_of_type(const TypeInfo& type) {
    for (const std::string& choice : type.choices) add(choice);
    if (type.nullable) add("null");
    switch (type.kind) {
      case Kind::boolean:
        for (const char* word : {"true", "false"}) add(word);
        break;
      case Kind::component: {
        const ComponentRegistry& registry = component_registry(type.registry_kind);
        for (const std::string& name : registry.names()) add(name, first_line(registry.get(name).doc));
        out_.files = true;  // a part of the config
        break;
      }
      case Kind::path:
      case Kind::object:
        out_.files = true;
        break;
      case Kind::any_of:
        for (const TypeInfo& part : type.parts) add_values_of_type(part);
        break;
      default:
        break;
    }
  }

  void add_positionals() {
    const std::string verb = arguments_.verb->get_name();
    std::vector<const CLI::Option*> places = arguments_.verb->get_options();
    std::erase_if(places, [](const CLI::Option* option) { return !option->get_positional(); });
    if (places.empty()) return;
    size_t place = 0;
    for (size_t left = arguments_.positionals.size(); place < places.size(); ++place) {
      const auto most = static_cast<size_t>(places[place]->get_items_expected_max());
      if (left < most) break;
      left -= most;
    }
    if (place == places.size()) return;
    if (verb == "list") {
      for (const std::string& kind : registry_kinds()) add(kind);
    } else if (verb == "describe") {
      add("config", "The top keys of a config");
      add("trainer", "The keys under trainer");
      for (const std::string& kind : registry_kinds())
        for (const std::string& name : component_registry(kind).names()) add(name, kind);
    } else if (verb == "bench") {
      add("comm", "Exchanges between processes");
    } else if (verb == "tune") {
      add("lr", "Find a learning rate");
      add("batch_size", "Find a batch size");
    } else {
      add_values_of_option(*places[place]);
    }
  }

  const CLI::App& app_;
  const std::string& current_;
  Arguments arguments_;
  std::string prefix_;
  std::unique_ptr<KeyTree> keys_;
  std::optional<OptionFields> added_verb_;  ///< its options, if the verb is one that this program has added
  Candidates out_;
};

}  // namespace

Candidates find_candidates(const Words& words) {
  Candidates found;
  with_declared_options([&](const CLI::App& app) { found = Completer(app, words).run(); });
  return found;
}

}  // namespace fulgur::cli
