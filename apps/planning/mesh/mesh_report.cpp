#include "planning/mesh/mesh_report.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "planning/plan_figures.h"
#include "planning/planned_keys.h"

namespace fulgur::cli {
namespace {

constexpr size_t kShownReasons = 16;

const TextRow kMeshHead{"nodes", "mesh",       "micro-batch", "of a batch", "of all",     "GiB",
                        "step",  "compute",    "tensor",      "waits",      "shard",      "data",
                        "sent",  "efficiency", "samples/day", "tokens/day", "save every", "waste"};

TextRow mesh_row(const MeshPrediction& one) {
  const MeshShape& shape = one.shape;
  return {cat(one.machines.nodes),
          shape.text(),
          cat(one.micro_batch),
          cat(shape.micro_batches),
          cat(one.batch_size * shape.shares() * shape.accumulate),
          gib(one.memory.total()),
          duration(one.step_s()),
          duration(one.compute_s + one.optimizer_s),
          duration(one.tensor_s),
          duration(one.wait_s),
          duration(one.shard_s),
          duration(one.data_s),
          cat(large(one.stages_sent + one.tensor_sent + one.shard_sent + one.data_sent), "B"),
          percent(one.efficiency),
          large(one.samples_per_s * kDay),
          one.tokens_per_s > 0 ? large(one.tokens_per_s * kDay) : "-",
          duration(one.saves.every_s),
          percent(one.saves.waste)};
}

std::string memory_of_mesh(const MeshPrediction& one) {
  TextRow head{"mesh", "batch_size"}, row{one.shape.text(), cat(one.batch_size)};
  for (const auto& [kind, bytes] : one.memory.kinds()) {
    head.emplace_back(kind);
    row.push_back(gib(bytes));
  }
  head.emplace_back("total");
  row.push_back(gib(one.memory.total()));
  row.push_back(!one.obstacle.empty() ? one.obstacle : one.starts() ? "fits" : "steps fit, the whole module does not");
  return cat("\nGiB of the fullest rank of the config's mesh",
             one.shape.pipeline > 1 ? cat(", at place ", one.fullest, " along pipeline") : "", "\n",
             aligned_lines({head, row}));
}

std::string why_not(const MeshPrediction& one, const MeshPrediction& best) {
  if (!one.obstacle.empty()) return one.obstacle;
  if (best.starts() && !one.starts())
    return "the whole module does not fit beside its parts, without evaluation: units and state_dict_type: sharded";
  const double times = best.samples_per_s / one.samples_per_s;
  if (times < 1 / kAsFast && one.memory.total() > kSafeShareOfMemory * one.limit)
    return "as fast, but its memory is within the error of the prediction of what there is";
  if (times < 1.01) return "as fast, within 1 %";
  // For a sample, since steps have other numbers of them; as shares of the fastest's time.
  const auto more = [&](double own, double there) {
    return (own / one.step_s() / one.samples_per_s - there / best.step_s() / best.samples_per_s) * best.samples_per_s;
  };
  const auto [part, what] =
      std::max({std::pair(more(one.wait_s, best.wait_s), "waits for other stages"),
                std::pair(more(one.tensor_s, best.tensor_s), "exchanges along tensor"),
                std::pair(more(one.shard_s, best.shard_s), "exchanges along shard"),
                std::pair(more(one.data_s, best.data_s), "averages of gradients"),
                std::pair(more(one.compute_s + one.optimizer_s, best.compute_s + best.optimizer_s), "its operations")});
  return cat(times < 2 ? cat("takes ", format_fixed((times - 1) * 100, 0), " % longer for a sample")
                       : cat("takes ", format_fixed(times, 1), " times as long for a sample"),
             ", ", format_fixed(part * 100, 0), " % by ", what);
}

bool differ_in_shards(const MeshShape& a, const MeshShape& b) {
  return a.tensor == b.tensor && a.pipeline == b.pipeline;
}

// Of meshes that differ in the sizes of `data` and `shard` alone, the first one is the fastest; the others are shown if
// the best mesh is among them.
bool is_shown(const MeshPrediction& one, const std::vector<MeshPrediction>& all, const MeshPrediction* best) {
  if (best && differ_in_shards(one.shape, best->shape)) return true;
  return &one == &*std::ranges::find_if(
                     all, [&](const MeshPrediction& each) { return differ_in_shards(each.shape, one.shape); });
}

std::string mesh_reasons(const MeshPlan& plan, const PlannedRun& run, int64_t nodes, double fastest) {
  const MeshPrediction* const best = plan.best();
  std::string text = cat(counted(nodes, "node"), ": ");
  if (!best) {
    text += "no mesh fits";
  } else {
    text += cat(best->shape.text(), " with micro-batches of ", best->micro_batch);
    if (fastest == 0)
      text += ", and no sharding fits";
    else if (const double times = best->samples_per_s / fastest; times >= 1)
      text += cat(", ", format_fixed((times - 1) * 100, 0), " % faster than the best sharding above");
    else
      text += cat(", ", format_fixed((1 / times - 1) * 100, 0), " % slower than the best sharding above");
  }
  text += "\n";
  if (best) text += planned_keys(*best, run);
  std::vector<const MeshPrediction*> others;
  for (const MeshPrediction& one : plan.meshes)
    if (&one != best && is_shown(one, plan.meshes, best)) others.push_back(&one);
  // The other sizes of `shard` after the other meshes.
  std::ranges::stable_partition(
      others, [&](const MeshPrediction* one) { return !best || !differ_in_shards(one->shape, best->shape); });
  if (others.size() > kShownReasons) others.resize(kShownReasons);
  for (const MeshPrediction* one : others)
    text += cat("  not ", one->shape.text(), ": ", best ? why_not(*one, *best) : one->obstacle, "\n");
  if (const size_t rest = plan.meshes.size() - others.size() - (best ? 1 : 0); rest > 0)
    text += cat("  and ", rest, " more: --json has all\n");
  return text;
}

}  // namespace

std::string mesh_text(const MeshReport& report, const PlannedRun& run, const std::vector<double>& fastest) {
  std::string text;
  if (const auto& first = report.configured.front(); first && first->micro_batch > 0) text += memory_of_mesh(*first);
  std::vector<TextRow> configured{kMeshHead}, found{kMeshHead};
  std::string reasons;
  for (size_t i = 0; i < report.plans.size(); ++i) {
    if (const auto& given = report.configured[i]) {
      const std::string nodes = cat(given->machines.nodes);
      configured.push_back(given->obstacle.empty() ? mesh_row(*given) : TextRow{nodes, given->obstacle});
    }
    const MeshPlan& plan = report.plans[i];
    if (plan.meshes.empty()) continue;
    const int64_t nodes = plan.meshes.front().machines.nodes;
    found.push_back(plan.best() ? mesh_row(*plan.best()) : TextRow{cat(nodes), "no mesh fits"});
    if (i == 0 || i + 1 == report.plans.size()) reasons += mesh_reasons(plan, run, nodes, fastest[i]);
  }
  if (configured.size() > 1) text += cat("\nPredicted, with the config's mesh\n", aligned_lines(configured));
  if (found.size() > 1) text += cat("\nPredicted, with the fastest mesh\n", aligned_lines(found), "\n", reasons);
  return text;
}

nlohmann::ordered_json json_of_mesh(const MeshPrediction& one) {
  nlohmann::ordered_json memory = nlohmann::ordered_json::object();
  for (const auto& [kind, bytes] : one.memory.kinds()) memory[kind] = std::llround(bytes);
  memory["total"] = std::llround(one.memory.total());
  memory["limit"] = std::llround(one.limit);
  return {{"nodes", one.machines.nodes},
          {"devices", one.machines.devices},
          {"mesh",
           {{"data", one.shape.data},
            {"shard", one.shape.shard},
            {"tensor", one.shape.tensor},
            {"pipeline", one.shape.pipeline}}},
          {"schedule", enum_text(one.shape.schedule)},
          {"micro_batch", one.micro_batch},
          {"micro_batches", one.shape.micro_batches},
          {"batch_size", one.batch_size},
          {"accumulate", one.shape.accumulate},
          {"fullest_place", one.fullest},
          {"memory", std::move(memory)},
          {"fits", one.obstacle.empty()},
          {"holds_whole_module", one.holds_whole},
          {"starts", one.starts()},
          {"obstacle", one.obstacle},
          {"sent_bytes",
           {{"pipeline", std::llround(one.stages_sent)},
            {"tensor", std::llround(one.tensor_sent)},
            {"shard", std::llround(one.shard_sent)},
            {"data", std::llround(one.data_sent)}}},
          {"step_s", one.step_s()},
          {"compute_s", one.compute_s},
          {"tensor_s", one.tensor_s},
          {"wait_s", one.wait_s},
          {"shard_s", one.shard_s},
          {"data_s", one.data_s},
          {"optimizer_s", one.optimizer_s},
          {"jitter_s", one.jitter_s},
          {"efficiency", one.efficiency},
          {"samples_per_s", one.samples_per_s},
          {"tokens_per_s", one.tokens_per_s},
          {"tflops_per_device", one.flops_per_s / 1e12},
          {"save_stall_s", one.saves.stall_s},
          {"save_every_s", one.saves.every_s},
          {"waste", one.saves.waste}};
}

}  // namespace fulgur::cli
