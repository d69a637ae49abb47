#pragma once

#include "fulgur/core/export.h"

namespace fulgur {

/// True while this thread's operations on the CPU are recorded to be replayed (`trainer.capture`): code that reads
/// values on the host, to check them for example, would keep the step from being captured.
FULGUR_API bool is_recording_cpu_step();

/// Recording lasts as long as the object. Recordings do not nest.
class FULGUR_API RecordingCpuStep {
 public:
  RecordingCpuStep();
  ~RecordingCpuStep();
  RecordingCpuStep(const RecordingCpuStep&) = delete;
  RecordingCpuStep& operator=(const RecordingCpuStep&) = delete;
};

}  // namespace fulgur
