#pragma once

#include <sys/types.h>

#include <filesystem>

#include "child_start.h"

namespace fulgur::test {

/// True if `start` gives the same process by fork as by exec: its environment differs from that of this process only in
/// variables that nothing reads before main().
bool can_be_forked(const ChildStart& start);

/// Starts `trainer` by a fork of the server (fork_server.cpp), which begins with the first call; `file` is for its use.
/// The process is a child of this one. Safe to call from any thread. Throws if the server cannot be used.
pid_t start_forked(const ChildStart& start, const std::filesystem::path& file);

}  // namespace fulgur::test
