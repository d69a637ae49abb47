#include "planning/plan_search.h"

#include <utility>

namespace fulgur::cli {
namespace {

constexpr int64_t kLargestBatch = 4096;

}  // namespace

const Prediction* NodePlan::best() const {
  const Prediction* best = nullptr;
  for (const Prediction& one : shardings)
    if (one.obstacle.empty() && (best == nullptr || one.samples_per_s > best->samples_per_s)) best = &one;
  return best;
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

// Memory grows with the batch, so the search ends at the first size that does not fit.
Prediction PlanSearch::best_batch(PlannedSharding sharding, const Mesh& mesh) {
  Prediction best;
  for (int64_t size = 1; size <= kLargestBatch; size *= 2) {
    Prediction one = predict_step(model_.size(), step(size), sharding, mesh, run_, profile_);
    if (!one.obstacle.empty()) return size == 1 ? one : best;
    // More samples at once are worth their memory only if they are faster.
    if (size == 1 || one.samples_per_s > best.samples_per_s * 1.01) best = std::move(one);
  }
  return best;
}

NodePlan PlanSearch::search(const Mesh& mesh) {
  NodePlan plan;
  for (const PlannedSharding sharding : kShardings) plan.shardings.push_back(best_batch(sharding, mesh));
  return plan;
}

}  // namespace fulgur::cli
