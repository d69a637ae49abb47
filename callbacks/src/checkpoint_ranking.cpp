#include "checkpoint_ranking.h"

#include <algorithm>
#include <cmath>

namespace fulgur::detail {

CheckpointRanking::Place CheckpointRanking::place_of(std::optional<double> score) const {
  const bool ranks = top_k_ != 0;
  if (!by_score_) return {.keep = ranks, .best = ranks, .score = {}};
  if (!score) return {};
  const double value = std::isnan(*score) ? worst_value(mode_) : *score;
  const std::optional<double> last = last_kept_score();
  return {.keep = ranks && (!last || is_better(mode_, value, *last)),
          .best = ranks && (!standing_.best_score || is_better(mode_, value, *standing_.best_score)),
          .score = value};
}

// What is still being written counts, so that the decision does not depend on when it is complete.
std::optional<double> CheckpointRanking::last_kept_score() const {
  std::vector<double> scores;
  for (const Kept& item : standing_.kept) scores.push_back(item.score);
  for (const auto& [ticket, score] : standing_.pending) scores.push_back(score.value_or(0));
  if (top_k_ <= 0 || scores.size() < static_cast<size_t>(top_k_)) return std::nullopt;
  const auto last = scores.begin() + (top_k_ - 1);
  std::nth_element(scores.begin(), last, scores.end(), [&](double a, double b) { return is_better(mode_, a, b); });
  return *last;
}

void CheckpointRanking::requested(uint64_t ticket, const Place& place) {
  if (place.best && place.score) standing_.best_score = place.score;
  if (place.keep) standing_.pending[ticket] = place.score;
}

std::vector<std::filesystem::path> CheckpointRanking::published(uint64_t ticket, const std::filesystem::path& path) {
  const auto request = standing_.pending.find(ticket);
  if (request == standing_.pending.end()) return {};
  const double score = request->second.value_or(0);
  standing_.pending.erase(request);
  std::vector<Kept>& kept = standing_.kept;
  // Without scores, a newer one ranks before the others.
  const auto place = std::find_if(
      kept.begin(), kept.end(), [&](const Kept& other) { return !by_score_ || is_better(mode_, score, other.score); });
  kept.insert(place, {path, score});
  std::vector<std::filesystem::path> released;
  while (top_k_ >= 0 && kept.size() > static_cast<size_t>(top_k_)) {
    released.push_back(std::move(kept.back().path));
    kept.pop_back();
  }
  return released;
}

void CheckpointRanking::failed(uint64_t ticket) {
  standing_.pending.erase(ticket);
  standing_.best_score = standing_.kept.empty() ? std::nullopt : std::optional(standing_.kept.front().score);
}

bool CheckpointRanking::move_to(const std::filesystem::path& folder,
                                const std::function<bool(const std::filesystem::path&)>& counts) {
  for (Kept& item : standing_.kept) item.path = folder / item.path.filename();
  std::erase_if(standing_.kept, [&](const Kept& item) { return !counts(item.path); });
  if (!standing_.kept.empty() || !standing_.pending.empty()) return true;
  standing_.best_score.reset();
  return false;
}

}  // namespace fulgur::detail
