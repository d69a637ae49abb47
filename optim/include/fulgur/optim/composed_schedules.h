#pragma once

#include <memory>
#include <vector>

#include "fulgur/core/contracts/lr_scheduler.h"
#include "fulgur/core/contracts/registry.h"

/// Schedules composed of others. A part counts from its own first step, and `auto` in it is the length of its part of
/// the run. Metric, momentum and state are passed to the parts.
namespace fulgur {

/// What schedules that have parts have in common: the state and the metric of their parts.
class FULGUR_API ComposedSchedule : public LrScheduler {
 public:
  bool wants_metric() const override;
  std::optional<MonitorMode> metric_mode() const override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

 protected:
  /// `name` is the name of the class.
  explicit ComposedSchedule(const char* name) : name_(name) {}

 private:
  const char* name_;
};

/// The rate rises to the first rate of `after`, and then follows `after`; without `after` it stays constant. During the
/// warm-up the rate is that first rate times f + (1 − f)·s/n (linear), f^(1 − s/n) (exponential) or f (constant), f =
/// start_factor.
class FULGUR_API WarmupLR final : public ComposedSchedule {
 public:
  enum class Kind { linear, exponential, constant };
  friend constexpr auto enum_names(Kind) {
    return std::to_array<EnumName<Kind>>(
        {{Kind::linear, "linear"}, {Kind::exponential, "exponential"}, {Kind::constant, "constant"}});
  }
  struct FULGUR_API Options {
    Length length = 0;
    double start_factor = 0.01;
    Kind kind = Kind::linear;
    Spec<LrScheduler> after = {};
    void fields(Fields& f);
  };
  explicit WarmupLR(Options options);
  /// Creates it with an existing schedule, which must not be part of another.
  WarmupLR(Options options, std::shared_ptr<LrScheduler> after);
  double lr_at(int64_t steps, double initial_lr) const override;
  std::optional<double> momentum_at(int64_t steps) const override;
  void observe(int64_t steps, std::optional<double> metric) override;
  std::vector<std::shared_ptr<LrScheduler>> parts() const override;
  /// Steps of the warm-up, once attached.
  int64_t length() const;

 protected:
  void on_attach(const Optimizer& optimizer) override;

 private:
  Options options_;
  std::shared_ptr<LrScheduler> after_;
};

/// Runs one schedule after another: the next one starts at each milestone. This is torch's SequentialLR.
class FULGUR_API SequentialLR final : public ComposedSchedule {
 public:
  struct FULGUR_API Options {
    std::vector<Spec<LrScheduler>> schedulers = {};
    std::vector<Length> milestones = {};
    void fields(Fields& f);
  };
  explicit SequentialLR(Options options);
  SequentialLR(std::vector<std::shared_ptr<LrScheduler>> parts, std::vector<Length> milestones);
  double lr_at(int64_t steps, double initial_lr) const override;
  std::optional<double> momentum_at(int64_t steps) const override;
  void observe(int64_t steps, std::optional<double> metric) override;
  std::vector<std::shared_ptr<LrScheduler>> parts() const override { return parts_; }
  /// First step of the last schedule, once attached.
  int64_t last_begin() const;

 protected:
  /// Throws a ConfigError if the milestones are not increasing.
  void on_attach(const Optimizer& optimizer) override;

 private:
  struct Place;
  Place place(int64_t steps) const;
  void check() const;
  std::vector<std::shared_ptr<LrScheduler>> parts_;
  std::vector<Length> milestones_;
};

/// Applies all schedules at once: each acts on the rate from the previous one. Equals torch's ChainedScheduler for
/// multiplicative schedules (all but those with a lowest rate, CyclicLR and OneCycleLR).
class FULGUR_API ChainedScheduler final : public ComposedSchedule {
 public:
  struct FULGUR_API Options {
    std::vector<Spec<LrScheduler>> schedulers = {};
    void fields(Fields& f);
  };
  explicit ChainedScheduler(Options options);
  explicit ChainedScheduler(std::vector<std::shared_ptr<LrScheduler>> parts);
  double lr_at(int64_t steps, double initial_lr) const override;
  /// The momentum from the last part that changes it.
  std::optional<double> momentum_at(int64_t steps) const override;
  void observe(int64_t steps, std::optional<double> metric) override;
  std::vector<std::shared_ptr<LrScheduler>> parts() const override { return parts_; }

 protected:
  void on_attach(const Optimizer& optimizer) override;

 private:
  std::vector<std::shared_ptr<LrScheduler>> parts_;
};

}  // namespace fulgur
