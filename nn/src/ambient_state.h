#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::nn {

/// The autocast state of this thread: what `torch.amp.autocast` sets.
class AutocastState {
 public:
  /// Reads the state for the CPU, for CUDA and for the device types of `devices`.
  explicit AutocastState(const std::vector<at::Device>& devices);

  /// Sets a state and restores the previous one on destruction.
  class Guard {
   public:
    explicit Guard(const AutocastState& state);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::vector<at::Device> devices_;
    std::vector<AutocastState> before_;
  };

 private:
  struct OfType {
    at::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };
  void put() const;
  std::vector<OfType> types_;
  bool cache_;
};

/// States of the default generators of the CPU and of `devices`. They are global to the process: draws of
/// other threads at the same time are not kept apart. While a device's work is recorded, its state is the generator's
/// position in the recording.
class GeneratorStates {
  struct Of {
    at::Generator generator;
    Tensor state;
    std::optional<uint64_t> position = {};  ///< in a recording, instead of `state`
  };

 public:
  explicit GeneratorStates(const std::vector<at::Device>& devices);
  /// Keeps only the generators that have moved since.
  void keep_moved();

  /// Sets the states and restores the previous ones on destruction.
  class Guard {
   public:
    explicit Guard(const GeneratorStates& states);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::vector<Of> before_;
  };

 private:
  static Of now(at::Generator generator);
  static void put(const std::vector<Of>& generators);
  std::vector<Of> generators_;
};

}  // namespace fulgur::nn
