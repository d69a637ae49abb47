#pragma once

#include <cstdint>
#include <string_view>

#include "fulgur/core/state/state_tree.h"

namespace fulgur {

/// A prefix of a text, identified by its length and CRC-32C: how much of a logger's file belongs to a checkpoint.
struct FileMark {
  uint64_t bytes = 0;
  uint32_t crc = 0;

  static FileMark of(std::string_view text);
  /// `more` follows.
  void add(std::string_view more);
  /// True if `text` starts with the text whose mark this is.
  bool begins(std::string_view text) const;
  /// Writes itself to `state`, and reads itself back.
  void write(StateTree& state) const;
  static FileMark read(const StateTree& state);

  bool operator==(const FileMark&) const = default;
};

}  // namespace fulgur
