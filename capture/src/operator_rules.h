#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "recorded_call.h"

namespace fulgur::detail {

/// Results have memory without values.
bool only_allocates(const c10::OperatorHandle& op);
/// Results have the shape of an argument whose values are not read, or a shape given as numbers.
bool only_fills(const c10::OperatorHandle& op);
/// Results are the same in each step, unless something writes them: nothing is read but metadata and numbers.
bool makes_constants(const RecordedCall& call);
/// Changes only the metadata of its argument, as `t_` and `unsqueeze_` do.
bool changes_metadata(const c10::OperatorHandle& op);
/// Changes which memory its argument has, or how much.
bool changes_memory(const c10::OperatorHandle& op);
/// Reads nothing but metadata, and its result is no tensor: it is not recorded.
bool reads_metadata(const c10::OperatorHandle& op);
/// Whether the kernel for CPU consists of calls of other operations: always, or in general, so that it must be tried.
bool always_composite(const c10::OperatorHandle& op);
bool may_be_composite(const c10::OperatorHandle& op);
/// A result each of whose values is computed from the value at its place in an argument, which the kernel reads first:
/// both can have the same memory if the argument is not used later.
struct ReusableArgument {
  size_t argument, result;
};
std::optional<ReusableArgument> reusable_argument(const c10::OperatorHandle& op);
/// Why the call cannot be replayed.
std::optional<std::string> why_refused(const RecordedCall& call);

}  // namespace fulgur::detail
