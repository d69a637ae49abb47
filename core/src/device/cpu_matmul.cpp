#include "fulgur/core/device/cpu_matmul.h"

#include <ATen/Context.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

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
  int first_family;
  detail::MatmulRule rule;
};

// With rates as scripts/measure_matmul.py prints them: GFLOP/s of one thread over the products that oneDNN gets. On
// AMD, MKL uses only AVX2. Zen 4 computes a vector of 512 bits in two halves, so oneDNN gains little there, and nothing
// on small products. The first row that fits is taken.
constexpr MatmulRow kMatmulTable[] = {
    // EPYC, Zen 5: MKL 90 to 96, oneDNN 140 to 214
    {CpuKind::Vendor::amd, true, 26, {CpuMatmul::onednn, {}}},
    // EPYC, Zen 4: MKL 70 to 102, oneDNN 52 to 112
    {CpuKind::Vendor::amd, true, 0, {CpuMatmul::onednn, {.least_work = int64_t{1} << 24, .least_size = 32}}},
    // Xeon with AMX: MKL 68 to 203, oneDNN 64 to 174
    {CpuKind::Vendor::intel, true, 0, {CpuMatmul::mkl, {}}},
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
  if (unsigned int version = 0, b = 0, c = 0, d = 0; __get_cpuid(1, &version, &b, &c, &d) != 0) {
    const unsigned int family = version >> 8 & 0xf;
    cpu.family = static_cast<int>(family == 0xf ? family + (version >> 20 & 0xff) : family);
  }
#endif
  return cpu;
}

const MatmulRule& matmul_rule(const CpuKind& cpu) {
  static constexpr MatmulRule kUnknown;
  for (const MatmulRow& row : kMatmulTable)
    if (row.vendor == cpu.vendor && row.avx512 == cpu.avx512 && cpu.family >= row.first_family) return row.rule;
  return kUnknown;
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
    return obstacle.empty() ? detail::matmul_rule(detail::this_cpu()).faster : CpuMatmul::mkl;
  if (!obstacle.empty())
    throw ConfigError(cat("[trainer.cpu_matmul] onednn cannot multiply matrices here: ", obstacle,
                          ". Set trainer.cpu_matmul: mkl or auto."));
  return wanted;
}

CpuMatmulScope::CpuMatmulScope(CpuMatmul wanted) {
  const bool onednn = decide_cpu_matmul(wanted) == CpuMatmul::onednn;
  OpenScopes::instance().open(this, onednn ? &detail::matmul_rule(detail::this_cpu()).shapes : nullptr);
}

CpuMatmulScope::~CpuMatmulScope() { OpenScopes::instance().close(this); }

}  // namespace fulgur
