#include "planning/prediction.h"

#include <algorithm>
#include <cmath>

#include "fulgur/core/text/text.h"

namespace fulgur::cli {
namespace {

double part(int64_t bytes, int64_t ranks) { return static_cast<double>(bytes) / static_cast<double>(ranks); }

double largest_unit(const ModelSize& model, int64_t PlannedUnit::*bytes) {
  int64_t largest = 0;
  for (const PlannedUnit& unit : model.units) largest = std::max(largest, unit.*bytes);
  return static_cast<double>(largest);
}

struct ComputeTimes {
  double forward = 0, backward = 0, flops = 0;
};

ComputeTimes times_of(const StepSize& step, const PlannedRun& run, const HardwareProfile& profile) {
  ComputeTimes times;
  for (const Operation& operation : step.operations) {
    (operation.in_backward ? times.backward : times.forward) += seconds_of(operation, run, profile);
    times.flops += operation.flops;
  }
  return times;
}

void add_exchange(Prediction& out, const ModelSize& model, const ComputeTimes& times, const PlannedRun& run,
                  const HardwareProfile& profile) {
  const int64_t parts = ranks_of_copy(out.sharding, out.mesh, run), copies = out.mesh.ranks() / parts;
  const Mesh group = machines_of(parts, 1, out.mesh);
  // fsdp refuses `compression` if gradients are divided.
  const bool compresses =
      run.compresses && (out.sharding == PlannedSharding::ddp || out.sharding == PlannedSharding::optimizer);
  const auto gradients = static_cast<double>(model.gradient_bytes) * (compresses ? 0.5 : 1);
  const auto parameters = static_cast<double>(model.parameter_bytes);
  const int64_t buckets = std::max<int64_t>(1, std::llround(std::ceil(gradients / run.bucket_bytes)));
  const auto units = static_cast<int64_t>(std::max<size_t>(model.units.size(), 1));
  const double windows = static_cast<double>(run.accumulate);
  switch (out.sharding) {
    case PlannedSharding::ddp:
    case PlannedSharding::optimizer: {
      const double each = all_reduce_s(gradients / static_cast<double>(buckets), out.mesh, profile);
      out.exchange_s = each * static_cast<double>(buckets);
      out.exposed_s = exposed_s(times.backward, each, buckets);
      out.sent_bytes = 2 * part_of_others(out.mesh.ranks()) * gradients;
      break;
    }
    case PlannedSharding::gradients: {
      const double each = all_gather_s(gradients / static_cast<double>(units), group, profile);
      out.exchange_s = each * static_cast<double>(units);
      out.exposed_s = exposed_s(times.backward, each, units);
      out.sent_bytes = part_of_others(parts) * gradients;
      break;
    }
    case PlannedSharding::parameters:
    case PlannedSharding::hybrid: {
      // In forward and in backward, each unit is gathered while the one before it computes.
      const double gather = all_gather_s(parameters / static_cast<double>(units), group, profile);
      double scatter = all_gather_s(gradients / static_cast<double>(units), group, profile);
      scatter += all_reduce_s(gradients / static_cast<double>(units) / static_cast<double>(parts),
                              machines_of(copies, parts, out.mesh), profile);
      out.exchange_s = (2 * gather * windows + scatter) * static_cast<double>(units);
      out.exposed_s = exposed_of_units_s({.gather = gather, .scatter = scatter, .units = units}, times.forward,
                                         times.backward, windows);
      out.sent_bytes = part_of_others(parts) * (2 * parameters * windows + gradients) +
                       2 * part_of_others(copies) * gradients / static_cast<double>(parts);
      break;
    }
  }
  if (out.sharding == PlannedSharding::optimizer || out.sharding == PlannedSharding::gradients) {
    // After the step, and so exposed.
    const double each = all_gather_s(parameters / static_cast<double>(units), group, profile);
    out.exchange_s += each * static_cast<double>(units);
    out.exposed_s += each * static_cast<double>(units);
    out.sent_bytes += part_of_others(parts) * parameters;
  }
}

}  // namespace

int64_t ranks_of_copy(PlannedSharding sharding, const Mesh& mesh, const PlannedRun& run) {
  if (sharding != PlannedSharding::hybrid) return mesh.ranks();
  return run.shard_size > 0 ? run.shard_size : mesh.devices;
}

std::vector<std::pair<const char*, double>> PlannedMemory::kinds() const {
  return {{"parameters", parameters}, {"gradients", gradients},     {"states", states},     {"buffers", buffers},
          {"batch", batch},           {"activations", activations}, {"exchange", exchange}, {"libraries", libraries}};
}

std::pair<const char*, double> PlannedMemory::largest() const {
  const auto all = kinds();
  return *std::ranges::max_element(all, {}, [](const auto& kind) { return kind.second; });
}

PlannedMemory memory_of(const ModelSize& model, const StepSize& step, PlannedSharding sharding, const Mesh& mesh,
                        const PlannedRun& run, const HardwareProfile& profile) {
  const int64_t ranks = ranks_of_copy(sharding, mesh, run);
  PlannedMemory memory;
  memory.buffers = static_cast<double>(model.buffer_bytes);
  memory.batch = static_cast<double>(step.batch_bytes);
  memory.libraries = profile.workspace_mib * 1024 * 1024 + static_cast<double>(step.block_bytes);
  const int64_t states = model.state_bytes + model.master_bytes;
  memory.states = part(states, sharding == PlannedSharding::ddp ? 1 : ranks);
  memory.parameters = static_cast<double>(model.parameter_bytes);
  if (sharding == PlannedSharding::ddp || sharding == PlannedSharding::optimizer) {
    // Gradients are made while activations are freed, unless an earlier batch of the window has made them.
    memory.gradients = static_cast<double>(model.gradient_bytes);
    const bool steps_all = sharding == PlannedSharding::ddp;
    memory.activations = static_cast<double>(
        run.accumulate > 1
            ? (steps_all ? step.bytes_with_optimizer : step.activation_bytes)
            : std::max<int64_t>(0, (steps_all ? step.peak_bytes : step.backward_bytes) - model.gradient_bytes));
    // Of its part of float32 copies, a rank makes gradients in the step.
    if (!steps_all) memory.activations = std::max(memory.activations, part(model.master_bytes, ranks));
    if (mesh.ranks() > 1 && !run.bucket_views) memory.exchange = static_cast<double>(model.gradient_bytes);
    return memory;
  }
  memory.activations = static_cast<double>(step.activation_bytes);
  // Averages for float32 copies are float32 too, in place of half precision.
  memory.gradients = part(model.gradient_bytes + model.master_bytes / 2, ranks);
  const double unit_gradients = largest_unit(model, &PlannedUnit::gradient_bytes);
  if (sharding == PlannedSharding::gradients) {
    memory.exchange = 2 * unit_gradients;
    return memory;
  }
  memory.parameters = part(model.parameter_bytes, ranks);
  memory.exchange = 2 * largest_unit(model, &PlannedUnit::parameter_bytes) + unit_gradients;
  return memory;
}

double seconds_of(const Operation& operation, const PlannedRun& run, const HardwareProfile& profile) {
  const double compute = operation.flops / (profile.peak_flops(operation.dtype, run.tf32) * profile.matmul_efficiency);
  const double memory = operation.bytes / (profile.memory_gb_s * 1e9 * profile.memory_efficiency);
  return std::max({compute, memory, profile.kernel_us * 1e-6});
}

// Gradients are read, parameters and states read and written.
double optimizer_seconds(double gradient_bytes, double state_bytes, const HardwareProfile& profile) {
  return (3 * gradient_bytes + 2 * state_bytes) / (profile.memory_gb_s * 1e9 * profile.memory_efficiency);
}

PlannedSaves saves_of(const ModelSize& model, int64_t ranks, const HardwareProfile& profile) {
  PlannedSaves saves;
  const auto bytes = static_cast<double>(model.parameter_bytes + model.state_bytes + model.master_bytes);
  // The first rank copies what it has, and the parts of the others as they come.
  saves.stall_s = bytes / (profile.host_copy_gb_s * 1e9);
  const double mtbf_s = profile.mtbf_hours * 3600 / static_cast<double>(ranks);
  saves.every_s = save_interval_s(saves.stall_s, mtbf_s, bytes / (profile.storage_gb_s * 1e9));
  saves.waste = std::min(1.0, saves.stall_s / saves.every_s + (saves.every_s / 2 + profile.restart_s) / mtbf_s);
  return saves;
}

// Of normally distributed times.
double jitter_seconds(double step_s, int64_t ranks, const HardwareProfile& profile) {
  return ranks > 1 ? step_s * profile.jitter * std::sqrt(2 * std::log(static_cast<double>(ranks))) : 0;
}

double save_interval_s(double stall_s, double mtbf_s, double write_s) {
  return std::max(std::sqrt(2 * stall_s * mtbf_s), write_s);
}

Prediction predict_step(const ModelSize& model, const StepSize& step, PlannedSharding sharding, const Mesh& mesh,
                        const PlannedRun& planned, const HardwareProfile& profile) {
  PlannedRun run = planned;
  const int64_t batch = step.batch_size * mesh.ranks();
  const bool divides = run.global_batch % batch == 0;
  if (run.global_batch > 0) run.accumulate = std::max<int64_t>(run.global_batch / batch, 1);
  Prediction out;
  out.mesh = mesh;
  out.batch_divides = divides;
  out.sharding = sharding;
  out.batch_size = step.batch_size;
  out.memory = memory_of(model, step, sharding, mesh, run, profile);
  out.limit = (profile.memory_gib - profile.reserved_gib) * kGiB;
  if (sharding != PlannedSharding::ddp && !model.is_elementwise)
    out.obstacle = cat(model.optimizer, " needs whole parameters");
  else if (sharding == PlannedSharding::hybrid && ranks_of_copy(sharding, mesh, run) == mesh.ranks())
    out.obstacle = "one node has nothing to replicate: the same as parameters";
  else if (!divides)
    out.obstacle = cat("batches of ", step.batch_size, " on ", mesh.ranks(), " ranks do not divide global_batch_size, ",
                       run.global_batch);
  else if (out.memory.total() > out.limit)
    out.obstacle = cat(format_fixed(out.memory.total() / kGiB, 1), " GiB of ", format_fixed(out.limit / kGiB, 1),
                       ", most for ", out.memory.largest().first);
  const double evaluated = static_cast<double>(model.parameter_bytes) + out.memory.states + out.memory.buffers +
                           out.memory.batch + out.memory.libraries;
  out.holds_whole = evaluated <= out.limit;
  out.stays_divided =
      (sharding == PlannedSharding::parameters || sharding == PlannedSharding::hybrid) && !run.whole_saves;
  const ComputeTimes times = times_of(step, run, profile);
  const double windows = static_cast<double>(run.accumulate);
  out.compute_s = (times.forward + times.backward) * windows;
  const double whole_optimizer = optimizer_seconds(
      static_cast<double>(model.gradient_bytes), static_cast<double>(model.state_bytes + model.master_bytes), profile);
  out.optimizer_s = sharding == PlannedSharding::ddp
                        ? whole_optimizer
                        : whole_optimizer / static_cast<double>(ranks_of_copy(sharding, mesh, run));
  if (mesh.ranks() > 1) add_exchange(out, model, times, run, profile);
  out.jitter_s = jitter_seconds(out.compute_s + out.optimizer_s + out.exposed_s, mesh.ranks(), profile);
  out.efficiency = (out.compute_s + whole_optimizer) / out.step_s();
  const double samples = static_cast<double>(step.batch_size * mesh.ranks()) * windows;
  out.samples_per_s = samples / out.step_s();
  out.tokens_per_s = out.samples_per_s * static_cast<double>(step.tokens) / static_cast<double>(step.batch_size);
  out.flops_per_s = times.flops * windows / out.step_s();
  const PlannedSaves saves = saves_of(model, mesh.ranks(), profile);
  out.save_stall_s = saves.stall_s;
  out.save_every_s = saves.every_s;
  out.waste = saves.waste;
  return out;
}

}  // namespace fulgur::cli
