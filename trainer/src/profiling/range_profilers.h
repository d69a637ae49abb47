#pragma once

#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <optional>

#include "fulgur/core/contracts/profiler.h"
#include "fulgur/core/options/options.h"
#include "profiling/action_ranges.h"

namespace fulgur::detail {

/// Marks each action of a run, and each operation in it, as a range for an external tool, through LibTorch's hooks for
/// it. Without such a tool the ranges cost some tenths of a microsecond each.
class RangeProfiler : public Profiler {
 public:
  struct Options {
    bool operators = true;
    void fields(Fields& f);
  };
  ~RangeProfiler() override;
  void start(const ProfiledRun& run) override;
  void begin(const ProfiledAction& action) override { ranges_.begin(action.name, is_marking_); }
  void end(const ProfiledAction&) noexcept override { ranges_.end(); }
  std::optional<Profile> stop() override;

 protected:
  using State = torch::profiler::impl::ProfilerState;
  RangeProfiler(Options options, State state) : options_(options), state_(state) {}

 private:
  /// Throws a ConfigError if LibTorch has no hooks for the tool.
  virtual void require_hooks() const = 0;
  Options options_;
  State state_;
  ActionRanges ranges_;
  bool is_marking_ = false;
};

/// `trainer.profiler: nvtx`: ranges for NVIDIA's tools (`nsys profile trainer fit …`).
class NvtxProfiler final : public RangeProfiler {
 public:
  explicit NvtxProfiler(Options options) : RangeProfiler(options, State::NVTX) {}

 private:
  void require_hooks() const override;
};

/// `trainer.profiler: itt`: ranges for Intel's tools (`vtune -collect hotspots trainer fit …`).
class IttProfiler final : public RangeProfiler {
 public:
  explicit IttProfiler(Options options) : RangeProfiler(options, State::ITT) {}

 private:
  void require_hooks() const override;
};

}  // namespace fulgur::detail
