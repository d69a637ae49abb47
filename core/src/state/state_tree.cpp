#include "fulgur/core/state/state_tree.h"

#include <limits>

#include "fulgur/core/state/late_number.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

Stateful::~Stateful() = default;

std::string StateTree::type_name() const {
  static constexpr const char* kNames[] = {"null",  "tensor", "bool", "int", "unsigned int",
                                           "float", "string", "list", "map"};
  return kNames[value_.index()];
}

template <class T>
const T& StateTree::get(const char* wanted) const {
  if (const T* value = std::get_if<T>(&value_)) return *value;
  throw CheckpointError(cat("[core.StateTree] expected ", wanted, ", got ", type_name(), "."));
}

StateTree& StateTree::operator[](std::string_view key) {
  Map& map = as_map();
  auto found = map.find(key);
  if (found == map.end()) found = map.emplace(std::string(key), StateTree()).first;
  return found->second;
}

StateTree StateTree::at(std::string_view key) && { return std::as_const(*this).at(key); }
const StateTree& StateTree::at(std::string_view key) const& {
  const Map& map = as_map();
  const auto found = map.find(key);
  if (found == map.end()) throw CheckpointError(cat("[core.StateTree] there is no entry '", key, "' in the state."));
  return found->second;
}

bool StateTree::contains(std::string_view key) const {
  const Map* map = std::get_if<Map>(&value_);
  return map != nullptr && map->find(key) != map->end();
}

const Tensor& StateTree::tensor() const& { return get<Tensor>("a tensor"); }
Tensor StateTree::tensor() && { return std::as_const(*this).tensor(); }

int64_t StateTree::as_int() const {
  if (const auto number = read_late_number(*this)) return number->as_int();
  if (const auto* u = std::get_if<uint64_t>(&value_);
      u && *u <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return static_cast<int64_t>(*u);
  return get<int64_t>("an integer");
}

uint64_t StateTree::as_uint() const {
  if (const auto number = read_late_number(*this)) return number->as_uint();
  if (const auto* i = std::get_if<int64_t>(&value_); i && *i >= 0) return static_cast<uint64_t>(*i);
  return get<uint64_t>("an unsigned integer");
}

double StateTree::as_double() const {
  if (const auto number = read_late_number(*this)) return number->as_double();
  if (const auto* i = std::get_if<int64_t>(&value_)) return static_cast<double>(*i);
  return get<double>("a number");
}

bool StateTree::as_bool() const {
  if (const auto number = read_late_number(*this)) return number->as_bool();
  return get<bool>("true or false");
}
const std::string& StateTree::as_string() const& { return get<std::string>("a string"); }
std::string StateTree::as_string() && { return std::as_const(*this).as_string(); }
const StateTree::Map& StateTree::as_map() const& { return get<Map>("a map"); }
StateTree::Map& StateTree::as_map() & { return const_cast<Map&>(std::as_const(*this).as_map()); }
StateTree::Map StateTree::as_map() && { return std::move(as_map()); }
const StateTree::List& StateTree::as_list() const& { return get<List>("a list"); }
StateTree::List& StateTree::as_list() & { return const_cast<List&>(std::as_const(*this).as_list()); }
StateTree::List StateTree::as_list() && { return std::move(as_list()); }

}  // namespace fulgur
