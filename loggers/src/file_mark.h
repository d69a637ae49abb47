#pragma once

#include <cstdint>
#include <string_view>

#include "fulgur/core/state_tree.h"

namespace fulgur {

/// A text up to some byte, by its length and CRC-32C: how much of a logger's file a checkpoint has.
struct FileMark {
  uint64_t bytes = 0;
  uint32_t crc = 0;

  static FileMark of(std::string_view text);
  /// `more` follows.
  void add(std::string_view more);
  /// True if `text` begins with the text that this is the mark of.
  bool begins(std::string_view text) const;
  /// Writes itself into `state`, and reads itself from there.
  void write(StateTree& state) const;
  static FileMark read(const StateTree& state);

  bool operator==(const FileMark&) const = default;
};

}  // namespace fulgur
