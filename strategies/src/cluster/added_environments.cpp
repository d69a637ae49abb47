#include "cluster/added_environments.h"

#include <algorithm>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

ClusterEnvironment::~ClusterEnvironment() = default;

namespace {

std::vector<std::string> names_of_added() {
  // A registry is created by its first use, and `list` shows each.
  const std::vector<std::string> kinds = registry_kinds();
  if (std::ranges::find(kinds, ClusterEnvironment::kRegistryKind) == kinds.end()) return {};
  return Registry<ClusterEnvironment>::instance().names();
}

std::optional<ProcessPlace> detect_added(const std::string& name, const Environment& environment) {
  std::optional<ProcessPlace> place = Spec<ClusterEnvironment>(name).create()->detect(environment);
  if (!place) return std::nullopt;
  place->environment = name;
  const auto fails = [&](const std::string& rule) {
    throw DistributedError(cat("[strategies.cluster_environment] ", name, " found a place in which ", rule,
                               "; it is rank ", place->rank, " of ", place->world_size, ", local rank ",
                               place->local_rank, " of ", place->local_world_size, ", node ", place->node_rank, " of ",
                               place->num_nodes, ". Correct ", name, "::detect, or what it reads."));
  };
  if (place->rank < 0 || place->rank >= place->world_size) fails("the rank is not below the world size");
  if (place->local_rank < 0 || place->local_rank >= place->local_world_size)
    fails("the local rank is not below the number of processes of the node");
  if (place->node_rank < 0 || place->node_rank >= place->num_nodes) fails("the node is not below the number of nodes");
  if (place->world_size > 1 && !place->store_is_hosted && (place->main_port < 1 || place->main_port > 65535))
    fails(cat("the port at which the ranks meet is ", place->main_port, ", not 1 to 65535"));
  return place;
}

[[maybe_unused]] const bool set_added_environments = [] {
  detail::added_environments() = {.names = names_of_added, .detect = detect_added};
  return true;
}();

}  // namespace
}  // namespace fulgur
