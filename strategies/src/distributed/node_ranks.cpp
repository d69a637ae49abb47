#include "distributed/node_ranks.h"

#include <algorithm>
#include <map>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

struct Rank {
  int64_t local_rank = 0, local_world_size = 0;
  std::string host;
};

Rank parse(const std::string& word) {
  const size_t first = word.find(' '), second = word.find(' ', first + 1);
  return {std::stoll(word), std::stoll(word.substr(first + 1)), word.substr(second + 1)};
}

}  // namespace

std::string node_identity(const std::string& host, const ProcessPlace& place) {
  return cat(place.local_rank, " ", place.local_world_size, " ", host);
}

ProcessPlace number_nodes(ProcessPlace place, const std::vector<std::string>& words) {
  std::vector<std::string> hosts;  // in the order of their first ranks
  std::map<std::string, std::vector<int64_t>> ranks_of;
  std::vector<Rank> ranks;
  for (size_t rank = 0; rank < words.size(); ++rank) {
    const Rank& said = ranks.emplace_back(parse(words[rank]));
    auto& node = ranks_of[said.host];
    if (node.empty()) hosts.push_back(said.host);
    node.push_back(static_cast<int64_t>(rank));
  }
  for (const auto& [host, node] : ranks_of) {
    std::vector<bool> taken(node.size(), false);
    for (const int64_t rank : node) {
      const Rank& said = ranks[static_cast<size_t>(rank)];
      const auto local = static_cast<size_t>(said.local_rank);
      if (said.local_world_size != static_cast<int64_t>(node.size()) || local >= node.size() || taken[local])
        throw DistributedError(cat(
            "[strategies.node_numbers] the ranks of a node must count from 0 to one below their number; ",
            static_cast<int64_t>(node.size()), " ranks run on '", host, "', and rank ", rank, " was given local rank ",
            said.local_rank, " of ", said.local_world_size,
            " there. Do two machines have the same name (hostname), or did two commands start the processes of one?"));
      taken[local] = true;
    }
  }
  place.num_nodes = static_cast<int64_t>(hosts.size());
  place.node_rank = std::ranges::find(hosts, ranks[static_cast<size_t>(place.rank)].host) - hosts.begin();
  return place;
}

}  // namespace fulgur::detail
