#include "snapshot/copy_memory.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>

#include "fulgur/core/system/no_signals.h"
#include "fulgur/core/system/usable_cpus.h"

namespace fulgur::detail {
namespace {

constexpr size_t kPiece = 4u << 20;
constexpr size_t kWorthAThread = 32u << 20;
constexpr size_t kMostThreads = 4;

std::vector<MemoryCopy> in_pieces(const std::vector<MemoryCopy>& copies) {
  std::vector<MemoryCopy> pieces;
  for (const MemoryCopy& copy : copies)
    for (size_t at = 0; at < copy.bytes; at += kPiece)
      pieces.push_back({static_cast<char*>(copy.to) + at, static_cast<const char*>(copy.from) + at,
                        std::min(kPiece, copy.bytes - at)});
  return pieces;
}

}  // namespace

void copy_memory(const std::vector<MemoryCopy>& copies) {
  size_t bytes = 0;
  for (const MemoryCopy& copy : copies) bytes += copy.bytes;
  const std::vector<MemoryCopy> pieces = in_pieces(copies);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++) std::memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
  };
  std::vector<std::thread> helpers;
  helpers.reserve(kMostThreads);
  if (bytes >= 2 * kWorthAThread) {
    const size_t threads = std::min({kMostThreads, static_cast<size_t>(usable_cpus()), bytes / kWorthAThread});
    const NoSignals none;
    try {
      while (helpers.size() + 1 < threads) helpers.emplace_back(work);
    } catch (const std::system_error&) {
      // Fewer threads only take longer; all bytes are still copied.
    }
  }
  work();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace fulgur::detail
