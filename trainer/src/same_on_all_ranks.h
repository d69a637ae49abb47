#pragma once

namespace fulgur::detail {

class Run;

/// Proves, before anything is exchanged that would break otherwise, that every rank has the same version, config and
/// parameters. Throws a DistributedError with what differs, on all ranks. All must call it.
void check_same_on_all_ranks(Run& run);

}  // namespace fulgur::detail
