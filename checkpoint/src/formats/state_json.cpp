#include "formats/state_json.h"

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "fulgur/core/state/late_number.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "io/hash.h"

namespace fulgur::detail {
namespace {

// Written objects are filled in order, and parsed ones are looked up: each uses the type that is not quadratic for it.
using OrderedJson = nlohmann::ordered_json;
using ReadJson = nlohmann::json;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

[[noreturn]] void bad_state(const std::string& what) { throw CheckpointError("[checkpoint.state] " + what); }

std::string float_word(double value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const auto bits = std::bit_cast<uint64_t>(value);
  return bits == std::bit_cast<uint64_t>(kNan) ? "nan" : hash_text(bits);
}

double float_of_word(const std::string& word) {
  if (word == "nan") return kNan;
  if (word == "inf") return kInfinity;
  if (word == "-inf") return -kInfinity;
  const auto bits = hash_from_text(word);
  if (!bits) bad_state(cat("'", escape_controls(word.substr(0, 40)), "' is not a number."));
  return std::bit_cast<double>(*bits);
}

bool is_word(std::string_view key) { return key == "__tensor__" || key == "__float__" || key == "__map__"; }

std::string below(const std::string& place, std::string_view key) {
  return place.empty() ? std::string(key) : cat(place, ".", key);
}

OrderedJson to_json(const StateTree& tree, const std::string& place, StateTensors& tensors, int depth) {
  if (depth > kMaxStateDepth)
    bad_state(cat("'", escape_controls(place.substr(0, 80)), "…' is nested deeper than ", kMaxStateDepth, " levels."));
  if (const auto number = read_late_number(tree)) return to_json(*number, place, tensors, depth);
  return std::visit(
      [&](const auto& value) -> OrderedJson {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::nullptr_t>) {
          return nullptr;
        } else if constexpr (std::is_same_v<T, Tensor>) {
          if (!value.defined()) return nullptr;
          return OrderedJson{{"__tensor__", tensors.add(place, value)}};
        } else if constexpr (std::is_same_v<T, double>) {
          if (std::isfinite(value)) return value;
          return OrderedJson{{"__float__", float_word(value)}};
        } else if constexpr (std::is_same_v<T, StateTree::List>) {
          OrderedJson list = OrderedJson::array();
          for (size_t i = 0; i < value.size(); ++i)
            list.push_back(to_json(value[i], below(place, std::to_string(i)), tensors, depth + 1));
          return list;
        } else if constexpr (std::is_same_v<T, StateTree::Map>) {
          OrderedJson map = OrderedJson::object();
          // Directly into the underlying vector: looking each key up would be quadratic.
          for (const auto& [key, item] : value)
            map.get_ref<OrderedJson::object_t&>().emplace_back(key,
                                                               to_json(item, below(place, key), tensors, depth + 1));
          if (looks_like_a_word(value)) return OrderedJson{{"__map__", std::move(map)}};
          return map;
        } else if constexpr (std::is_same_v<T, std::string>) {
          if (!is_utf8(value)) bad_state(cat("the text '", escape_controls(place), "' is not UTF-8."));
          return value;
        } else {
          return value;
        }
      },
      tree.variant());
}

StateTree::Map map_from_json(const ReadJson& json, const TensorMap& tensors, int depth);

StateTree from_json(const ReadJson& json, const TensorMap& tensors, int depth) {
  if (depth > 2 * kMaxStateDepth + 2) bad_state("it is nested too deeply.");
  switch (json.type()) {
    case ReadJson::value_t::null:
      return nullptr;
    case ReadJson::value_t::boolean:
      return json.get<bool>();
    case ReadJson::value_t::number_integer:
      return json.get<int64_t>();
    case ReadJson::value_t::number_unsigned: {
      const auto value = json.get<uint64_t>();
      if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return static_cast<int64_t>(value);
      return value;
    }
    case ReadJson::value_t::number_float:
      return json.get<double>();
    case ReadJson::value_t::string:
      return json.get<std::string>();
    case ReadJson::value_t::array: {
      StateTree::List list;
      for (const ReadJson& item : json) list.push_back(from_json(item, tensors, depth + 1));
      return list;
    }
    case ReadJson::value_t::object: {
      if (json.size() != 1 || !is_word(json.begin().key())) return map_from_json(json, tensors, depth + 1);
      const ReadJson& value = json.begin().value();
      if (json.begin().key() == "__map__") return map_from_json(value, tensors, depth + 2);
      const std::string word = value.is_string() ? value.get<std::string>() : "";
      if (json.begin().key() == "__float__") return float_of_word(word);
      const auto found = tensors.find(word);
      if (found == tensors.end()) bad_state(cat("the tensor '", escape_controls(word.substr(0, 200)), "' is missing."));
      return found->second;
    }
    default:
      bad_state("a value of an unknown kind.");
  }
}

StateTree::Map map_from_json(const ReadJson& json, const TensorMap& tensors, int depth) {
  if (!json.is_object()) bad_state("a map is not an object.");
  StateTree::Map map;
  for (const auto& [key, item] : json.items()) map.emplace(key, from_json(item, tensors, depth));
  return map;
}

}  // namespace

bool looks_like_a_word(const StateTree::Map& map) { return map.size() == 1 && is_word(map.begin()->first); }

std::string StateTensors::add(const std::string& place, const Tensor& tensor) {
  // A name reserved by the format, or an empty one, would not survive a round trip.
  const std::string wanted = place.empty() || place == "__metadata__" ? cat("(", place, ")") : place;
  std::string name = wanted;
  for (int n = 2; !names_.insert(name).second; ++n) name = cat(wanted, "#", n);
  tensors_.emplace_back(name, tensor);
  return name;
}

std::string encode_state(const StateTree& tree, const std::string& place, StateTensors& tensors) {
  try {
    return to_json(tree, place, tensors, 0).dump();
  } catch (const OrderedJson::exception&) {
    bad_state(cat("a key in '", escape_controls(place), "' is not UTF-8."));
  }
}

DecodedState decode_state(std::string_view text, CheckpointParts parts, const TensorMap& optimizer_tensors,
                          const TensorMap& state_tensors) {
  // Deep nesting is rejected while parsing: recursion comes later.
  const auto shallow = [](int depth, ReadJson::parse_event_t, ReadJson&) {
    if (depth > 2 * kMaxStateDepth + 4) bad_state("it is nested too deeply.");
    return true;
  };
  const ReadJson json = ReadJson::parse(text.begin(), text.end(), shallow, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object() || !json.contains("state") || !json.contains("optimizers"))
    bad_state("it is not the state of a checkpoint.");
  DecodedState decoded{nullptr, from_json(json["state"], state_tensors, 0)};
  if (parts == CheckpointParts::all) decoded.optimizers = from_json(json["optimizers"], optimizer_tensors, 0);
  return decoded;
}

}  // namespace fulgur::detail
