#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "fulgur/core/export.h"

namespace fulgur {

/// Random numbers of a device's work while it is recorded (`GraphCapture`). The generator's state cannot be read then,
/// since each launch has its own. Only the count of numbers drawn by the recording is known. The device's library
/// registers an object of this class.
class FULGUR_API RecordedRandom {
 public:
  virtual ~RecordedRandom();
  /// The position of the default generator of `device` in the recording; nullopt unless its current stream is being
  /// recorded.
  virtual std::optional<uint64_t> position(c10::Device device) const = 0;
  /// In each launch, the work recorded next draws the numbers starting at `position`.
  virtual void set_position(c10::Device device, uint64_t position) const = 0;
};

/// Keeps the pointer for the life of the process.
FULGUR_API void register_recorded_random(c10::DeviceType type, const RecordedRandom* recorded);
/// The one for devices of that type, or nullptr.
FULGUR_API const RecordedRandom* recorded_random(c10::DeviceType type);

}  // namespace fulgur
