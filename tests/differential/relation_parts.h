#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>

#include "forked.h"
#include "fulgur/core/state/split_mix.h"
#include "relations.h"

namespace fulgur::test {

inline const Verdict kNoMatter{.kind = Verdict::Kind::no_matter};

/// Random numbers of a plan's relation: the same for the same plan.
SplitMix64 random_of(const Plan& plan, uint64_t relation);

Plan one_of(SplitMix64& random, std::initializer_list<Plan> choices);

/// The end of a text.
std::string tail(const std::string& text);

/// Nullopt if all ranks came to their end.
std::optional<Verdict> trouble(const std::string& what, const Ended& ended);

/// Fewer batches of a rank: what was a limit or an interval inside an epoch may be none now, and is refused.
Verdict allowed(const Verdict& of_changed_plan);

Verdict compared(const std::string& what, const std::filesystem::path& first, const std::filesystem::path& second,
                 double tolerance = 0, const std::set<std::string>& without = {});

/// Names of the checkpoints of a run, without links.
std::set<std::string> checkpoints_in(const std::filesystem::path& folder);

/// Compares these names.
Verdict compared_checkpoints(const std::string& what, const std::filesystem::path& first,
                             const std::filesystem::path& second);

/// Leaves out what depends on the time: ranks agree on it about once a second.
void without_times(Plan& plan);

/// Leaves out the limit of batches, and an interval that follows from one.
void without_limit(Plan& plan);

/// Leaves out callbacks of that class.
void without_callback(Plan& plan, const std::string& class_path);

/// What several ranks cannot do left out; `even`: training samples such that each step of `ranks` ranks has the samples
/// of a step of one.
Plan shared_out(Plan plan, int64_t ranks, bool even);

/// Whether `ranks` ranks, of which each has one of `shares` shares of a batch, compute what one rank does.
Verdict shares_equal_one(const Plan& given, int64_t shares, int64_t ranks, const std::filesystem::path& folder);

/// A plan whose ranks divide the layers and what they keep.
struct MeshPlan {
  Plan plan;
  int64_t shares, ranks;
};
/// Axes that `random` chooses, and the plan without what a mesh cannot do.
MeshPlan on_mesh(const Plan& given, SplitMix64& random);

/// How the events of a config end the process (`SIGKILL`).
std::string way_of(const Plan& config);

/// Whether the process was ended by what its events say.
bool ended_by(const Plan& config, const Ended& ended);

}  // namespace fulgur::test
