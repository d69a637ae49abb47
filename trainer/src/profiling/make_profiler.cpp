#include "profiling/make_profiler.h"

namespace fulgur::detail {

namespace {

struct NoProfiler final : Profiler {
  void begin(const ProfiledAction&) override {}
  void end(const ProfiledAction&) noexcept override {}
  std::optional<Profile> stop() override { return std::nullopt; }
};

}  // namespace

std::shared_ptr<Profiler> make_profiler(const Spec<Profiler>& chosen) {
  if (!chosen) return nullptr;
  std::shared_ptr<Profiler> made = chosen.create();
  // A run without a profiler does not call one that measures nothing.
  return dynamic_cast<const NoProfiler*>(made.get()) ? nullptr : made;
}

[[maybe_unused]] static const bool registered_no_profiler =
    Registry<Profiler>::add<NoProfiler>("none", "Measures nothing.");

}  // namespace fulgur::detail
