#include "trainer/config/config_components.h"

#include <nlohmann/json.hpp>

#include "support/expect_error.h"

namespace config_schema_test {

using namespace fulgur;
using Json = nlohmann::json;

namespace {

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Json as_json(const ConfigNode& node) {
  if (node.is_null()) return nullptr;
  if (node.is_list()) {
    Json out = Json::array();
    for (const ConfigNode& item : node.items()) out.push_back(as_json(item));
    return out;
  }
  if (node.is_map()) {
    Json out = Json::object();
    for (const auto& [key, value] : node.entries()) out[key] = as_json(value);
    return out;
  }
  Json parsed = node.quoted() || reads_as_text(node.text()) ? Json() : Json::parse(node.text(), nullptr, false);
  return parsed.is_null() || parsed.is_discarded() ? Json(node.text()) : parsed;
}

bool is_of_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  return type == "null" && value.is_null();
}

/// The words of JSON Schema that our schema uses.
class Validator {
 public:
  explicit Validator(Json root) : root_(std::move(root)) {}
  bool accepts(const Json& value) const { return accepts(value, root_); }

 private:
  int count(const Json& value, const Json& alternatives) const {
    int matching = 0;
    for (const Json& alternative : alternatives) matching += accepts(value, alternative) ? 1 : 0;
    return matching;
  }

  bool accepts(const Json& value, const Json& schema) const {
    if (schema.contains("$ref") &&
        !accepts(value, root_.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1)))))
      return false;
    if (schema.contains("type")) {
      bool matches = false;
      const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
      for (const Json& type : types) matches |= is_of_type(value, type);
      if (!matches) return false;
    }
    if (schema.contains("const") && schema["const"] != value) return false;
    if (schema.contains("not") && accepts(value, schema["not"])) return false;
    if (schema.contains("enum") &&
        std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
      return false;
    if (schema.contains("anyOf") && count(value, schema["anyOf"]) == 0) return false;
    if (schema.contains("oneOf") && count(value, schema["oneOf"]) != 1) return false;
    if (value.is_number()) {
      const double number = value.get<double>();
      if (schema.contains("minimum") && number < schema["minimum"].get<double>()) return false;
      if (schema.contains("maximum") && number > schema["maximum"].get<double>()) return false;
      if (schema.contains("exclusiveMinimum") && number <= schema["exclusiveMinimum"].get<double>()) return false;
      if (schema.contains("exclusiveMaximum") && number >= schema["exclusiveMaximum"].get<double>()) return false;
    }
    if (value.is_array() && schema.contains("items")) {
      for (const Json& item : value) {
        if (!accepts(item, schema["items"])) return false;
      }
    }
    if (!value.is_object()) return true;
    for (const Json& key : schema.value("required", Json::array())) {
      if (!value.contains(key.get<std::string>())) return false;
    }
    for (const auto& [key, item] : value.items()) {
      if (schema.contains("properties") && schema["properties"].contains(key)) {
        if (!accepts(item, schema["properties"][key])) return false;
      } else if (schema.contains("additionalProperties")) {
        const Json& rest = schema["additionalProperties"];
        if (rest.is_boolean() ? !rest.get<bool>() : !accepts(item, rest)) return false;
      }
    }
    return true;
  }

  Json root_;
};

bool accepts(const std::string& yaml) {
  static const Validator validator(Json::parse(config_json_schema()));
  Problems problems;
  const ConfigNode node = parse_yaml(yaml, "c.yaml", problems);
  REQUIRE(problems.empty());
  return validator.accepts(as_json(node));
}

}  // namespace

TEST_CASE("the schema accepts what the reader accepts") {
  CHECK(accepts(to_yaml(test::load("").write())));
  const std::string full =
      "seed_everything: 1\n"
      "trainer: {max_epochs: 3, devices: auto, limit_train_batches: 0.5, precision: 32, logger: [ConfigLogger], "
      "callbacks: [ConfigCallback]}\n"
      "model: {class_path: ConfigModel, init_args: {classes: 3, widths: [1, 2], part: {depth: 2}}}\n"
      "data: ConfigData\n"
      "link: {model.classes: data.classes}\n";
  CHECK(accepts(full));
  CHECK(accepts(to_yaml(test::load(full).write())));
}

