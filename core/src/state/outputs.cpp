#include "fulgur/core/state/outputs.h"

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

bool Outputs::contains(std::string_view name) const {
  for (const auto& [key, value] : entries_)
    if (key == name) return true;
  return false;
}

const Tensor& Outputs::operator[](std::string_view name) const {
  std::vector<std::string> names;
  for (const auto& [key, value] : entries_) {
    if (key == name) return value;
    names.push_back(key);
  }
  throw Error(cat("[core.Outputs] there is no output named '", name, "'; the step returned: ", join(names), "."));
}

Outputs Outputs::detach() const {
  Outputs copy;
  for (const auto& [key, value] : entries_)
    copy.add(key, value.defined() ? value.tensor_data() : value);  // detach() without the dispatcher
  return copy;
}

}  // namespace fulgur
