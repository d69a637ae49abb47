#include "setup/allocator.h"

#include <c10/core/AllocatorConfig.h>
#include <malloc.h>

#include <cstdlib>
#include <regex>
#include <string_view>

#include "fulgur/core/system/large_blocks.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr int kKeptBytes = 1 << 30;
constexpr int kSmallestReturnedBlock = 1 << 20;
constexpr int kLargestKeptBlock = 32 << 20;  // the largest value that glibc accepts

// The environment already configures malloc.
bool environment_decides() {
  const char* text = std::getenv("GLIBC_TUNABLES");
  const std::string_view tunables = text != nullptr ? text : "";
  const auto names = [&](std::string_view tunable) { return tunables.find(tunable) != std::string_view::npos; };
  return std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr || std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr ||
         names("glibc.malloc.trim_threshold") || names("glibc.malloc.mmap_threshold");
}

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw ConfigError(cat(
      "[trainer.allocator.cuda] the settings must have the syntax of PYTORCH_CUDA_ALLOC_CONF "
      "(expandable_segments:True,max_split_size_mb:128); got '",
      escape_controls(text), "'", why.empty() ? "" : cat(": ", why), ". See PyTorch's notes on CUDA for the keys."));
}

}  // namespace

void check_allocator(const AllocatorOptions& options) {
  static const std::regex pairs(
      R"(\s*\w+\s*:\s*(\[[^\[\]]+\]|[^\s,:\[\]]+)\s*(,\s*\w+\s*:\s*(\[[^\[\]]+\]|[^\s,:\[\]]+)\s*)*)");
  if (!options.cuda.empty() && !std::regex_match(options.cuda, pairs)) refuse(options.cuda, "");
}

void set_kept_memory(const AllocatorOptions& options) {
  if (!environment_decides()) {
    // Any value ends glibc's adaptation, by which it keeps ever larger blocks.
    ::mallopt(M_MMAP_THRESHOLD, options.keep_freed_memory ? kLargestKeptBlock : kSmallestReturnedBlock);
    if (options.keep_freed_memory) ::mallopt(M_TRIM_THRESHOLD, kKeptBytes);
  }
  keep_large_blocks(options.keep_freed_memory);
}

void set_allocator(const AllocatorOptions& options, const std::string& accelerator) {
  set_kept_memory(options);
  if (options.cuda.empty()) return;
  if (accelerator != "cuda")
    return log::warn("trainer.allocator_cuda",
                     cat("trainer.allocator.cuda has no effect here: the run computes on ", accelerator));
  try {
    c10::CachingAllocator::setAllocatorSettings(options.cuda);
  } catch (const c10::Error& error) {
    refuse(options.cuda, error.what_without_backtrace());
  } catch (const std::exception& error) {
    refuse(options.cuda, error.what());
  }
}

}  // namespace fulgur::detail
