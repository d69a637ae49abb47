// What the programs of benchmarks/run.sh share: arguments, clocks, the report.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

inline double read_clock(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// CPU seconds of all threads of this process: they do not count what else the machine does.
inline double cpu_seconds() { return read_clock(CLOCK_PROCESS_CPUTIME_ID); }
inline double wall_seconds() { return read_clock(CLOCK_MONOTONIC); }

/// CPU seconds of a call of `work`, which is repeated for a short time.
template <class Work>
double seconds_of(Work& work) {
  constexpr double kShortTime = 8e-3;
  int64_t calls = 0;
  const double began = cpu_seconds();
  double passed = 0;
  do {
    work();
    ++calls;
    passed = cpu_seconds() - began;
  } while (passed < kShortTime);
  return passed / static_cast<double>(calls);
}

/// `--name value` pairs.
class Arguments {
 public:
  Arguments(int count, char** values) {
    for (int i = 1; i + 1 < count; i += 2) values_[std::string(values[i]).substr(2)] = values[i + 1];
  }
  const std::string& text(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) throw std::runtime_error("--" + name + " is needed");
    return found->second;
  }
  bool has(const std::string& name) const { return values_.contains(name); }
  int64_t number(const std::string& name) const { return std::stoll(text(name)); }

 private:
  std::map<std::string, std::string> values_;
};

/// The conditions of every measurement.
inline void prepare() {
  at::set_num_threads(1);
  at::globalContext().setFlushDenormal(true);
}

/// Stamps between which a piece of work lies; the first one opens it.
class Laps {
 public:
  void stamp() {
    cpu_.push_back(cpu_seconds());
    wall_.push_back(wall_seconds());
  }
  nlohmann::json samples() const {
    auto list = nlohmann::json::array();
    for (size_t i = 1; i < cpu_.size(); ++i)
      list.push_back({{"cpu_s", cpu_[i] - cpu_[i - 1]}, {"wall_s", wall_[i] - wall_[i - 1]}});
    return list;
  }

 private:
  std::vector<double> cpu_, wall_;
};

inline void write_report(const Arguments& arguments, const nlohmann::json& report) {
  std::ofstream(arguments.text("report")) << report.dump() << '\n';
}

/// main() of a program whose work is `body(arguments)`.
template <class Body>
int run(int count, char** values, Body body) {
  try {
    prepare();
    body(Arguments(count, values));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}

}  // namespace bench
