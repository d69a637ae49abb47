#include "cluster/environment_values.h"

#include <charconv>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

std::optional<std::string> EnvironmentValues::text(const std::string& name) const {
  const auto found = environment_.find(name);
  return found == environment_.end() || found->second.empty() ? std::nullopt : std::optional(found->second);
}

std::string EnvironmentValues::need_text(const std::string& name) const {
  const std::optional<std::string> value = text(name);
  if (!value) fail(cat(name, " is not set"));
  return *value;
}

std::optional<int64_t> EnvironmentValues::integer(const std::string& name, int64_t low, int64_t high) const {
  const std::optional<std::string> value = text(name);
  if (!value) return std::nullopt;
  int64_t number = 0;
  const char* const end = value->data() + value->size();
  const auto [stop, error] = std::from_chars(value->data(), end, number);
  if (stop != end || error == std::errc::invalid_argument)
    fail(cat(name, " must be a whole number; it is '", *value, "'"));
  if (error != std::errc() || number < low || number > high)
    fail(cat(name, " must be from ", low, " to ", high, "; it is ", *value));
  return number;
}

int64_t EnvironmentValues::need_integer(const std::string& name, int64_t low, int64_t high) const {
  need_text(name);
  return *integer(name, low, high);
}

std::optional<std::string> EnvironmentValues::first_of(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    if (has(name)) return name;
  }
  return std::nullopt;
}

void EnvironmentValues::fail(std::string_view what) const {
  throw DistributedError(cat("[strategies.cluster_environment] ", source_, ": ", what, ". ", advice_));
}

void check_place(const EnvironmentValues& values, const ProcessPlace& place, const PlaceNames& names, Layout layout) {
  const auto below = [&](const std::string& name, int64_t value, const std::string& limit_name, int64_t limit) {
    if (value >= limit) values.fail(cat(name, " must be below ", limit_name, "; they are ", value, " and ", limit));
  };
  below(names.rank, place.rank, names.world_size, place.world_size);
  below(names.local_rank, place.local_rank, names.local_world_size, place.local_world_size);
  below(names.node_rank, place.node_rank, names.num_nodes, place.num_nodes);
  // Every other node has at least one process.
  if (place.local_world_size > place.world_size - (place.num_nodes - 1))
    values.fail(cat(names.local_world_size, " is ", place.local_world_size, " and ", names.num_nodes, " is ",
                    place.num_nodes, "; ", names.world_size, " ", place.world_size, " is too small for that"));
  if (place.num_nodes == 1 && place.local_world_size != place.world_size)
    values.fail(cat("with one node ", names.local_world_size, " must be ", names.world_size, "; they are ",
                    place.local_world_size, " and ", place.world_size));
  if (place.local_rank > place.rank)
    values.fail(
        cat(names.local_rank, " cannot be above ", names.rank, "; they are ", place.local_rank, " and ", place.rank));
  if (layout != Layout::even_blocks) return;
  if (place.num_nodes * place.local_world_size != place.world_size)
    values.fail(cat(names.world_size, " must be ", names.num_nodes, " times ", names.local_world_size, "; they are ",
                    place.world_size, ", ", place.num_nodes, " and ", place.local_world_size));
  const int64_t expected = place.node_rank * place.local_world_size + place.local_rank;
  if (place.rank != expected)
    values.fail(cat(names.rank, " must count node by node: ", names.node_rank, " ", place.node_rank, " and ",
                    names.local_rank, " ", place.local_rank, " of ", place.local_world_size, " give ", expected,
                    "; it is ", place.rank));
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

}  // namespace fulgur::detail
