// A trained model without a Trainer: a TorchScript file, or a checkpoint of a class that this program knows.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <fulgur/models/mlp_classifier.h>
#include <fulgur/trainer/load_from_checkpoint.h>
#include <torch/csrc/jit/serialization/import.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); };
  if (argc != 3) return std::puts("usage: inference FILE.ts|CHECKPOINT.ckpt FEATURES"), 2;
  const at::Tensor x = at::ones({1, std::stol(argv[2])});
  const at::NoGradGuard no_grad;
  auto start = Clock::now();
  std::function<at::Tensor()> compute;
  if (std::string(argv[1]).ends_with(".ts"))
    compute = [net = torch::jit::load(argv[1]), x]() mutable { return net.forward({x}).toTensor(); };
  else
    compute = [net = fulgur::load_from_checkpoint<fulgur::MlpClassifier>(argv[1]), x] { return net->forward(x); };
  const long best = compute().argmax(1).item<int64_t>();
  std::printf("class %ld; first result after %.1f ms\n", best, since(start) * 1e3);
  for (int i = -20; i < 1000; ++i, compute())
    if (i == 0) start = Clock::now();
  std::printf("%.1f us for each sample\n", since(start) * 1e3);
}
