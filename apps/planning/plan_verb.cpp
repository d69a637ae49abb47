#include "planning/plan_verb.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "json_text.h"
#include "planning/mesh/mesh_report.h"
#include "planning/plan_figures.h"
#include "planning/plan_search.h"
#include "planning/planned_keys.h"
#include "print.h"
#include "tuning/tuned_config.h"

namespace fulgur::cli {
namespace {

using PlanJson = nlohmann::ordered_json;

constexpr int64_t kMostNodes = 1'000'000;

const DDPStrategy::Options* exchange_options(const Config& config) {
  const Spec<Strategy>& strategy = config.trainer.strategy;
  if (strategy.class_path() == "ddp")
    return &static_cast<const OptionsOf<DDPStrategy::Options>&>(strategy.options()).value;
  return fsdp_of(config);
}

PlannedRun run_of(const Config& config) {
  PlannedRun run;
  if (const DDPStrategy::Options* options = exchange_options(config)) {
    // `auto` is measured on the machine; the default is close to what it chooses.
    run.bucket_bytes = options->bucket_cap_mb.value.value_or(*DDPStrategy::Options().bucket_cap_mb.value) * 1024 * 1024;
    run.bucket_views = options->gradient_as_bucket_view;
    if (options->compression == DDPStrategy::Compression::powersgd || options->local_sgd)
      throw ConfigError(cat("[plan] exchanges with ", options->local_sgd ? "local_sgd" : "compression: powersgd",
                            " are not predicted. Plan without it: its exchanges take less time."));
    run.compresses = options->compression != DDPStrategy::Compression::none;
  }
  const FSDPStrategy::Options* const fsdp = fsdp_of(config);
  run.whole_saves = fsdp && fsdp->state_dict_type == FSDPStrategy::StateDictType::full;
  if (const MeshStrategy::Options* const mesh = mesh_of(config))
    run.divided_mesh = mesh->evaluation == MeshStrategy::Evaluation::units &&
                       mesh->state_dict_type == MeshStrategy::StateDictType::sharded;
  run.accumulate = config.trainer.accumulate_grad_batches;
  run.global_batch = config.trainer.global_batch_size.value_or(0);
  const auto& matmul = config.trainer.float32_matmul_precision;
  run.tf32 = matmul && *matmul != "highest";
  return run;
}

TextRow memory_row(const Prediction& one) {
  TextRow row{std::string(enum_text(one.sharding)), cat(one.batch_size)};
  for (const auto& [kind, bytes] : one.memory.kinds()) row.push_back(gib(bytes));
  row.push_back(gib(one.memory.total()));
  row.push_back(!one.obstacle.empty() ? one.obstacle
                : one.starts()        ? "fits"
                                      : "steps fit, a save of the whole module does not");
  return row;
}

std::string memory_table(const std::vector<Prediction>& all) {
  TextRow head{"sharding", "batch_size"};
  for (const auto& [kind, bytes] : all.front().memory.kinds()) head.emplace_back(kind);
  head.emplace_back("total");
  std::vector<TextRow> rows{head};
  for (const Prediction& one : all) rows.push_back(memory_row(one));
  return aligned_lines(rows);
}

TextRow time_row(const Prediction& one) {
  return {cat(one.mesh.nodes),
          std::string(enum_text(one.sharding)),
          cat(one.batch_size),
          large(one.samples_per_s * one.step_s()),
          duration(one.step_s()),
          duration(one.compute_s + one.optimizer_s),
          duration(one.exchange_s),
          duration(one.exposed_s),
          cat(large(one.sent_bytes), "B"),
          percent(one.efficiency),
          large(one.samples_per_s * kDay),
          one.tokens_per_s > 0 ? large(one.tokens_per_s * kDay) : "-",
          duration(one.save_every_s),
          percent(one.waste)};
}

const TextRow kTimeHead{"nodes",      "sharding", "batch",      "of all",      "step",       "compute",    "exchange",
                        "not hidden", "sent",     "efficiency", "samples/day", "tokens/day", "save every", "waste"};

std::string reasons(const NodePlan& plan) {
  std::string text;
  const Prediction* const best = plan.best();
  for (const Prediction& one : plan.shardings) {
    if (&one == best) continue;
    std::string why = one.obstacle;
    if (why.empty() && best->starts() && !one.starts())
      why = "the whole module does not fit beside its parts, without state_dict_type: sharded";
    if (why.empty()) {
      const double times = best->samples_per_s / one.samples_per_s;
      const std::string exposed = cat(": ", duration(one.exposed_s), " of its exchanges are not hidden");
      if (times < 1 / kAsFast && one.memory.total() > kSafeShareOfMemory * one.limit)
        why = "as fast, but its memory is within the error of the prediction of what there is";
      else if (times < 1)
        why = cat(format_fixed((1 - times) * 100, 0), " % faster, which is less than the error of the prediction");
      else if (times < 1.01)
        why = "as fast, within 1 %";
      else
        why = times < 2 ? cat("takes ", format_fixed((times - 1) * 100, 0), " % longer", exposed)
                        : cat("takes ", format_fixed(times, 1), " times as long", exposed);
    }
    text += cat("  not ", enum_text(one.sharding), ": ", why, "\n");
  }
  return text;
}

// Whether the model keeps no more activations than it must, or has no such option.
bool checkpoints_all(const Config& config) {
  const ConfigNode written = config.model.write();
  const ConfigNode* const options = written.find("init_args");
  const ConfigNode* const chosen = options ? options->find("activation_checkpointing") : nullptr;
  return !chosen || (chosen->is_scalar() && chosen->text() == "all");
}

/// What would make the sharding fit that is closest to it, and is not in the config yet.
std::string advice(const NodePlan& plan, const Config& config, std::optional<int64_t> nodes) {
  if (std::ranges::any_of(plan.shardings, [](const Prediction& one) { return !one.batch_divides; }))
    return "  global_batch_size leaves these ranks no whole batch each: use fewer ranks, a larger global_batch_size, "
           "or "
           "a mesh, whose ranks along tensor and pipeline compute one batch together\n";
  const auto need = [](const Prediction& one) {
    return one.memory.total() > one.limit ? one.memory.total() : std::numeric_limits<double>::infinity();
  };
  const Prediction& closest = *std::ranges::min_element(plan.shardings, {}, need);
  if (!std::isfinite(need(closest))) return {};
  const auto [kind, bytes] = closest.memory.largest();
  const std::string_view name = kind;
  std::vector<std::string> tries;
  if (name == "activations" && !checkpoints_all(config)) tries.emplace_back("model.activation_checkpointing: all");
  if (config.trainer.precision.class_path() != "bf16-true")
    tries.emplace_back(name == "activations"
                           ? "precision: bf16-true (with *-mixed, autocast keeps copies of the weights)"
                           : "precision: bf16-true with master_weights: false");
  if (nodes) tries.push_back(cat(counted(*nodes, "node"), ", on which a batch of one sample fits"));
  return cat("  closest is ", enum_text(closest.sharding), " with ", gib(closest.memory.total()), " GiB, of which ",
             gib(bytes), " are ", name, tries.empty() ? "" : ": try ", join(tries, "; or "), "\n");
}

/// What the numbers leave out.
std::vector<std::string> notes(const Config& config, const ModelSize& model, int64_t devices, bool has_inputs,
                               const std::vector<NodePlan>& plans, const MeshReport& meshes) {
  std::vector<std::string> all;
  const auto whole = static_cast<double>(model.parameter_bytes);
  const auto any_best = [&](auto&& is) {
    return std::ranges::any_of(plans, [&](const NodePlan& plan) {
      const Prediction* const best = plan.best();
      return best != nullptr && is(*best);
    });
  };
  if (has_inputs && !config.link.empty()) {
    std::vector<std::string> targets;
    for (const auto& [target, source] : config.link)
      if (!config.written_at_links.contains(target)) targets.push_back(target);
    if (!targets.empty())
      all.push_back(cat("with --input, the data are not read, and what `link` takes from them has its default: set ",
                        join(targets)));
  }
  if (any_best([](const Prediction& best) { return best.efficiency < 0.5; }))
    all.emplace_back(
        "devices wait for exchanges most of the time where efficiency is below 50 %: raise "
        "accumulate_grad_batches, or see docs/slow_networks.md");
  const FSDPStrategy::Options* const fsdp = fsdp_of(config);
  const bool saves_parts = fsdp && fsdp->state_dict_type == FSDPStrategy::StateDictType::sharded;
  if (!saves_parts && any_best([](const Prediction& best) { return !best.holds_whole; }))
    all.push_back(cat("with state_dict_type: full, a save of fsdp gathers the whole module (", gib(whole),
                      " GiB) on each rank, which does not fit beside its parts: set state_dict_type: sharded"));
  if (std::ranges::any_of(meshes.plans, [](const MeshPlan& plan) { return plan.best() && !plan.best()->starts(); }))
    all.push_back(cat("by default, a run with a mesh gathers the whole module (", gib(whole),
                      " GiB) on each rank for an evaluation and for a save, which does not fit beside its parts: set "
                      "evaluation: units and state_dict_type: sharded (docs/mesh.md)"));
  const MeshStrategy::Options* const mesh = mesh_of(config);
  if (!mesh && (config.trainer.auto_micro_batch || config.trainer.sync_batchnorm))
    all.push_back(cat("a mesh along tensor, pipeline or shard does not have trainer.",
                      config.trainer.auto_micro_batch ? "auto_micro_batch" : "sync_batchnorm", " of the config"));
  if ((fsdp && fsdp->units.value) || (mesh && mesh->mesh.shard > 1 && mesh->units.value))
    all.emplace_back("units are planned as auto, not as in the config");
  if (!fsdp) return all;
  if (fsdp->shard_size.value.value_or(devices) != devices)
    all.push_back(
        cat("hybrid is planned with the ", devices, " devices of a node, not with the shard_size of the config"));
  return all;
}

PlanJson json_of_prediction(const Prediction& one) {
  PlanJson memory = PlanJson::object();
  for (const auto& [kind, bytes] : one.memory.kinds()) memory[kind] = std::llround(bytes);
  memory["total"] = std::llround(one.memory.total());
  memory["limit"] = std::llround(one.limit);
  return {{"nodes", one.mesh.nodes},
          {"devices", one.mesh.devices},
          {"sharding", enum_text(one.sharding)},
          {"batch_size", one.batch_size},
          {"memory", std::move(memory)},
          {"fits", one.obstacle.empty()},
          {"holds_whole_module", one.holds_whole},
          {"starts", one.starts()},
          {"obstacle", one.obstacle},
          {"sent_bytes", std::llround(one.sent_bytes)},
          {"step_s", one.step_s()},
          {"compute_s", one.compute_s},
          {"optimizer_s", one.optimizer_s},
          {"exchange_s", one.exchange_s},
          {"exposed_s", one.exposed_s},
          {"jitter_s", one.jitter_s},
          {"efficiency", one.efficiency},
          {"samples_per_s", one.samples_per_s},
          {"tokens_per_s", one.tokens_per_s},
          {"tflops_per_device", one.flops_per_s / 1e12},
          {"save_stall_s", one.save_stall_s},
          {"save_every_s", one.save_every_s},
          {"waste", one.waste}};
}

PlanJson json_of_model(const ModelSize& model, const StepSize& step) {
  double flops = 0;
  for (const Operation& operation : step.operations) flops += operation.flops;
  return {{"parameters", model.parameters},
          {"trainable", model.trainable},
          {"optimizer", model.optimizer},
          {"units", model.units.size()},
          {"batch_size", step.batch_size},
          {"tokens", step.tokens},
          {"operations", step.operations.size()},
          {"flops", flops},
          {"activation_bytes", step.activation_bytes},
          {"block_bytes", step.block_bytes},
          {"peak_bytes", step.peak_bytes}};
}

std::string model_text(const ModelSize& model, const StepSize& step, const HardwareProfile& profile) {
  double flops = 0;
  for (const Operation& operation : step.operations) flops += operation.flops;
  return cat("model     ", large(static_cast<double>(model.parameters)), " parameters, ",
             gib(static_cast<double>(model.parameter_bytes)), " GiB; ", model.optimizer, ", ",
             gib(static_cast<double>(model.state_bytes + model.master_bytes)), " GiB of states\nstep      ",
             counted(step.batch_size, "sample"), step.tokens > 0 ? cat(", ", counted(step.tokens, "token")) : "", ": ",
             large(flops), "FLOP in ", step.operations.size(), " operations, ",
             gib(static_cast<double>(step.activation_bytes)), " GiB of activations\nprofile   ", profile.name, ": ",
             four_figures(profile.memory_gib), " GiB, ", four_figures(profile.tflops.half), " TFLOP/s in 16 bits; ",
             four_figures(profile.intra.gb_s), " GB/s in a node, ", four_figures(profile.inter.gb_s),
             " GB/s a device between nodes\n");
}

}  // namespace

std::vector<int64_t> planned_nodes(const std::string& text) {
  const auto fail = [&]() -> ConfigError {
    return ConfigError(cat("[cli.plan] --nodes takes numbers of nodes, as 4, 1,2,8 or 1..1024 (at most ", kMostNodes,
                           "); got '", escape_controls(text), "'."));
  };
  std::vector<int64_t> all;
  const auto number = [&](const std::string& part) {
    const auto value = parse_whole<int64_t>(part);
    if (!value || *value < 1 || *value > kMostNodes) throw fail();
    return *value;
  };
  if (const size_t dots = text.find(".."); dots != std::string::npos) {
    const int64_t first = number(text.substr(0, dots)), last = number(text.substr(dots + 2));
    if (first > last) throw fail();
    for (int64_t nodes = first; nodes < last; nodes *= 2) all.push_back(nodes);
    all.push_back(last);
    return all;
  }
  for (const std::string& part : split_text(text, ',')) all.push_back(number(part));
  if (!std::ranges::is_sorted(all)) throw fail();
  return all;
}

ExitCode plan(const CommandLine& command) {
  const std::vector<int64_t> nodes = planned_nodes(command.planning.nodes);
  const HardwareProfile profile = load_profile(command.planning.profile);
  const Config config = load_config(command.sources);
  log::silence(config.silence);
  const int64_t devices = command.planning.devices.value_or(profile.devices_per_node);
  TracedModel model(config, command.planning.inputs, command.planning.batch_size);
  const PlannedRun run = run_of(config);
  PlanSearch search(model, run, profile);
  MeshSearch mesh_search(model, search, config, run, profile);
  const Mesh first{nodes.front(), devices};
  const std::vector<Prediction> configured = search.as_configured(first);
  std::vector<NodePlan> plans;
  for (const int64_t count : nodes) plans.push_back(search.search({count, devices}));
  MeshReport meshes;
  for (const int64_t count : nodes) {
    meshes.configured.push_back(mesh_search.configured({count, devices}));
    meshes.plans.push_back(mesh_search.search({count, devices}));
  }
  const StepSize& step = search.step(model.batch_size());
  const std::vector<std::string> left_out =
      notes(config, model.size(), devices, !command.planning.inputs.empty(), plans, meshes);
  if (command.json) {
    PlanJson json{{"profile", profile.name}, {"predicted", true}, {"model", json_of_model(model.size(), step)}};
    for (const Prediction& one : configured) json["as_configured"].push_back(json_of_prediction(one));
    for (size_t i = 0; i < plans.size(); ++i) {
      const NodePlan& one = plans[i];
      PlanJson item{{"best", nullptr}, {"shardings", PlanJson::array()}};
      if (const Prediction* best = one.best()) item["best"] = enum_text(best->sharding);
      for (const Prediction& prediction : one.shardings) item["shardings"].push_back(json_of_prediction(prediction));
      if (const auto& given = meshes.configured[i]) item["configured_mesh"] = json_of_mesh(*given);
      const MeshPrediction* const best_mesh = meshes.plans[i].best();
      item["best_mesh"] = best_mesh ? PlanJson(best_mesh->shape.text()) : PlanJson(nullptr);
      item["meshes"] = PlanJson::array();
      for (const MeshPrediction& mesh : meshes.plans[i].meshes) item["meshes"].push_back(json_of_mesh(mesh));
      json["nodes"].push_back(std::move(item));
    }
    json["notes"] = left_out;
    return print(json_text(json)), ExitCode::ok;
  }
  std::string text = model_text(model.size(), step, profile);
  text += cat("\nGiB of a rank with the config's batch size, on ", counted(first.nodes, "node"), " with ",
              counted(devices, "device"), " each\n", memory_table(configured));
  std::vector<TextRow> rows{kTimeHead};
  std::string why;
  std::vector<double> fastest;
  for (size_t i = 0; i < plans.size(); ++i) {
    const Prediction* const best = plans[i].best();
    fastest.push_back(best ? best->samples_per_s : 0);
    rows.push_back(best != nullptr ? time_row(*best) : TextRow{cat(nodes[i]), "nothing fits"});
    if (i == 0 || i + 1 == plans.size())
      why +=
          cat(counted(nodes[i], "node"), ": ",
              best != nullptr ? cat(enum_text(best->sharding), " with batches of ", best->batch_size) : "nothing fits",
              "\n",
              best != nullptr ? planned_keys(*best, run)
                              : advice(plans[i], config, search.fewest_nodes(devices, kMostNodes)),
              reasons(plans[i]));
  }
  text += cat("\nPredicted, with the fastest sharding and batch size\n", aligned_lines(rows), "\n", why);
  text += mesh_text(meshes, run, fastest);
  for (const std::string& note : left_out) text += cat("note: ", note, "\n");
  return print(text), ExitCode::ok;
}

}  // namespace fulgur::cli
