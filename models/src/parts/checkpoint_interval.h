#pragma once

#include <cstdint>
#include <string>

namespace fulgur::detail {

/// The option `activation_checkpointing` of a model: 0 for none, 1 for all, N for every_N. Throws a ConfigError that
/// names the component for any other text.
int64_t checkpoint_interval(const std::string& text, const char* component);

/// Whether a block is the first of every `interval` blocks.
inline bool is_checkpointed(size_t block, int64_t interval) {
  return interval > 0 && static_cast<int64_t>(block) % interval == 0;
}

inline constexpr const char* kCheckpointingDoc =
    "Blocks whose activations are recomputed in backward instead of stored: none, all, or every_N (every_2): the first "
    "of every N.";

}  // namespace fulgur::detail
