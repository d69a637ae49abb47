#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "fulgur/core/contracts/profiler.h"
#include "fulgur/core/options/options.h"
#include "profiling/action_ranges.h"
#include "profiling/step_schedule.h"

namespace fulgur::detail {

/// `trainer.profiler: kineto`: LibTorch's profiler, which records each operation, each kernel of a GPU, each exchange
/// between ranks, and the actions of the run. Every rank writes `trace_rank<R>_cycle<C>.json` into the run folder for
/// each cycle of its schedule, or under the next free name (`free_profile_path`). What is recorded when the run ends is
/// written too.
class KinetoProfiler final : public Profiler {
 public:
  struct Options {
    int64_t skip_first = 0, wait = 9, warmup = 1, active = 3, repeat = 1;
    bool record_shapes = true, profile_memory = false;
    void fields(Fields& f);
  };
  explicit KinetoProfiler(Options options);
  ~KinetoProfiler() override;
  void start(const ProfiledRun& run) override;
  void begin(const ProfiledAction& action) override;
  void end(const ProfiledAction& action) noexcept override;
  void step_done() override;
  std::optional<Profile> stop() override;

 private:
  enum class State { idle, prepared, recording, refused };
  void enter_step();
  void prepare();
  void record();
  void end_step_range();
  /// Ends the recording, if there is one, and writes the file of the cycle that contains `last_step`.
  void finish(int64_t last_step);

  Options options_;
  StepSchedule schedule_;
  ProfiledRun run_;
  State state_ = State::idle;
  int64_t step_ = 0;
  bool has_work_ = false;  // the recording contains a part of a step
  ActionRanges ranges_;
  std::string step_name_;
  std::optional<at::RecordFunction> step_range_;
};

}  // namespace fulgur::detail
