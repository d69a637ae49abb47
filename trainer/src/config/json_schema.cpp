#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/trainer/config.h"

namespace fulgur {

namespace {

// Keys in the order in which options are declared.
using Json = nlohmann::ordered_json;
using Kind = TypeInfo::Kind;

/// A default as JSON: a string if it is not clearly a number, boolean or null.
Json to_json(const ConfigNode& node) {
  switch (node.kind()) {
    case ConfigNode::Kind::null:
      return nullptr;
    case ConfigNode::Kind::scalar:
      break;
    case ConfigNode::Kind::list: {
      Json out = Json::array();
      for (const ConfigNode& item : node.items()) out.push_back(to_json(item));
      return out;
    }
    case ConfigNode::Kind::map: {
      Json out = Json::object();
      for (const auto& [key, value] : node.entries()) out[key] = to_json(value);
      return out;
    }
  }
  if (node.quoted() || reads_as_text(node.text())) return node.text();
  Json parsed = Json::parse(node.text(), nullptr, false);
  return parsed.is_discarded() ? Json(node.text()) : parsed;
}

class Schema {
 public:
  Json of_fields(const Fields& fields) {
    Json out{{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
    Json required = Json::array();
    for (const Field& field : fields.all()) {
      Json property = of_type(field.type);
      property["description"] = field.doc;
      if (field.required)
        required.push_back(field.name);
      else if (const ConfigNode value = field.write(); !value.is_map())
        property["default"] = to_json(value);
      out["properties"][field.name] = std::move(property);
    }
    if (!required.empty()) out["required"] = std::move(required);
    return out;
  }

  /// Definitions of all registries, and of the kinds that were referenced, directly or indirectly.
  Json definitions() {
    for (const std::string& kind : registry_kinds()) wanted_.insert(kind);
    Json out = Json::object();
    while (true) {
      std::string next;
      for (const std::string& kind : wanted_) {
        if (!out.contains(kind)) next = kind;
      }
      if (next.empty()) return out;
      out[next] = of_kind(next);
    }
  }

 private:
  Json of_kind(const std::string& kind) {
    Json alternatives = Json::array();
    const ComponentRegistry& registry = component_registry(kind);
    const std::vector<std::string> names = registry.names();
    if (names.empty()) return Json{{"not", Json::object()}, {"description", "no " + kind + " is registered"}};
    Json choices = names;
    // Names that look like numbers may be unquoted.
    for (const std::string& alias : registry.aliases()) {
      choices.push_back(alias);
      if (!reads_as_text(alias)) choices.push_back(to_json(ConfigNode::scalar(alias)));
    }
    alternatives.push_back({{"enum", std::move(choices)}});
    for (const std::string& name : names) {
      const ComponentInfo& info = registry.get(name);
      const OptionFields own(info.make_options());
      Json args = of_fields(own.fields);
      Json required = Json::array({"class_path"});
      // Options that a link fills may be missing, so init_args itself is never required here.
      args.erase("required");
      Json properties = {{"class_path", {{"const", name}}}, {"init_args", std::move(args)}};
      add_common_options(properties, registry, own.fields);
      alternatives.push_back({{"type", "object"},
                              {"description", info.doc},
                              {"properties", std::move(properties)},
                              {"required", std::move(required)},
                              {"additionalProperties", false}});
    }
    return Json{{"oneOf", std::move(alternatives)}};
  }

  // What may stand beside class_path, unless it is an option of the class.
  void add_common_options(Json& properties, const ComponentRegistry& registry, const Fields& own) {
    std::unique_ptr<AnyOptions> options = registry.make_common_options();
    if (!options) return;
    const OptionFields common(std::move(options));
    const Json described = of_fields(common.fields);
    for (const Field& field : common.fields.all()) {
      if (own.find(field.name) == nullptr) properties[field.name] = described["properties"][field.name];
    }
  }

  static Json bound(double value) {
    const bool whole = value == std::floor(value) && std::abs(value) < 9e15;
    return whole ? Json(static_cast<int64_t>(value)) : Json(value);
  }

  /// Choices that look like numbers may be unquoted.
  static Json choices_of(const TypeInfo& type) {
    Json out = type.choices;
    for (const std::string& choice : type.choices) {
      if (!reads_as_text(choice)) out.push_back(to_json(ConfigNode::scalar(choice)));
    }
    return out;
  }

  static void add_conditions(Json& out, const TypeInfo& type) {
    if (type.minimum) out["minimum"] = bound(*type.minimum);
    if (type.maximum) out["maximum"] = bound(*type.maximum);
    if (type.above) out["exclusiveMinimum"] = bound(*type.above);
    if (type.below) out["exclusiveMaximum"] = bound(*type.below);
    if (!type.pattern.empty()) out["pattern"] = type.pattern;
    if (type.min_items) out["minItems"] = *type.min_items;
    if (type.max_items) out["maxItems"] = *type.max_items;
    if (!type.choices.empty()) out["enum"] = choices_of(type);
  }

  Json of_bare_type(const TypeInfo& type) {
    switch (type.kind) {
      case Kind::boolean:
        return {{"type", "boolean"}};
      case Kind::integer:
        return {{"type", "integer"}};
      case Kind::number:
        return {{"type", "number"}};
      // A plain number or boolean is accepted where a string is expected.
      case Kind::string:
      case Kind::path:
        return type.pattern.empty() ? Json{{"type", {"string", "number", "boolean"}}} : Json{{"type", "string"}};
      case Kind::list:
        return {{"type", "array"}, {"items", of_type(type.parts.at(0))}};
      case Kind::map:
        return {{"type", "object"}, {"additionalProperties", of_type(type.parts.at(0))}};
      case Kind::object: {
        const std::unique_ptr<Fields> fields = type.object();
        Json out = of_fields(*fields);
        out["type"] = {"object", "null"};
        return out;
      }
      case Kind::component: {
        wanted_.insert(type.registry_kind);
        return {{"$ref", "#/$defs/" + type.registry_kind}};
      }
      case Kind::any_of: {
        Json parts = Json::array();
        for (const TypeInfo& part : type.parts) parts.push_back(of_type(part));
        return {{"anyOf", std::move(parts)}};
      }
    }
    return Json::object();
  }

  Json of_type(const TypeInfo& type) {
    Json out = of_bare_type(type);
    add_conditions(out, type);
    if (!type.nullable) return out;
    return {{"anyOf", Json::array({std::move(out), Json{{"type", "null"}}})}};
  }

  std::set<std::string> wanted_;
};

}  // namespace

std::string config_json_schema() {
  Schema schema;
  Json root{{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "Config of a Fulgur run"}};
  root.update(schema.of_fields(*FieldTraits<Config>::type().object()));
  root["$defs"] = schema.definitions();
  return root.dump(2) + "\n";
}

}  // namespace fulgur
