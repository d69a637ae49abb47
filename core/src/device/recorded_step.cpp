#include "fulgur/core/device/recorded_step.h"

namespace fulgur {

namespace {

thread_local bool recording_cpu_step = false;

}  // namespace

bool is_recording_cpu_step() { return recording_cpu_step; }

RecordingCpuStep::RecordingCpuStep() { recording_cpu_step = true; }
RecordingCpuStep::~RecordingCpuStep() { recording_cpu_step = false; }

}  // namespace fulgur
