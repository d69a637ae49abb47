#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/profiler.h"
#include "fulgur/core/options/options.h"
#include "profiling/memory_watch.h"

namespace fulgur::detail {

/// `trainer.profiler: memory`: the most bytes that tensors took in each action of a run, and in each layer.
class MemoryProfiler final : public Profiler {
 public:
  struct Options {
    bool layers = true;
    void fields(Fields& f);
  };
  /// The peak of an action on a device.
  struct Row {
    std::string action, device;
    int64_t calls = 0;
    MemoryLevel peak;
    int64_t kept = 0;  ///< bytes that the calls have allocated and not released, or, if negative, released
  };

  explicit MemoryProfiler(Options options) : options_(options) {}
  void start(const ProfiledRun& run) override;
  void begin(const ProfiledAction& action) override;
  void end(const ProfiledAction& action) noexcept override;
  void step_done() override;
  std::optional<Profile> stop() override;

 private:
  struct OnDevice {
    MemoryLevel peak, before;
  };
  struct Open {
    MemoryWatch::Phase outer;         // the phase around the action
    std::vector<OnDevice> on_device;  // in the order of MemoryWatch::devices
  };
  struct Counted {
    std::string action;
    int64_t calls = 0;
    std::vector<OnDevice> on_device;  // `before` is what was kept
  };
  void take_peaks();
  std::vector<Row> rows() const;

  Options options_;
  ProfiledRun run_;
  std::shared_ptr<MemoryWatch> watch_;
  std::unique_ptr<InstalledMemoryWatch> installed_;
  MemoryWatch::Phase phase_ = MemoryWatch::Phase::other;
  std::vector<Open> open_;
  std::vector<Counted> counted_;  // by the index of the action
};

/// The tables of the profiler; the largest peak first. Bytes in MiB.
std::string memory_table(const std::vector<MemoryProfiler::Row>& rows, const std::vector<MemoryWatch::Layer>& layers);

}  // namespace fulgur::detail
