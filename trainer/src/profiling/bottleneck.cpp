#include "profiling/bottleneck.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"

namespace fulgur::detail {

namespace {

constexpr double kBounds = 0.5, kMatters = 0.2, kNotable = 0.1, kWaitsForDevice = 0.05;

void advise_on_data(const StepCosts& costs, const RunTraits& run, std::vector<Advice>& advice) {
  const std::string wait = cat("each step waits ", format_fixed(1e3 * costs.data_s, 2), " ms for the loader");
  if (run.num_workers == 0)
    advice.push_back({cat(wait, ", since the thread of the run reads the batches itself. Let threads read them ahead"),
                      "data: {init_args: {num_workers: auto}}"});
  else if (!run.num_workers)
    advice.push_back({cat(wait, ". Let more threads read ahead"), "data: {init_args: {num_workers: auto}}"});
  else if (*run.num_workers < run.cores)
    advice.push_back({cat(wait, ". ", counted(*run.num_workers, "worker"), " cannot keep up; this process may use ",
                          counted(run.cores, "core")),
                      cat("data: {init_args: {num_workers: ", std::min(2 * *run.num_workers, run.cores), "}}")});
  else
    advice.push_back({cat(wait,
                          ", although each core has a worker. Make a sample cheaper to read: decode and resize the "
                          "data once, in advance. If only some batches are slow, read further ahead"),
                      "data: {init_args: {prefetch_factor: 8}}"});
}

void advise_on_host(const StepCosts& costs, const RunTraits& run, bool launches, std::vector<Advice>& advice) {
  if (launches && run.can_capture && !run.captures)
    advice.push_back({"the host launches kernels more slowly than the GPU runs them. Launch the whole step at once",
                      "trainer: {capture: true}"});
  if (costs.callbacks_s >= kNotable * costs.step_s && !costs.slowest_hook.empty())
    advice.push_back(
        {cat("callbacks take ", format_fixed(1e3 * costs.callbacks_s, 2), " ms a step, of which ", costs.slowest_hook,
             " takes ", format_fixed(1e3 * costs.slowest_hook_s, 2), ". Let it act less often"),
         cat("trainer: {callbacks: [{class_path: ", costs.slowest_hook.substr(0, costs.slowest_hook.find('.')),
             ", every: 10st}]}")});
  if (!run.on_cpu && costs.transfer_s >= kNotable * costs.step_s)
    advice.push_back(
        {"the host copies each batch to the GPU itself. Batches from pinned memory are copied while the GPU "
         "computes, unless the module or the data module overrides a transfer hook",
         "data: {init_args: {pin_memory: auto}}"});
  const auto batch = static_cast<int64_t>(costs.samples / static_cast<double>(std::max<int64_t>(run.ranks, 1)) + 0.5);
  advice.push_back({cat("the part of a step that does not depend on its size is shared by more samples in a larger "
                        "batch; one has ",
                        batch, " on each rank"),
                    cat("data: {init_args: {batch_size: ", 2 * batch, "}}")});
}

void advise_on_device(const RunTraits& run, std::vector<Advice>& advice) {
  if (run.on_cpu && run.threads < run.cores)
    advice.push_back({cat("operations use ", counted(run.threads, "thread"), " of ", counted(run.cores, "core")),
                      cat("trainer: {num_threads: ", run.cores, "}")});
  if (run.precision == "32-true") {
    advice.push_back({run.on_cpu
                          ? "bfloat16 halves the memory traffic; it is faster on CPUs that have AVX512_BF16 or AMX"
                          : "bfloat16 uses the tensor cores and halves the memory traffic",
                      "trainer: {precision: bf16-mixed}"});
    if (!run.on_cpu && !run.high_matmul_precision)
      advice.push_back({"TF32 makes matrix products in float32 faster, with 10 bits of precision",
                        "trainer: {float32_matmul_precision: high}"});
  }
  if (run.has_images && !run.channels_last)
    advice.push_back(
        {"convolutions are faster if channels are innermost in memory", "trainer: {memory_format: channels_last}"});
}

std::string ddp_yaml(std::string_view options) {
  return cat("trainer: {strategy: {class_path: ddp, init_args: {", options, "}}}");
}

void advise_on_exchange(const StepCosts& costs, const RunTraits& run, std::vector<Advice>& advice) {
  advice.push_back({cat("backward waits ", format_fixed(1e3 * costs.exchange_s, 2),
                        " ms a step for the gradients of other ranks. Exchange them less often"),
                    cat("trainer: {accumulate_grad_batches: ", 4 * run.accumulate_grad_batches, "}")});
  advice.push_back(
      {"on a slow network, ranks can exchange factors of gradients, or average weights every few steps "
       "(docs/slow_networks.md)",
       ddp_yaml("local_sgd: {period: 8}")});
  if (!run.compresses_gradients)
    advice.push_back({"half of the bytes suffice if gradients are sent as bfloat16", ddp_yaml("compression: bf16")});
  if (run.finds_unused_parameters)
    advice.push_back({"the search for unused parameters traverses the graph in each step, and exchanges which they are",
                      ddp_yaml("find_unused_parameters: false")});
  if (!run.has_buckets) return;
  advice.push_back({"smaller buckets begin the exchange earlier, larger ones need fewer messages; the default is 25",
                    ddp_yaml("bucket_cap_mb: 10")});
}

std::string_view name_of_bound(Bound bound) {
  switch (bound) {
    case Bound::data:
      return "data";
    case Bound::host:
      return "host";
    case Bound::device:
      return "device";
    case Bound::exchange:
      return "exchange";
    case Bound::nothing:
      break;
  }
  return "nothing clearly";
}

}  // namespace

Bottleneck find_bottleneck(const StepCosts& costs, const RunTraits& run) {
  Bottleneck found;
  if (costs.steps == 0 || costs.step_s <= 0) return found;
  const auto share = [&](double seconds) { return std::clamp(seconds / costs.step_s, 0.0, 1.0); };
  found.exchange = share(costs.exchange_s);
  const bool device_is_behind = !run.on_cpu && share(costs.device_wait_s) >= kWaitsForDevice;
  if (device_is_behind) {
    found.device = 1 - found.exchange;
  } else {
    found.data = std::min(share(costs.data_s), 1 - found.exchange);
    if (run.on_cpu) found.device = std::min(share(costs.compute_s), 1 - found.exchange - found.data);
    found.host = 1 - found.exchange - found.data - found.device;
  }
  for (const auto& [bound, part] : {std::pair(Bound::data, found.data), std::pair(Bound::host, found.host),
                                    std::pair(Bound::device, found.device), std::pair(Bound::exchange, found.exchange)})
    if (part >= kBounds) found.bound = bound;
  found.launches = !run.on_cpu && found.host >= kMatters && share(costs.compute_s) >= kBounds * found.host;
  if (found.data >= kMatters) advise_on_data(costs, run, found.advice);
  if (found.host >= kMatters) advise_on_host(costs, run, found.launches, found.advice);
  if (found.exchange >= kMatters) advise_on_exchange(costs, run, found.advice);
  if (found.device >= kMatters) advise_on_device(run, found.advice);
  return found;
}

std::string bottleneck_text(const Bottleneck& found, const StepCosts& costs, const RunTraits& run) {
  if (costs.steps == 0 || costs.step_s <= 0) return "what bounds this run: unknown, since no step was measured\n";
  const double rest = costs.step_s - costs.data_s - costs.transfer_s - costs.compute_s - costs.callbacks_s -
                      costs.device_wait_s - (run.on_cpu ? costs.exchange_s : 0);
  std::vector<TextRow> cells{{"  part of a step", "ms", "% of it"}};
  const auto add = [&](const char* part, double seconds) {
    cells.push_back({cat("  ", part), format_fixed(1e3 * seconds, 3), format_fixed(100 * seconds / costs.step_s, 1)});
  };
  add("data: wait for the loader", costs.data_s);
  add("host: transfer of the batch", costs.transfer_s);
  add("host: callbacks", costs.callbacks_s);
  add("host: the rest (the loop, hooks of the module)", std::max(rest, 0.0));
  add(run.on_cpu ? "device: forward, backward, optimizer" : "host: launches of forward, backward, optimizer",
      costs.compute_s);
  if (!run.on_cpu) add("device: the host waits for it", costs.device_wait_s);
  if (run.ranks > 1)
    add(run.on_cpu ? "exchange: backward waits for other ranks" : "exchange: the GPU waits for other ranks",
        costs.exchange_s);
  const double idle_s = costs.data_s + costs.device_wait_s + (run.on_cpu ? costs.exchange_s : 0);
  std::string text =
      cat("profile of ", costs.steps,
          costs.steps == 1 ? " training batch: " : " training batches: ", format_fixed(1e3 * costs.step_s, 3),
          " ms each, ", format_fixed(costs.samples / costs.step_s, 1), " samples/s; the host is idle ",
          format_fixed(100 * std::clamp(idle_s / costs.step_s, 0.0, 1.0), 1), " % of the time\n", aligned_lines(cells));
  text +=
      cat("bound by: ", name_of_bound(found.bound), found.launches ? " (launch-bound: kernels are short)" : "",
          " · data ", format_fixed(100 * found.data, 0), " %, host ", format_fixed(100 * found.host, 0), " %, device ",
          format_fixed(100 * found.device, 0), " %, exchange ", format_fixed(100 * found.exchange, 0), " %\n");
  if (!found.advice.empty()) text += "to try:\n";
  for (const Advice& advice : found.advice) text += cat("  - ", advice.reason, ":\n      ", advice.yaml, "\n");
  return text;
}

}  // namespace fulgur::detail
