#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ranks/channel.h"

namespace fulgur::simulated_nccl {

/// The file descriptor of memory in one process, by which other processes can map it. The memory has no name in any
/// folder, so nothing is left of it after its processes end, even if they are killed.
struct Origin {
  int32_t process = 0;
  int32_t descriptor = -1;
  uint64_t serial = 0;  ///< descriptors are reused, serial numbers are not
};

/// What a rank publishes to the others while a communicator is split.
struct SplitNote {
  std::atomic<uint64_t> shown,
      read;  ///< number of splits for which this rank has published its note, and has read the others'
  int32_t color, key;
  Origin origin;
};

/// The memory that the ranks of a communicator share.
class Segment {
 public:
  /// Creates memory for ranks to attach to.
  static Origin create();
  /// Closes the descriptor if it belongs to this process; later calls do nothing. The memory exists as long as a
  /// process has it mapped.
  static void close(const Origin& origin);
  /// Maps the memory. Returns nullptr, with the reason in `error`, if it cannot be mapped, or if this rank cannot join.
  static std::unique_ptr<Segment> attach(const Origin& origin, int world_size, int rank, int gpu, std::string& error);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int attached() const;
  /// The machine-wide number of the GPU that a rank uses; known after the rank has attached.
  int gpu(int rank) const;
  SplitNote& note(int rank);
  /// Collectives and sends have separate channels, since their order inside a group may differ between ranks.
  Channel& channel(int from, int to, bool collective);

 private:
  struct Head;
  Segment(void* memory, size_t size, int world_size)
      : memory_(static_cast<char*>(memory)), size_(size), world_size_(world_size) {}
  Head& head() const;

  char* memory_;
  size_t size_;
  int world_size_;
};

}  // namespace fulgur::simulated_nccl
