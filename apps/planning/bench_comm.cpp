#include "planning/bench_comm.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "fulgur/core/system/program_name.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "fulgur/strategies/ddp.h"
#include "fulgur/strategies/exchange_times.h"
#include "fulgur/trainer/config.h"
#include "fulgur/trainer/fabric.h"
#include "fulgur/trainer/yaml.h"
#include "planning/device_rates.h"
#include "planning/hardware_profile.h"
#include "print.h"
#include "report_file.h"

namespace fulgur::cli {
namespace {

using detail::Among;
using detail::ExchangeCost;
using detail::ExchangeTime;

std::vector<int64_t> sizes() {
  std::vector<int64_t> sizes;
  for (int64_t bytes = 4; bytes <= int64_t{64} << 20; bytes *= 16) sizes.push_back(bytes);
  return sizes;
}

/// A ring of `ranks` sends (ranks - 1) / ranks of the bytes twice, in 2 (ranks - 1) messages that follow each other.
LinkProfile link_of(const ExchangeCost& cost, int64_t ranks) {
  const auto others = static_cast<double>(ranks - 1);
  return {.gb_s = cost.bytes_per_second * 2 * others / static_cast<double>(ranks) / 1e9,
          .latency_us = cost.latency_s / (2 * others) * 1e6};
}

std::string table_of(const std::string& title, const std::vector<ExchangeTime>& times, const ExchangeCost& cost) {
  std::vector<TextRow> rows{{"bytes", "measured", "fitted", "error"}};
  double worst = 0;
  for (const auto& [bytes, seconds] : times) {
    const double fitted = cost.latency_s + static_cast<double>(bytes) / cost.bytes_per_second;
    worst = std::max(worst, std::abs(fitted / seconds - 1));
    rows.push_back({cat(bytes), cat(format_fixed(seconds * 1e3, 3), " ms"), cat(format_fixed(fitted * 1e3, 3), " ms"),
                    cat(format_fixed((fitted / seconds - 1) * 100, 0), " %")});
  }
  const std::vector<int64_t> widths = column_widths(rows);
  std::string text = cat(title, "\n");
  for (const TextRow& row : rows) text += cat("  ", aligned(row, widths), "\n");
  if (worst > 0.3)
    text += cat("  the fit is off by up to ", format_fixed(worst * 100, 0),
                " %: the machine may be busy, or its "
                "exchanges change their way with the size\n");
  return text;
}

/// Three digits: more are noise.
double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return std::stod(text);
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[16];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &parts)};
}

struct Links {
  LinkProfile intra, inter;
  std::string tables, note;
};

// All ranks call it.
Links measure_links(ProcessGroup& group, at::Device device) {
  const ProcessPlace& place = group.place();
  Links links;
  const auto measure = [&](Among among, int64_t ranks, const std::string& title) {
    const std::vector<ExchangeTime> times = time_sums(group, device, among, sizes());
    const ExchangeCost cost = detail::fit_cost(times);
    links.tables += table_of(title, times, cost);
    return link_of(cost, ranks);
  };
  const int64_t in_node = place.local_world_size, nodes = place.world_size / in_node;
  if (in_node > 1) links.intra = measure(Among::node, in_node, cat("sums over the ", in_node, " processes of a node"));
  if (nodes > 1)
    links.inter = measure(Among::same_place, nodes, cat("sums over a process of each of ", nodes, " nodes"));
  if (in_node == 1) {
    links.intra = links.inter;
    links.note = "; intra is a copy of inter, since each node had one process";
  } else if (nodes == 1) {
    links.inter = links.intra;
    links.note = "; inter is a copy of intra, since there was one node";
  }
  return links;
}

HardwareProfile make_profile(const Links& links, const DeviceRates& rates, const ProcessPlace& place,
                             const std::string& connection) {
  HardwareProfile profile;
  profile.name = "measured";
  profile.source = cat("trainer bench comm, ", today(), ": ", place.world_size, " processes, ", place.local_world_size,
                       " of a node, ", connection, links.note, "; rates of kernels are those reached, not peaks");
  profile.devices_per_node = place.local_world_size;
  profile.memory_gib = rounded(rates.memory_gib);
  profile.memory_gb_s = rounded(rates.copy_gb_s);
  profile.memory_efficiency = 1;
  profile.tflops = {
      .float32 = rounded(rates.float32_tflops), .tf32 = rounded(rates.tf32_tflops), .half = rounded(rates.half_tflops)};
  profile.matmul_efficiency = 1;
  profile.kernel_us = rounded(rates.kernel_us);
  for (auto [to, from] : {std::pair{&profile.intra, &links.intra}, {&profile.inter, &links.inter}})
    *to = {.gb_s = rounded(from->gb_s), .latency_us = rounded(from->latency_us)};
  profile.host_copy_gb_s = rounded(rates.to_host_gb_s);
  profile.storage_gb_s = rounded(storage_gb_s("."));
  return profile;
}

}  // namespace

ExitCode bench_comm(const CommandLine& command, const std::string& program, const std::vector<std::string>& arguments) {
  if (command.output) {
    check_report_path(*command.output, "--output");
    if (std::filesystem::exists(*command.output) && !command.force)
      throw ConfigError(cat("[bench.comm] ", command.output->string(), " exists. Name another file, or add --force."));
  }
  const TrainerOptions options = load_config(command.sources).trainer;
  const bool is_ddp = options.strategy.class_path() == "ddp";
  Fabric fabric({.accelerator = options.accelerator,
                 .devices = options.devices,
                 .num_nodes = options.num_nodes,
                 .strategy = is_ddp ? options.strategy : Spec<Strategy>("ddp"),
                 .num_threads = options.num_threads});
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> line;
  for (std::string& word : words) line.push_back(word.data());
  if (const auto code = fabric.launch(static_cast<int>(line.size()), line.data())) return static_cast<ExitCode>(*code);
  auto& ddp = dynamic_cast<DDPStrategy&>(fabric.strategy());
  ProcessGroup* const group = ddp.process_group();
  if (group == nullptr || ddp.world_size() == 1)
    throw ConfigError(
        "[bench.comm] exchanges need several processes, and this is one. Set --trainer.devices 2 or more, or start it "
        "on "
        "several nodes as a training (docs/distributed.md).");
  const Links links = measure_links(*group, ddp.device());
  const DeviceRates rates = measure_device(ddp.device(), ddp.place().local_world_size);
  fabric.collectives().barrier("the end of the measurements");
  if (!fabric.is_global_zero()) return ExitCode::ok;
  const HardwareProfile profile = make_profile(links, rates, ddp.place(), group->describe());
  std::string text;
  for (const std::string& row : split_text(links.tables, '\n'))
    if (!row.empty()) text += cat("# ", row, "\n");
  text += to_yaml(FieldTraits<HardwareProfile>::write(profile));
  if (!command.output) return print(text), ExitCode::ok;
  write_report(*command.output, text);
  print(cat(links.tables, "Written to ", command.output->string(), ", which plan reads: ", program_name(),
            " plan -c config.yaml --profile ", command.output->string(), "\n"));
  return ExitCode::ok;
}

}  // namespace fulgur::cli
