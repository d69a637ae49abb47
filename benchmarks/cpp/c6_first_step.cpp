// C6: a plug-in for the program `trainer` that tells how long after the start of the process the first optimizer step
// was done. The start (nanoseconds of CLOCK_MONOTONIC) and the file for the answer come from the environment.
#include <cstdlib>

#include "bench.h"
#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/contracts/registry.h"

class FirstStep : public fulgur::Callback {
 public:
  void on_train_batch_end(fulgur::RunContext&, const fulgur::StepOutput&, const fulgur::Batch&,
                          int64_t batch_idx) override {
    if (batch_idx > 0) return;
    const double start = 1e-9 * static_cast<double>(std::atoll(std::getenv("BENCH_START_NS")));
    const nlohmann::json sample = {{"wall_s", bench::wall_seconds() - start}, {"cpu_s", bench::cpu_seconds()}};
    std::ofstream(std::getenv("BENCH_REPORT")) << nlohmann::json{{"samples", {sample}}}.dump() << '\n';
  }
};
FULGUR_REGISTER(fulgur::Callback, FirstStep, "Tells when the first step was done.");
