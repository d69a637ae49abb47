#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "distributed/arrival_order.h"
#include "distributed/gradient_hook.h"
#include "distributed/process_group_impl.h"

namespace fulgur::detail {

/// Averages gradients over ranks in place, while backward computes: each large one as soon as it and those before it
/// are there. Small ones are averaged together at the end. A step may have several backward calls, such as those of
/// micro-batches, of which those count that are the last to change the gradients of some parameters.
class GradientAverages {
 public:
  /// `group` is the run; `strategy` is named in errors.
  GradientAverages(const ProcessGroup& group, C10dCollectives& ranks, std::vector<NamedParameter> parameters,
                   std::string strategy);
  GradientAverages(const GradientAverages&) = delete;
  GradientAverages& operator=(const GradientAverages&) = delete;

  /// While it exists, backward calls count.
  class Counting {
   public:
    /// nullptr: nothing is averaged.
    explicit Counting(GradientAverages* averages) : averages_(averages) { set(true); }
    ~Counting() { set(false); }
    Counting(const Counting&) = delete;
    Counting& operator=(const Counting&) = delete;

   private:
    void set(bool counts) {
      if (averages_) averages_->counts_ = counts;
    }
    GradientAverages* averages_;
  };

  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  /// Before a step.
  void begin();
  /// After its backward calls: all gradients that there are, which are those of the same parameters on all ranks, are
  /// averages then. All ranks must call it.
  void end();

 private:
  struct Large {
    size_t parameter;
    c10::intrusive_ptr<c10d::Work> work = {};
  };
  /// Dense, in memory that nothing else has; undefined: there is no gradient.
  Tensor gradient(size_t parameter) const;
  void take(size_t parameter);
  void start(Large& large);

  const ProcessGroup& group_;
  C10dCollectives& ranks_;
  std::vector<NamedParameter> parameters_;
  std::string strategy_;
  bool counts_ = false;
  std::vector<uint8_t> awaited_;  // of each parameter
  std::vector<Large> large_;
  std::vector<std::optional<size_t>> place_in_large_;  // of each parameter
  ArrivalOrder order_;                                 // of large_
  std::vector<std::unique_ptr<GradientHook>> hooks_;
};

}  // namespace fulgur::detail
