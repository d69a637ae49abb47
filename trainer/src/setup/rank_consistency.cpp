#include "setup/rank_consistency.h"

#include "fulgur/core/options/yaml_writer.h"
#include "fulgur/core/state/state_bytes.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/text.h"
#include "logging/rank_numbers.h"
#include "run/services.h"

namespace fulgur::detail {
namespace {

void add_leaves(const ConfigNode& node, const std::string& path, Facts& facts) {
  if (node.is_map()) {
    for (const auto& [key, value] : node.entries()) add_leaves(value, path.empty() ? key : cat(path, ".", key), facts);
  } else {
    facts[cat("config ", path)] = node.is_list() ? to_yaml(node) : node.text();
  }
}

Facts facts_of(const RunState& run) {
  Facts facts;
  facts["version of Fulgur"] = fulgur_version();
  if (run.components.config) add_leaves(*run.components.config, "", facts);
  for (const auto& [name, value] : unique_parameters(*run.model))
    facts[cat("parameter ", name)] =
        cat(c10::toString(value.scalar_type()), " ", shape_text(value.sizes()), value.requires_grad() ? "" : ", frozen",
            stored_values(value) ? ", computed later" : "");
  for (const auto& item : run.model->named_buffers())
    if (item.value().defined())
      facts[cat("buffer ", item.key())] =
          cat(c10::toString(item.value().scalar_type()), " ", shape_text(item.value().sizes()));
  return facts;
}

StateTree pack(const Facts& facts) {
  StateTree tree;
  for (const auto& [name, value] : facts) tree[name] = value;
  return tree;
}

}  // namespace

void check_same_on_all_ranks(RunState& run) {
  if (run.world_size() > 1) check_same_on_all_ranks(run.collectives(), facts_of(run));
}

void check_same_on_all_ranks(Collectives& collectives, const Facts& facts) {
  const std::string own = pack_state(pack(facts));
  // The facts themselves are sent only if there is a difference.
  if (same_on_all_ranks(collectives, {hash_number(own)})) return;
  const std::vector<std::string> all = collectives.gather_text(own);
  const StateTree first = unpack_state(all.front());
  std::vector<std::string> differences;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all.front()) continue;
    const StateTree other = unpack_state(all[rank]);
    const auto value = [](const StateTree& tree, const std::string& name) {
      return tree.contains(name) ? cat("'", tree.at(name).as_string(), "'") : std::string("nothing");
    };
    std::map<std::string, bool> names;
    for (const StateTree* tree : {&first, &other})
      for (const auto& [name, unused] : tree->as_map()) names[name] = true;
    for (const auto& [name, unused] : names)
      if (value(first, name) != value(other, name))
        differences.push_back(cat(name, ": ", value(first, name), " on rank 0, ", value(other, name), " on rank ",
                                  static_cast<int64_t>(rank)));
  }
  if (differences.empty()) return;
  throw DistributedError(cat("[trainer.ddp] all ranks must run the same version, config and module. They differ in\n  ",
                             join_some(differences, 10, "\n  "),
                             "\nStart them with the same program, files and options."));
}

}  // namespace fulgur::detail
