#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fulgur/core/options/options.h"

namespace fulgur {

/// Devices by their index: `1`, `cuda:1`, `[0, 1]`, `[0..3]` (0 to 3).
struct FULGUR_API DeviceGroup {
  std::vector<int64_t> indices;
  std::string type;  ///< such as `cuda`; the run's kind of device if empty
  DeviceGroup() = default;
  DeviceGroup(int64_t index) : indices{index} {}
  DeviceGroup(std::vector<int64_t> list) : indices(std::move(list)) {}

  /// Returns the members of the group among `devices`. Throws a ConfigError that starts with `where` if one is missing.
  std::vector<at::Device> resolve(const std::vector<at::Device>& devices, const std::string& where) const;
};

template <>
struct FULGUR_API FieldTraits<DeviceGroup> {
  static TypeInfo type();
  static bool read(const ConfigNode& node, DeviceGroup& value, Problems& problems, const std::string& path);
  static ConfigNode write(const DeviceGroup& value);
};

/// The devices of submodules (`nn::Placed` members, by name).
using Placement = std::map<std::string, DeviceGroup>;

}  // namespace fulgur
