#include "ranks/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

namespace fulgur::simulated_nccl {
namespace {

constexpr int kMostRanks = 64;

// Never freed, since threads may use it until the process ends.
struct OpenDescriptors {
  std::mutex mutex;
  std::map<uint64_t, int> by_serial;
  uint64_t made = 0;
};

OpenDescriptors& open_descriptors() {
  static auto* made = new OpenDescriptors;
  return *made;
}

}  // namespace

struct Segment::Head {
  std::atomic<int32_t> world_size, attached;
  std::atomic<int32_t> taken[kMostRanks], gpus[kMostRanks];
  SplitNote notes[kMostRanks];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<int32_t>::is_always_lock_free);

Segment::Head& Segment::head() const { return *reinterpret_cast<Head*>(memory_); }

Origin Segment::create() {
  const int descriptor = ::memfd_create("simulated_nccl", MFD_CLOEXEC);
  OpenDescriptors& open = open_descriptors();
  const std::lock_guard lock(open.mutex);
  open.by_serial[++open.made] = descriptor;
  return {::getpid(), descriptor, open.made};
}

void Segment::close(const Origin& origin) {
  if (origin.process != ::getpid()) return;
  OpenDescriptors& open = open_descriptors();
  const std::lock_guard lock(open.mutex);
  if (open.by_serial.erase(origin.serial) > 0 && origin.descriptor >= 0) ::close(origin.descriptor);
}

std::unique_ptr<Segment> Segment::attach(const Origin& origin, int world_size, int rank, int gpu, std::string& error) {
  if (world_size > kMostRanks) {
    error = "at most " + std::to_string(kMostRanks) + " ranks are simulated; got " + std::to_string(world_size);
    return nullptr;
  }
  const std::string path = "/proc/" + std::to_string(origin.process) + "/fd/" + std::to_string(origin.descriptor);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) {
    error = "the process that created the unique id (" + std::to_string(origin.process) +
            ") has ended, or has closed it: " + std::strerror(errno);
    return nullptr;
  }
  const size_t begin = (sizeof(Head) + alignof(Channel) - 1) / alignof(Channel) * alignof(Channel);
  const auto ranks = static_cast<size_t>(world_size);
  const size_t size = begin + 2 * ranks * ranks * sizeof(Channel);
  // The file is never shrunk, since another rank may have made it larger. Pages that are not used cost nothing.
  const bool grown =
      ::lseek(file, 0, SEEK_END) >= static_cast<off_t>(size) || ::ftruncate(file, static_cast<off_t>(size)) == 0;
  void* const memory = grown ? ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  const int reason = errno;
  ::close(file);
  if (memory == MAP_FAILED) {
    error = std::string("cannot map shared memory: ") + std::strerror(reason);
    return nullptr;
  }
  std::unique_ptr<Segment> segment(new Segment(memory, size, world_size));
  Head& head = segment->head();
  int32_t first = 0;
  if (!head.world_size.compare_exchange_strong(first, world_size) && first != world_size) {
    error = "rank " + std::to_string(rank) + " expects " + std::to_string(world_size) +
            " ranks, another rank expects " + std::to_string(first);
    return nullptr;
  }
  if (head.taken[rank].exchange(1) != 0) {
    error = "rank " + std::to_string(rank) + " of " + std::to_string(world_size) +
            " is already taken by another caller with the same unique id";
    return nullptr;
  }
  head.gpus[rank] = gpu;
  ++head.attached;
  return segment;
}

Segment::~Segment() { ::munmap(memory_, size_); }

int Segment::gpu(int rank) const { return head().gpus[rank]; }
int Segment::attached() const { return head().attached; }
SplitNote& Segment::note(int rank) { return head().notes[rank]; }

Channel& Segment::channel(int from, int to, bool collective) {
  const size_t begin = (sizeof(Head) + alignof(Channel) - 1) / alignof(Channel) * alignof(Channel);
  const auto ranks = static_cast<size_t>(world_size_);
  const size_t index = ((collective ? 0 : ranks) + static_cast<size_t>(from)) * ranks + static_cast<size_t>(to);
  return reinterpret_cast<Channel*>(memory_ + begin)[index];
}

}  // namespace fulgur::simulated_nccl
