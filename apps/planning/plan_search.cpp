#include "planning/plan_search.h"

#include <algorithm>
#include <utility>

namespace fulgur::cli {
namespace {

constexpr int64_t kLargestBatch = 4096, kMostNeeded = 16;

}  // namespace

const Prediction* NodePlan::best() const {
  double fastest = 0;
  bool any_starts = false;
  const auto runs = [&](const Prediction& one) { return one.obstacle.empty() && (one.starts() || !any_starts); };
  for (const Prediction& one : shardings) any_starts |= one.obstacle.empty() && one.starts();
  for (const Prediction& one : shardings)
    if (runs(one)) fastest = std::max(fastest, one.samples_per_s);
  const Prediction* first = nullptr;
  for (const Prediction& one : shardings) {
    if (!runs(one) || one.samples_per_s < kAsFast * fastest) continue;
    if (one.memory.total() <= kSafeShareOfMemory * one.limit) return &one;
    if (!first) first = &one;
  }
  return first;
}

PlanSearch::PlanSearch(TracedModel& model, PlannedRun run, HardwareProfile profile)
    : model_(model), run_(run), profile_(std::move(profile)) {}

const StepSize& PlanSearch::step(int64_t batch_size) {
  const auto found = steps_.find(batch_size);
  return found != steps_.end() ? found->second : steps_.emplace(batch_size, model_.step(batch_size)).first->second;
}

std::vector<Prediction> PlanSearch::as_configured(const Mesh& mesh) {
  std::vector<Prediction> all;
  for (const PlannedSharding sharding : kShardings)
    all.push_back(predict_step(model_.size(), step(model_.batch_size()), sharding, mesh, run_, profile_));
  return all;
}

int64_t PlanSearch::least_batch() {
  if (least_batch_ > 0) return least_batch_;
  // Statistics of a batch may need several samples.
  for (int64_t size = 1; size < model_.batch_size() && size < kMostNeeded; size *= 2) {
    try {
      static_cast<void>(step(size));
      return least_batch_ = size;
    } catch (const std::exception&) {
    }
  }
  static_cast<void>(step(model_.batch_size()));
  return least_batch_ = model_.batch_size();
}

// Memory grows with the batch, so the search ends at the first size that does not fit.
Prediction PlanSearch::best_batch(PlannedSharding sharding, const Mesh& mesh) {
  Prediction best;
  for (int64_t size = least_batch(); size <= kLargestBatch; size *= 2) {
    Prediction one = predict_step(model_.size(), step(size), sharding, mesh, run_, profile_);
    if (!one.obstacle.empty()) return size == least_batch() ? one : best;
    // More samples at once are worth their memory only if they are faster.
    if (size == least_batch() || one.samples_per_s > best.samples_per_s * 1.01) best = std::move(one);
  }
  return best;
}

std::optional<int64_t> PlanSearch::fewest_nodes(int64_t devices, int64_t most) {
  for (int64_t nodes = 1; nodes <= most; nodes *= 2)
    for (const PlannedSharding sharding : kShardings)
      if (predict_step(model_.size(), step(least_batch()), sharding, {nodes, devices}, run_, profile_).obstacle.empty())
        return nodes;
  return std::nullopt;
}

NodePlan PlanSearch::search(const Mesh& mesh) {
  NodePlan plan;
  for (const PlannedSharding sharding : kShardings) plan.shardings.push_back(best_batch(sharding, mesh));
  return plan;
}

}  // namespace fulgur::cli
