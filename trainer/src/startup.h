#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulgur/core/accelerator.h"
#include "fulgur/core/strategy.h"
#include "fulgur/trainer/trainer_options.h"

namespace fulgur::detail {

/// Sets LibTorch's thread count (`auto`: the CPUs this process may use, or OMP_NUM_THREADS) and returns it.
int64_t set_threads(const Auto<int64_t>& num_threads);

struct ChosenDevices {
  Accelerator* accelerator = nullptr;
  std::vector<at::Device> devices;
  /// `1 × cuda (NVIDIA H200)`.
  std::string text() const;
};

/// Decides accelerator and devices. Throws a ConfigError that says what this machine has.
ChosenDevices choose_devices(const TrainerOptions& options);

/// Deterministic algorithms while it lives.
class DeterministicGuard {
 public:
  explicit DeterministicGuard(bool on);
  ~DeterministicGuard();
  DeterministicGuard(const DeterministicGuard&) = delete;
  DeterministicGuard& operator=(const DeterministicGuard&) = delete;

 private:
  bool on_, algorithms_ = false, cudnn_ = false, benchmark_ = false;
};

}  // namespace fulgur::detail
