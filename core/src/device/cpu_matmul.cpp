#include "fulgur/core/device/cpu_matmul.h"

#include <ATen/Context.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "fulgur/core/device/cpu_matmul_rule.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "onednn_matmul.h"

namespace fulgur {
namespace {

using detail::CpuKind;
using detail::MatmulShapes;

struct MatmulRow {
  CpuKind::Vendor vendor;
  bool avx512;
  CpuMatmul faster;
};

// Rows as scripts/measure_matmul.py prints them: GFLOP/s of one thread over products of 4 million multiply-adds and
// more. On AMD, MKL uses only AVX2. A processor without a row keeps MKL.
constexpr MatmulRow kMatmulTable[] = {
    {CpuKind::Vendor::amd, true, CpuMatmul::onednn},  // EPYC: MKL 90 to 96, oneDNN 140 to 214
    {CpuKind::Vendor::intel, true, CpuMatmul::mkl},   // Xeon with AMX: MKL 68 to 203, oneDNN 64 to 174
};

// The open scopes of the process, the newest last, each with what its oneDNN computes (nullptr: nothing).
struct OpenScopes {
  std::mutex mutex;
  std::vector<std::pair<const void*, const MatmulShapes*>> scopes;

  static OpenScopes& instance() {
    static auto& open = *new OpenScopes;
    return open;
  }
  void open(const void* scope, const MatmulShapes* shapes) {
    if (shapes != nullptr) detail::register_onednn_matmul();
    const std::lock_guard<std::mutex> lock(mutex);
    scopes.emplace_back(scope, shapes);
    apply();
  }
  void close(const void* scope) {
    const std::lock_guard<std::mutex> lock(mutex);
    std::erase_if(scopes, [&](const auto& entry) { return entry.first == scope; });
    apply();
  }

 private:
  void apply() { detail::onednn_shapes = scopes.empty() ? nullptr : scopes.back().second; }
};

constexpr MatmulShapes kUsualShapes;

}  // namespace

namespace detail {

CpuKind this_cpu() {
  CpuKind cpu;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_is("amd")) cpu.vendor = CpuKind::Vendor::amd;
  if (__builtin_cpu_is("intel")) cpu.vendor = CpuKind::Vendor::intel;
  cpu.avx512 =
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return cpu;
}

CpuMatmul faster_matmul(const CpuKind& cpu) {
  for (const MatmulRow& row : kMatmulTable)
    if (row.vendor == cpu.vendor && row.avx512 == cpu.avx512) return row.faster;
  return CpuMatmul::mkl;
}

OnednnMatmulScope::OnednnMatmulScope(const MatmulShapes& shapes) {
  decide_cpu_matmul(CpuMatmul::onednn);
  OpenScopes::instance().open(this, &shapes);
}

OnednnMatmulScope::~OnednnMatmulScope() { OpenScopes::instance().close(this); }

}  // namespace detail

std::string why_no_onednn_matmul() {
  if (!at::hasMKLDNN()) return "this LibTorch was built without oneDNN";
  if (!at::globalContext().userEnabledMkldnn()) return "the program has disabled oneDNN in LibTorch";
  // LibTorch refuses float32 products by oneDNN on other processors.
  return detail::this_cpu().avx512 ? "" : "this processor has no AVX-512 (BW, DQ and VL)";
}

CpuMatmul decide_cpu_matmul(CpuMatmul wanted) {
  if (wanted == CpuMatmul::mkl) return wanted;
  const std::string obstacle = why_no_onednn_matmul();
  if (wanted == CpuMatmul::automatic)
    return obstacle.empty() ? detail::faster_matmul(detail::this_cpu()) : CpuMatmul::mkl;
  if (!obstacle.empty())
    throw ConfigError(cat("[trainer.cpu_matmul] onednn cannot multiply matrices here: ", obstacle,
                          ". Set trainer.cpu_matmul: mkl or auto."));
  return wanted;
}

CpuMatmulScope::CpuMatmulScope(CpuMatmul wanted) {
  OpenScopes::instance().open(this, decide_cpu_matmul(wanted) == CpuMatmul::onednn ? &kUsualShapes : nullptr);
}

CpuMatmulScope::~CpuMatmulScope() { OpenScopes::instance().close(this); }

}  // namespace fulgur
