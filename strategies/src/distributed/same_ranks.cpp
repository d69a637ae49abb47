#include "distributed/same_ranks.h"

#include <ATen/ops/stack.h>

#include <bit>
#include <string>

#include "fulgur/core/state/split_mix.h"
#include "fulgur/core/state/state_bytes.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

Tensor bits_of(const Tensor& value) {
  const at::ScalarType bits = value.element_size() == 8   ? at::kLong
                              : value.element_size() == 4 ? at::kInt
                              : value.element_size() == 2 ? at::kShort
                                                          : at::kChar;
  return value.contiguous().view(bits);
}

Tensor checksum(const Tensor& value) { return bits_of(value).sum(at::kLong); }

namespace {

constexpr size_t kMostDifferences = 10;

/// One number of a rank, and its meaning.
struct Fact {
  std::string name;
  int64_t number;    ///< the same on all ranks
  std::string text;  ///< for display; empty: the number means nothing to users
};

std::vector<Fact> facts_of(const RankState& state, Collectives& collectives) {
  std::vector<Fact> facts{{"the number of steps", state.global_step, std::to_string(state.global_step)}};
  for (size_t i = 0; i < state.optimizers.size(); ++i) {
    const Optimizer& optimizer = *state.optimizers[i];
    const std::string name = cat("optimizer ", i, " (", optimizer.name(), ")");
    if (i < state.optimizer_steps.size()) {
      const int64_t steps = state.optimizer_steps[i];
      facts.push_back({cat("the steps of ", name), steps, std::to_string(steps)});
    }
    for (size_t g = 0; g < optimizer.groups().size(); ++g) {
      const double lr = optimizer.groups()[g].lr;
      facts.push_back(
          {cat("the learning rate of ", name, ", group ", g), std::bit_cast<int64_t>(lr), format_double(lr)});
    }
  }
  std::vector<NamedParameter> parameters;
  if (state.has_whole_weights) parameters = unique_parameters(state.module);
  std::vector<Tensor> sums;
  for (const auto& [name, value] : parameters) sums.push_back(checksum(value.detach()));
  if (sums.empty()) return facts;
  const Tensor all = at::stack(sums).cpu();
  collectives.check();  // after a failed exchange, weights are undefined
  for (size_t i = 0; i < parameters.size(); ++i)
    facts.push_back({cat("the weights '", parameters[i].name, "'"), all.const_data_ptr<int64_t>()[i], ""});
  return facts;
}

int64_t hash_of(const std::vector<Fact>& facts) {
  uint64_t hash = facts.size();
  for (const Fact& fact : facts) hash = mix_bits(hash ^ static_cast<uint64_t>(fact.number)) + 0x9e3779b97f4a7c15u;
  return static_cast<int64_t>(hash);
}

std::string pack(const std::vector<Fact>& facts) {
  StateTree::List list;
  for (const Fact& fact : facts)
    list.push_back(StateTree::map({{"name", fact.name}, {"number", fact.number}, {"text", fact.text}}));
  return pack_state(list);
}

// `the weights 'a' (rank 1)`, or with values `the learning rate of … (0.1 on rank 0, 0.2 on rank 1)`.
std::vector<std::string> differences_of(const std::vector<std::string>& packed) {
  std::vector<StateTree> ranks;
  for (const std::string& text : packed) ranks.push_back(unpack_state(text));
  const auto& first = ranks.front().as_list();
  std::vector<std::string> differences;
  for (size_t i = 0; i < first.size(); ++i) {
    const std::string& text = first[i].at("text").as_string();
    std::vector<std::string> others;
    for (size_t rank = 1; rank < ranks.size(); ++rank) {
      const auto& list = ranks[rank].as_list();
      if (i < list.size() && list[i].at("number").as_int() == first[i].at("number").as_int()) continue;
      const std::string there = i < list.size() ? list[i].at("text").as_string() : std::string("nothing");
      others.push_back(text.empty() ? cat("rank ", static_cast<int64_t>(rank))
                                    : cat(there, " on rank ", static_cast<int64_t>(rank)));
    }
    if (others.empty()) continue;
    const std::string& name = first[i].at("name").as_string();
    differences.push_back(text.empty() ? cat(name, " of ", join(others))
                                       : cat(name, ": ", text, " on rank 0, ", join(others)));
  }
  return differences;
}

}  // namespace

void check_same_ranks(Collectives& collectives, const RankState& state) {
  const std::vector<Fact> facts = facts_of(state, collectives);
  if (same_on_all_ranks(collectives, {hash_of(facts)})) return;
  const std::vector<std::string> differences = differences_of(collectives.gather_text(pack(facts)));
  throw DistributedError(
      cat("[strategies.ddp] all ranks must have the same weights, learning rates and numbers of steps; after step ",
          state.global_step, " these differ from rank 0's: ", join_some(differences, kMostDifferences),
          ". Causes: a step on gradients that were not exchanged (no_sync() without sync_gradients(optimizer)); a "
          "step, a learning rate or weights that change on some ranks only, depending on the rank or on a value that "
          "differs between ranks (all_reduce it first); a machine with a hardware error. Resume from an "
          "earlier checkpoint. Different kinds of machines may legitimately differ in the last bits: "
          "trainer.strategy.init_args.check_replicas_every: -1 disables this check."));
}

}  // namespace fulgur::detail
