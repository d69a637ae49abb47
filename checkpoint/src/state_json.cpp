#include "state_json.h"

#include <cmath>
#include <limits>

#include "fulgur/core/errors.h"
#include "fulgur/core/text.h"

namespace fulgur::detail {

using Json = nlohmann::ordered_json;

Json state_to_json(const StateTree& tree, const std::string& path, NamedTensors& tensors) {
  return std::visit(
      [&](const auto& value) -> Json {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::nullptr_t>) {
          return nullptr;
        } else if constexpr (std::is_same_v<T, Tensor>) {
          if (!value.defined()) return nullptr;
          tensors.emplace_back(path, value);
          return Json{{"__tensor__", path}};
        } else if constexpr (std::is_same_v<T, double>) {
          if (std::isfinite(value)) return value;
          return Json{{"__float__", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"}};
        } else if constexpr (std::is_same_v<T, StateTree::List>) {
          Json list = Json::array();
          for (size_t i = 0; i < value.size(); ++i) list.push_back(state_to_json(value[i], cat(path, ".", i), tensors));
          return list;
        } else if constexpr (std::is_same_v<T, StateTree::Map>) {
          Json map = Json::object();
          for (const auto& [key, item] : value) map[key] = state_to_json(item, path.empty() ? key : cat(path, ".", key), tensors);
          return map;
        } else {
          return value;
        }
      },
      tree.variant());
}

StateTree state_from_json(const Json& json, const std::map<std::string, Tensor>& tensors) {
  switch (json.type()) {
    case Json::value_t::null: return nullptr;
    case Json::value_t::boolean: return json.get<bool>();
    case Json::value_t::number_integer: return json.get<int64_t>();
    case Json::value_t::number_unsigned: {
      const auto value = json.get<uint64_t>();
      if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return static_cast<int64_t>(value);
      return value;
    }
    case Json::value_t::number_float: return json.get<double>();
    case Json::value_t::string: return json.get<std::string>();
    case Json::value_t::array: {
      StateTree::List list;
      for (const Json& item : json) list.push_back(state_from_json(item, tensors));
      return list;
    }
    case Json::value_t::object: {
      if (json.size() == 1 && json.contains("__tensor__") && json["__tensor__"].is_string()) {
        const auto found = tensors.find(json["__tensor__"].get<std::string>());
        if (found == tensors.end())
          throw CheckpointError(cat("[checkpoint.state] the tensor '", json["__tensor__"].get<std::string>(), "' is missing."));
        return found->second;
      }
      if (json.size() == 1 && json.contains("__float__") && json["__float__"].is_string()) {
        const auto text = json["__float__"].get<std::string>();
        if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
        return text == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
      }
      StateTree::Map map;
      for (const auto& [key, item] : json.items()) map.emplace(key, state_from_json(item, tensors));
      return map;
    }
    default: throw CheckpointError("[checkpoint.state] a value of an unknown kind.");
  }
}

}  // namespace fulgur::detail
