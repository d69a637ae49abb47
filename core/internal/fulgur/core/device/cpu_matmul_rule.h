#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fulgur/core/device/cpu_matmul.h"
#include "fulgur/core/export.h"

namespace fulgur::detail {

/// What the choice of a library depends on.
struct CpuKind {
  enum class Vendor { amd, intel, other };
  Vendor vendor = Vendor::other;
  bool avx512 = false;  ///< with the extensions BW, DQ and VL
  int family = 0;       ///< by CPUID, the extended family included: of AMD's, 25 is Zen 3 and 4, 26 is Zen 5
};
FULGUR_API CpuKind this_cpu();

/// Products that oneDNN gets, if it multiplies. A call of oneDNN costs some 12 µs more than one of MKL, whatever its
/// size, and it is slow if one of the three sizes is small.
struct MatmulShapes {
  int64_t least_work = int64_t{1} << 22;  ///< multiply-adds of all products of the call
  int64_t least_size = 16;                ///< of m, n and k
  bool take(int64_t batch, int64_t m, int64_t n, int64_t k) const {
    return m >= least_size && n >= least_size && k >= least_size && batch * m * n * k >= least_work;
  }
};

/// The row of the table for a processor.
struct MatmulRule {
  CpuMatmul faster = CpuMatmul::mkl;
  MatmulShapes shapes = {};
};
/// The result has static lifetime. A processor without a row keeps MKL.
FULGUR_API const MatmulRule& matmul_rule(const CpuKind& cpu);

/// Like CpuMatmulScope with `onednn`, for products of those shapes; `shapes` must outlive it. For tests and benchmarks.
class FULGUR_API OnednnMatmulScope {
 public:
  explicit OnednnMatmulScope(const MatmulShapes& shapes);
  ~OnednnMatmulScope();
  OnednnMatmulScope(const OnednnMatmulScope&) = delete;
  OnednnMatmulScope& operator=(const OnednnMatmulScope&) = delete;
};

}  // namespace fulgur::detail