TEST_CASE("the schema refuses what the reader refuses") {
  for (const char* yaml :
       {"trainr: {}", "trainer: {max_epoch: 1}", "trainer: {max_epochs: x}", "trainer: {accumulate_grad_batches: 0}",
        "trainer: {limit_train_batches: 1.5}", "trainer: {precision: 8}", "model: Unknown", "model: ConfigCallback",
        "model: {class_path: ConfigModel, init_args: {clases: 3}}",
        "model: {class_path: ConfigModel, init_args: {classes: 1}}", "model: {class_path: ConfigModel, rate: 1}",
        "model: {init_args: {rate: 1}}", "trainer: {callbacks: ConfigCallback}", "trainer: {strategy: null}"}) {
    INFO(yaml);
    CHECK_FALSE(accepts(yaml));
    CHECK_FALSE(test::load_error(yaml).empty());
  }
}

TEST_CASE("the schema has every registry kind and every component") {
  const Json schema = Json::parse(config_json_schema());
  CHECK(schema["$schema"] == "https://json-schema.org/draft/2020-12/schema");
  for (const std::string& kind : registry_kinds()) {
    INFO(kind);
    REQUIRE(schema["$defs"].contains(kind));
    const std::vector<std::string> names = component_registry(kind).names();
    if (!names.empty()) CHECK(schema["$defs"][kind]["oneOf"].size() == names.size() + 1);
  }
  CHECK(schema["properties"]["trainer"]["properties"]["max_steps"]["default"] == -1);
  CHECK(schema["properties"]["trainer"]["properties"]["max_steps"].contains("description"));
}

TEST_CASE("components are listed and described") {
  const std::string all = list_components(std::nullopt);
  CHECK(says(all, "callback:\n"));
  CHECK(says(all, "ConfigModel"));
  CHECK_FALSE(says(list_components("callback"), "ConfigModel"));
  CHECK(says(list_components("callback"), "A callback of the tests."));
  const std::string message = test::message_of<ConfigError>([] { list_components("callbacks"); });
  CHECK(says(message, "did you mean 'callback'? The kinds are"));

  const std::string model = describe_component("ConfigModel");
  CHECK(says(model, "ConfigModel (model)"));
  CHECK(says(model, "  int, at least 2"));
  CHECK(says(model, "\n  classes "));
  // The options of one that is a map follow it.
  const std::string ddp = describe_component("ddp");
  CHECK(says(ddp, "\n  local_sgd.outer_optimizer.momentum "));
  CHECK(says(test::message_of<ConfigError>([] { describe_component("matrix_approximation_rank"); }),
             "unknown component"));
  CHECK(says(test::message_of<ConfigError>([] { describe_component("local_sgd"); }), "is an option of ddp, fsdp. `"));
  CHECK(says(model, "required"));
  CHECK(says(model, "[8, 4]"));
  CHECK_FALSE(says(model, "Beside class_path"));
  // What every metric and every callback has.
  CHECK(says(describe_component("Accuracy"), "\n  Beside class_path:\n"));
  CHECK(says(describe_component("Accuracy"), "  name "));
  CHECK(says(describe_component("ConfigCallback"), "  until "));
  CHECK(says(describe_component("ModelCheckpoint"), "Beside class_path, unless the class has an option of that name:"));
  CHECK(says(describe_component("trainer"), "max_epochs"));
  CHECK(says(describe_component("config"), "seed_everything"));
  CHECK(says(test::message_of<ConfigError>([] { describe_component("ConfigModle"); }), "did you mean 'ConfigModel'?"));
}

TEST_CASE("every option of every component has a doc") {
  for (const std::string& kind : registry_kinds()) {
    for (const std::string& name : component_registry(kind).names()) {
      const ComponentInfo& info = component_registry(kind).get(name);
      CHECK_FALSE(info.doc.empty());
      const std::unique_ptr<AnyOptions> options = info.make_options();
      Fields fields;
      options->fields(fields);
      for (const Field& field : fields.all()) {
        INFO(kind << " " << name << " " << field.name);
        CHECK(field.doc.ends_with("."));
      }
    }
  }
}

}  // namespace config_schema_test
