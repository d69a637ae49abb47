#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "fulgur/core/text/log.h"

namespace fulgur::test {

/// Counts the messages that contain a text, from any thread, while it exists.
class CountedLines {
 public:
  explicit CountedLines(std::string text) : text_(std::move(text)) {
    log::set_sink(
        [](log::Level, const std::string& line, void* user) {
          auto* const self = static_cast<CountedLines*>(user);
          if (line.find(self->text_) != std::string::npos) ++self->count_;
        },
        this);
  }
  ~CountedLines() { log::set_sink(nullptr, nullptr); }
  CountedLines(const CountedLines&) = delete;
  CountedLines& operator=(const CountedLines&) = delete;
  int count() const { return count_; }

 private:
  const std::string text_;
  std::atomic<int> count_ = 0;
};

}  // namespace fulgur::test
