#pragma once

#include <optional>

#include "operator_rules.h"
#include "recorded_call.h"

namespace fulgur::detail {

/// The overload with the same arguments that writes into given tensors, if CPU has a kernel for it.
std::optional<c10::OperatorHandle> out_overload(const c10::OperatorHandle& op);
/// Whether the overload gives the bits of the functional call, in the memory of its outputs; if `reused`, that of one
/// output is the memory of an argument. Nothing else is changed.
bool out_gives_same_bits(const RecordedCall& call, const c10::OperatorHandle& overload,
                         const std::vector<Tensor>& outputs, const std::optional<ReusableArgument>& reused = {});

}  // namespace fulgur::detail
