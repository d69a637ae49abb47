#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "fulgur/core/contracts/profiler.h"

namespace fulgur::detail {

/// Tells the run's profiler which action is under way. Without a profiler, an action costs one test.
class Actions {
 public:
  /// An action during the lifetime of this object.
  class Scope {
   public:
    // Inline, since a step has many of them, and a run usually has no profiler.
    Scope(Profiler* profiler, const ProfiledAction* action) : profiler_(profiler), action_(action) {
      if (profiler_) profiler_->begin(*action_);
    }
    ~Scope() {
      if (profiler_) profiler_->end(*action_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Profiler* profiler_;  // nullptr: there is none
    const ProfiledAction* action_;
  };

  /// From now on, actions are reported to `profiler`.
  void report_to(std::shared_ptr<Profiler> profiler) { profiler_ = std::move(profiler); }
  /// The profiler, which gets no further actions; nullptr if there is none.
  std::shared_ptr<Profiler> take_profiler() { return std::exchange(profiler_, nullptr); }
  Profiler* profiler() const { return profiler_.get(); }

  /// An action of the loops; `name` is a literal.
  [[nodiscard]] Scope time(const char* name) {
    return Scope(profiler_.get(), profiler_ ? &action(nullptr, name) : nullptr);
  }
  /// A hook of an object of this class.
  [[nodiscard]] Scope time(const std::type_info& type, const char* hook) {
    return Scope(profiler_.get(), profiler_ ? &action(&type, hook) : nullptr);
  }
  void step_done() {
    if (profiler_) profiler_->step_done();
  }

 private:
  const ProfiledAction& action(const std::type_info* type, const char* hook);

  std::shared_ptr<Profiler> profiler_;
  std::map<std::pair<const std::type_info*, std::string_view>, ProfiledAction> actions_;
};

}  // namespace fulgur::detail
