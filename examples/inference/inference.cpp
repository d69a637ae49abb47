// A trained model without a Trainer: a TorchScript file, or a checkpoint of a class that this program knows.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <fulgur/core/text/errors.h>
#include <fulgur/models/mlp_classifier.h>
#include <fulgur/trainer/load_from_checkpoint.h>
#include <torch/csrc/jit/serialization/import.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>

static void measure(const std::string& file, long features) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); };
  const at::Tensor x = at::ones({1, features});
  const at::NoGradGuard no_grad;
  auto start = Clock::now();
  std::function<at::Tensor()> compute;
  if (file.ends_with(".ts"))
    compute = [net = torch::jit::load(file), x]() mutable { return net.forward({x}).toTensor(); };
  else
    compute = [net = fulgur::load_from_checkpoint<fulgur::MlpClassifier>(file), x] { return net->forward(x); };
  const long best = compute().argmax(1).item<int64_t>();
  std::printf("class %ld; first result after %.1f ms\n", best, since(start) * 1e3);
  for (int i = -20; i < 1000; ++i, compute())
    if (i == 0) start = Clock::now();
  std::printf("%.1f us for each sample\n", since(start) * 1e3);
}

int main(int argc, char** argv) {
  if (argc != 3) return std::puts("usage: inference FILE.ts|CHECKPOINT.ckpt FEATURES"), 2;
  try {
    measure(argv[1], std::stol(argv[2]));
    return 0;
  } catch (const fulgur::Error& error) {  // of a checkpoint: its message says what to do
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
