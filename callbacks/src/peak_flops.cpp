#include "peak_flops.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace fulgur::detail {
namespace {

struct Gpu {
  std::vector<std::string_view> words;  // the device's name must contain all of them
  double float32, tf32, half;           // TFLOP/s; 0: not supported by the device
};

// NVIDIA's data sheets (B200, H200, H100, A100, A30, A10, A40, L40S, L40, L4, V100, T4), tensor cores without sparsity,
// half with float32 accumulation. More specific names come first.
const std::vector<Gpu>& gpus() {
  static const std::vector<Gpu> all{{{"b200"}, 75, 1100, 2250},
                                    {{"h200", "nvl"}, 60, 418, 836},
                                    {{"h200"}, 67, 494.5, 989},
                                    {{"h100", "nvl"}, 60, 418, 836},
                                    {{"h100", "pcie"}, 51, 378, 756},
                                    {{"h100"}, 67, 494.5, 989},
                                    {{"a100"}, 19.5, 156, 312},
                                    {{"a30"}, 10.3, 82, 165},
                                    {{"a40"}, 37.4, 74.8, 149.7},
                                    {{"a10"}, 31.2, 62.5, 125},
                                    {{"l40s"}, 91.6, 183, 362},
                                    {{"l40"}, 90.5, 90.5, 181},
                                    {{"l4"}, 30.3, 60, 121},
                                    {{"v100s", "pcie"}, 16.4, 0, 130},
                                    {{"v100", "pcie"}, 14, 0, 112},
                                    {{"v100"}, 15.7, 0, 125},
                                    {{"t4"}, 8.1, 0, 65}};
  return all;
}

// `NVIDIA A100-SXM4-80GB`: nvidia, a100, sxm4, 80gb.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!words.back().empty())
      words.emplace_back();
  }
  return words;
}

}  // namespace

std::optional<MatmulKind> matmul_kind(std::string_view precision, bool tf32) {
  if (precision.starts_with("bf16") || precision.starts_with("16")) return MatmulKind::half;
  if (precision.starts_with("32")) return tf32 ? MatmulKind::tf32 : MatmulKind::float32;
  return std::nullopt;
}

std::optional<double> peak_flops(std::string_view device_name, MatmulKind kind) {
  const auto words = words_of(device_name);
  const auto has = [&](std::string_view word) { return std::find(words.begin(), words.end(), word) != words.end(); };
  if (has("mig")) return std::nullopt;  // a part of a GPU
  for (const Gpu& gpu : gpus()) {
    if (!std::all_of(gpu.words.begin(), gpu.words.end(), has)) continue;
    const double tera = kind == MatmulKind::half ? gpu.half : kind == MatmulKind::tf32 ? gpu.tf32 : gpu.float32;
    return tera > 0 ? std::optional(tera * 1e12) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace fulgur::detail
