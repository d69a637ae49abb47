#include "planning/device_rates.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/system/process_limits.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::cli {
namespace {

constexpr int kRounds = 5;
constexpr double kBytesOfGib = 1024.0 * 1024 * 1024;

/// The shortest time of `work`, which is repeated so often that it takes a while.
double seconds_of(at::Device device, int repeats, const std::function<void()>& work) {
  const auto wait = [&] {
    if (device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeStream(guard.getStream(device));
  };
  double least = 1e9;
  for (int round = 0; round <= kRounds; ++round) {
    wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) work();
    wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (round > 0) least = std::min(least, took.count() / repeats);
  }
  return least;
}

double product_tflops(at::Device device, at::ScalarType dtype) {
  const int64_t size = device.is_cpu() ? 1024 : 8192;
  const auto options = at::TensorOptions(device).dtype(dtype);
  const at::Tensor a = at::rand({size, size}, at::TensorOptions(device)).to(dtype), b = a.clone();
  at::Tensor c = at::empty({size, size}, options);
  const double n = static_cast<double>(size);
  return 2 * n * n * n / seconds_of(device, 3, [&] { at::mm_out(c, a, b); }) / 1e12;
}

}  // namespace

DeviceRates measure_device(at::Device device, int64_t sharers) {
  const at::NoGradGuard no_grad;
  DeviceRates rates;
  const int64_t numel = (device.is_cpu() ? int64_t{128} : int64_t{1024}) << 18;  // MiB of float32
  const at::Tensor source = at::zeros({numel}, at::TensorOptions(device)), target = at::zeros_like(source);
  const double bytes = static_cast<double>(numel) * 4;
  rates.copy_gb_s = 2 * bytes / seconds_of(device, 3, [&] { target.copy_(source); }) / 1e9;
  at::Tensor host = at::empty({numel}, at::TensorOptions(at::kCPU).pinned_memory(!device.is_cpu()));
  rates.to_host_gb_s = bytes / seconds_of(device, 1, [&] { host.copy_(source); }) / 1e9;
  rates.float32_tflops = product_tflops(device, at::kFloat);
  rates.tf32_tflops = rates.float32_tflops;
  if (device.is_cuda()) {
    at::Context& context = at::globalContext();
    const bool before = context.allowTF32CuBLAS();
    context.setAllowTF32CuBLAS(true);
    rates.tf32_tflops = product_tflops(device, at::kFloat);
    context.setAllowTF32CuBLAS(before);
  }
  rates.half_tflops = product_tflops(device, at::kBFloat16);
  at::Tensor small = at::zeros({256}, at::TensorOptions(device));
  rates.kernel_us = seconds_of(device, 2000, [&] { small.add_(1); }) * 1e6;
  if (const auto free = free_device_memory(device); free && !device.is_cpu())
    rates.memory_gib = static_cast<double>(*free) / kBytesOfGib;
  else {
    double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
    if (const auto limit = process_limits().memory_bytes) memory = std::min(memory, static_cast<double>(*limit));
    rates.memory_gib = memory / static_cast<double>(sharers) / kBytesOfGib;
  }
  return rates;
}

double storage_gb_s(const std::string& folder) {
  const std::string path = folder + "/.fulgur_bench";
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) throw Error(cat("[bench.comm] ", folder, " cannot be written to; run it in a folder that can."));
  const std::string block(size_t{1} << 20, 'x');
  const auto begin = std::chrono::steady_clock::now();
  constexpr int64_t kBlocks = 256;
  bool good = true;
  for (int64_t i = 0; i < kBlocks && good; ++i)
    good = ::write(file, block.data(), block.size()) == static_cast<ssize_t>(block.size());
  good = good && ::fsync(file) == 0;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  ::close(file);
  ::unlink(path.c_str());
  if (!good) throw Error(cat("[bench.comm] 256 MiB could not be written to ", folder, "."));
  return static_cast<double>(kBlocks << 20) / took.count() / 1e9;
}

}  // namespace fulgur::cli
