#include "profiling/range_profilers.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <unordered_set>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

using torch::profiler::impl::cudaStubs;
using torch::profiler::impl::ittStubs;

void RangeProfiler::Options::fields(Fields& f) {
  f(operators, "operators",
    "Marks each operation of LibTorch too, with its number in backward; false: only the run's actions.");
}

RangeProfiler::~RangeProfiler() {
  try {
    RangeProfiler::stop();
  } catch (const std::exception& error) {
    log::error(cat("profiler: ", first_line(error.what())));
  }
}

void RangeProfiler::start(const ProfiledRun&) {
  require_hooks();
  if (torch::profiler::impl::profilerType() != torch::profiler::impl::ActiveProfilerType::NONE)
    return log::warn(
        "trainer.profiler_in_use",
        "the profiler nvtx or itt: another profiler of LibTorch already records in this thread, so nothing "
        "is marked");
  std::unordered_set<at::RecordScope> scopes{at::RecordScope::USER_SCOPE};
  if (options_.operators) scopes.insert({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
  torch::autograd::profiler::enableProfiler(torch::profiler::impl::ProfilerConfig(state_), {}, scopes);
  is_marking_ = true;
}

std::optional<Profile> RangeProfiler::stop() {
  if (!is_marking_) return std::nullopt;
  ranges_.hide();
  is_marking_ = false;
  torch::autograd::profiler::disableProfiler();
  return std::nullopt;
}

void NvtxProfiler::require_hooks() const {
  if (!cudaStubs()->enabled())
    throw ConfigError(
        "[trainer.profiler] nvtx needs LibTorch's CUDA library, which is loaded only for a CUDA device; this run has "
        "none. Set trainer.accelerator: cuda on a machine with a GPU, or use the profiler itt or kineto.");
}

void IttProfiler::require_hooks() const {
  if (!ittStubs()->enabled())
    throw ConfigError(
        "[trainer.profiler] itt needs a LibTorch that was built with ITT (USE_ITT), and this one was not. Use the "
        "profiler kineto, or another LibTorch.");
}

[[maybe_unused]] static const bool registered_nvtx_profiler = Registry<Profiler>::add<NvtxProfiler>(
    "nvtx", "Marks each action and operation as a range for NVIDIA's tools, such as nsys.");
[[maybe_unused]] static const bool registered_itt_profiler = Registry<Profiler>::add<IttProfiler>(
    "itt", "Marks each action and operation as a range for Intel's tools, such as vtune.");

}  // namespace fulgur::detail
