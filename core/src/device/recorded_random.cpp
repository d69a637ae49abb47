#include "fulgur/core/device/recorded_random.h"

#include <array>
#include <atomic>

namespace fulgur {
namespace {

// Read at each checkpointed call.
std::atomic<const RecordedRandom*>& of(c10::DeviceType type) {
  static std::array<std::atomic<const RecordedRandom*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> all{};
  return all.at(static_cast<size_t>(type));
}

}  // namespace

RecordedRandom::~RecordedRandom() = default;

void register_recorded_random(c10::DeviceType type, const RecordedRandom* recorded) {
  of(type).store(recorded, std::memory_order_release);
}

const RecordedRandom* recorded_random(c10::DeviceType type) { return of(type).load(std::memory_order_acquire); }

}  // namespace fulgur
