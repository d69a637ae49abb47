#pragma once

#include "fulgur/core/contracts/collectives.h"

namespace fulgur::test {

/// For collectives made up by a test: every rank says what this one says.
class TextsOfOne : public Collectives {
 public:
  std::vector<std::string> gather_text(std::string_view text) override {
    return std::vector<std::string>(static_cast<size_t>(world_size()), std::string(text));
  }
  std::string broadcast_text(std::string_view text, int64_t) override { return std::string(text); }
  std::unique_ptr<PendingReduction> start_max(std::vector<int64_t> values) override {
    return SingleProcessCollectives().start_max(std::move(values));
  }
};

}  // namespace fulgur::test
