#pragma once

#include <ATen/core/Tensor.h>

namespace fulgur::cli {

/// What kernels of a device reach, measured.
struct DeviceRates {
  double copy_gb_s = 0;                                         ///< bytes read and written by a copy, in 1e9 per second
  double float32_tflops = 0, tf32_tflops = 0, half_tflops = 0;  ///< of matrix products; half: bfloat16
  double kernel_us = 0;                                         ///< of a small addition, one of many
  double to_host_gb_s = 0;                                      ///< of a copy to the host
  double memory_gib = 0;                                        ///< that this process could get
};

/// `sharers` are the processes of the node that use the memory of the host, if that is the device's.
DeviceRates measure_device(at::Device device, int64_t sharers);

/// Bytes per second, in 1e9, that a file of 256 MiB in `folder` is written with, fsync included.
double storage_gb_s(const std::string& folder);

}  // namespace fulgur::cli
