#pragma once

#include <nccl.h>

#include <string>

namespace fulgur::simulated_nccl {

/// Writes "[simulated nccl] text" to standard error.
void say(const std::string& text);

/// Reports an error, keeps it for ncclGetLastError, and returns `result`.
ncclResult_t fail(ncclResult_t result, const std::string& text);
/// The last message of `fail` in this process.
const char* last_failure();

}  // namespace fulgur::simulated_nccl
