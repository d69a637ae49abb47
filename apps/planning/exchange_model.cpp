#include "planning/exchange_model.h"

#include <algorithm>
#include <cmath>

namespace fulgur::cli {
namespace {

double micro(double microseconds) { return microseconds * 1e-6; }
double bytes_per_s(double gb_s) { return gb_s * 1e9; }

// A node of d devices sends over d links at once.
double ring_rate(const Mesh& mesh, const HardwareProfile& profile) {
  const double inside = bytes_per_s(profile.intra.gb_s);
  if (mesh.nodes == 1) return inside;
  return std::min(mesh.devices == 1 ? bytes_per_s(profile.inter.gb_s) : inside,
                  bytes_per_s(profile.inter.gb_s) * static_cast<double>(mesh.devices));
}

// The messages that follow each other when something goes around the ring once.
double round_s(const Mesh& mesh, const HardwareProfile& profile) {
  const double between = mesh.nodes == 1 ? 0 : static_cast<double>(mesh.nodes);
  const double steps = static_cast<double>(mesh.ranks() - 1);
  return (steps - std::min(between, steps)) * micro(profile.intra.latency_us) +
         std::min(between, steps) * micro(profile.inter.latency_us);
}

double start_s(const HardwareProfile& profile) { return micro(profile.exchange_us); }

}  // namespace

Mesh machines_of(int64_t count, int64_t stride, const Mesh& run) {
  // Groups that end where nodes do are alike.
  const int64_t block = count * stride;
  if (run.devices % block == 0) return {.nodes = 1, .devices = count};
  if (stride % run.devices == 0) return {.nodes = count, .devices = 1};
  if (block % run.devices == 0 && run.devices % stride == 0)
    return {.nodes = block / run.devices, .devices = run.devices / stride};
  Mesh most{.nodes = 0, .devices = 0};
  for (int64_t first = 0; first + (count - 1) * stride < run.ranks(); ++first) {
    // Groups begin at the places below `stride` of each block.
    if (first % block >= stride) continue;
    int64_t nodes = 0, in_node = 0, most_in_node = 0, last = -1;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t node = (first + i * stride) / run.devices;
      in_node = node == last ? in_node + 1 : 1;
      nodes += node != last;
      most_in_node = std::max(most_in_node, in_node);
      last = node;
    }
    if (nodes > most.nodes) most = {.nodes = nodes, .devices = most_in_node};
  }
  return most;
}

double all_reduce_between_nodes_s(double bytes, const Mesh& mesh, const HardwareProfile& profile) {
  if (mesh.nodes == 1) return 0;
  const double rate = bytes_per_s(profile.inter.gb_s), latency = micro(profile.inter.latency_us);
  const double ring = 2 * part_of_others(mesh.nodes) * bytes / rate + 2 * static_cast<double>(mesh.nodes - 1) * latency;
  const double tree = 2 * bytes / rate + 2 * std::log2(static_cast<double>(mesh.nodes)) * latency;
  return start_s(profile) + std::min(ring, tree);
}

double message_s(double bytes, bool between_nodes, const HardwareProfile& profile) {
  const LinkProfile& link = between_nodes ? profile.inter : profile.intra;
  return link.latency_us * 1e-6 + bytes / (link.gb_s * 1e9);
}

double all_reduce_s(double bytes, const Mesh& mesh, const HardwareProfile& profile) {
  if (mesh.ranks() == 1) return 0;
  const double ring = 2 * part_of_others(mesh.ranks()) * bytes / ring_rate(mesh, profile) + 2 * round_s(mesh, profile);
  double best = ring;
  if (mesh.nodes > 1) {
    const Mesh node{1, mesh.devices};
    const double tree = 2 * bytes / ring_rate(mesh, profile) +
                        2 * (static_cast<double>(mesh.devices - 1) * micro(profile.intra.latency_us) +
                             std::log2(static_cast<double>(mesh.nodes)) * micro(profile.inter.latency_us));
    const double in_three = 2 * all_gather_s(bytes, node, profile) +
                            all_reduce_between_nodes_s(bytes / static_cast<double>(mesh.devices), mesh, profile);
    best = std::min({ring, tree, in_three});
  }
  return start_s(profile) + best;
}

double all_gather_s(double bytes, const Mesh& mesh, const HardwareProfile& profile) {
  if (mesh.ranks() == 1) return 0;
  return start_s(profile) + part_of_others(mesh.ranks()) * bytes / ring_rate(mesh, profile) + round_s(mesh, profile);
}

double exposed_s(double compute_s, double each_s, int64_t count) {
  double end = 0;
  for (int64_t i = 1; i <= count; ++i)
    end = std::max(end, compute_s * static_cast<double>(i) / static_cast<double>(count)) + each_s;
  return std::max(0.0, end - compute_s);
}

double exposed_of_units_s(const UnitExchange& each, double forward_s, double backward_s, double batches) {
  const double gathers = each.gather * static_cast<double>(each.units);
  const double in_forward = each.gather + std::max(0.0, gathers - forward_s),
               gathers_again = each.gather + std::max(0.0, gathers - backward_s);
  return in_forward * batches + gathers_again * (batches - 1) +
         exposed_s(backward_s, each.gather + each.scatter, each.units);
}

}  // namespace fulgur::cli
