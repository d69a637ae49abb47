#include "config/describe.h"
#include "config/json_schema.h"
#include "fulgur/trainer/config.h"

namespace fulgur {

std::string config_json_schema() {
  return config::json_schema(*FieldTraits<Config>::type().object(), "Config of a Fulgur run");
}

std::string describe_component(const std::string& name) {
  if (name == "config") return "The top keys of a config\n\n" + config::table_of(*FieldTraits<Config>::type().object());
  if (name == "trainer")
    return "The keys under trainer\n\n" + config::table_of(*FieldTraits<TrainerOptions>::type().object());
  return config::describe(name);
}

std::string list_components(const std::optional<std::string>& kind) { return config::list(kind); }

}  // namespace fulgur
