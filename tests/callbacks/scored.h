#pragma once

#include <algorithm>
#include <functional>
#include <set>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "trainer/boring.h"

namespace fulgur::test {

/// Logs the scores that it is given: one per validation, or, if there is none, per training epoch.
struct Scored : SelfPlanned {
  std::vector<double> scores;
  bool in_training;
  explicit Scored(std::vector<double> list, bool in_training_ = false)
      : scores(std::move(list)), in_training(in_training_) {}
  double score(int64_t index) const { return scores.at(static_cast<size_t>(index)); }
  Outputs validation_step(const Batch&, int64_t, int64_t) override { return {}; }
  void on_validation_epoch_end() override {
    if (!in_training) log("score", run().sanity_checking() ? -1000 : score(run().progress().validations));
  }
  void on_train_epoch_end() override {
    if (in_training) log("score", score(current_epoch()));
  }
};

/// Lines of the log while it lives, warnings among them.
class LogLines {
 public:
  LogLines() {
    log::reset_warnings();
    log::set_sink(
        [](log::Level, const std::string& line, void* user) { static_cast<LogLines*>(user)->lines.push_back(line); },
        this);
  }
  ~LogLines() { log::set_sink(nullptr, nullptr); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  size_t count(std::string_view part) const {
    return static_cast<size_t>(std::count_if(
        lines.begin(), lines.end(), [&](const std::string& line) { return line.find(part) != std::string::npos; }));
  }
  std::vector<std::string> lines;
};

}  // namespace fulgur::test
