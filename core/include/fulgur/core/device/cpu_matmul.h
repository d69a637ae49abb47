#pragma once

#include <array>
#include <string>

#include "fulgur/core/export.h"
#include "fulgur/core/options/enum_names.h"

namespace fulgur {

/// The library that multiplies float32 matrices on the CPU (`trainer.cpu_matmul`).
enum class CpuMatmul {
  automatic,  ///< by a table of processors
  mkl,        ///< LibTorch's own kernels, which call MKL
  onednn      ///< oneDNN for large products, LibTorch's own kernels for the rest
};
constexpr auto enum_names(CpuMatmul) {
  return std::to_array<EnumName<CpuMatmul>>(
      {{CpuMatmul::automatic, "auto"}, {CpuMatmul::mkl, "mkl"}, {CpuMatmul::onednn, "onednn"}});
}

/// Why oneDNN cannot multiply float32 matrices in this process, as the end of a sentence; empty if it can.
FULGUR_API std::string why_no_onednn_matmul();

/// `mkl` or `onednn`. `automatic` is decided by the processor alone, without measuring anything. Throws a ConfigError
/// for `onednn` if that cannot be used here.
FULGUR_API CpuMatmul decide_cpu_matmul(CpuMatmul wanted);

/// During its lifetime, `mm`, `addmm`, `bmm` and `baddbmm` of float32 CPU tensors are computed by the chosen library,
/// in all threads of the process, and with them everything that LibTorch builds on them: `linear`, `matmul`, and their
/// gradients. Other types, tensors that are not dense, operands whose rows or columns do not lie one after another, and
/// small products keep LibTorch's kernels. Results equal those of LibTorch's kernels up to the rounding of float32, and
/// repetitions have the same bits. The newest of several scopes decides; they may end in any order. Thread-safe.
class FULGUR_API CpuMatmulScope {
 public:
  /// Throws a ConfigError like `decide_cpu_matmul`. The first scope of a process that uses oneDNN registers kernels
  /// with LibTorch's dispatcher, which remain registered: other threads should not compute at that time.
  explicit CpuMatmulScope(CpuMatmul wanted);
  ~CpuMatmulScope();
  CpuMatmulScope(const CpuMatmulScope&) = delete;
  CpuMatmulScope& operator=(const CpuMatmulScope&) = delete;
};

}  // namespace fulgur
