#pragma once

#include <string>
#include <vector>

#include "fulgur/core/text/log.h"

namespace fulgur::test {

/// Collects the warnings of its lifetime, each id again.
class CollectedWarnings {
 public:
  CollectedWarnings() {
    log::reset_warnings();
    log::set_sink(&CollectedWarnings::take, this);
  }
  ~CollectedWarnings() { log::set_sink(nullptr, nullptr); }
  CollectedWarnings(const CollectedWarnings&) = delete;
  CollectedWarnings& operator=(const CollectedWarnings&) = delete;
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  static void take(log::Level level, const std::string& line, void* self) {
    if (level == log::Level::warning) static_cast<CollectedWarnings*>(self)->lines_.push_back(line);
  }
  std::vector<std::string> lines_;
};

}  // namespace fulgur::test
