#include "capture/place_of_operation.h"

#include <c10/util/Type.h>

#include <map>
#include <typeinfo>
#include <utility>
#include <vector>

#include "capture/call_stack.h"
#include "fulgur/core/text/class_name.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

struct ModulesOfClass {
  std::string short_name;
  std::vector<std::string> names;
};

// By the full name of their class.
std::map<std::string, ModulesOfClass> modules_by_class(LightningModule& module) {
  std::map<std::string, ModulesOfClass> classes;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    const torch::nn::Module& one = *item.value();
    ModulesOfClass& same = classes[c10::demangle(typeid(one).name())];
    same.short_name = class_name(typeid(one));
    same.names.push_back(cat("'", item.key(), "'"));
  }
  return classes;
}

}  // namespace

std::string place_of_operation(const RunState& run) {
  const std::string part = run.position.doing ? run.position.doing : "";
  const auto classes = modules_by_class(*run.model);
  const torch::nn::Module& root = *run.model;
  const std::string own = c10::demangle(typeid(root).name()) + "::";
  for (const std::string& function : functions_on_stack()) {
    // Such as those of lambdas, which begin with the name of the function.
    if (function.starts_with(own)) break;
    for (const auto& [name, same] : classes) {
      if (!function.starts_with(name + "::")) continue;
      const std::string where = cat(same.names.size() == 1 ? "module " : "one of the modules ",
                                    join_some(same.names, 3, ", "), " (", same.short_name, ")");
      return part.empty() ? where : cat(part, ", ", where);
    }
  }
  return part;
}

}  // namespace fulgur::detail
