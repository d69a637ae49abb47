#include "planning/block_pools.h"

#include <algorithm>
#include <iterator>

namespace fulgur::cli {
namespace {

constexpr int64_t kKiB = 1024, kMiB = kKiB * kKiB;
constexpr int64_t kSmallest = 512, kLargestSmall = kMiB, kSmallSegment = 2 * kMiB, kMiddleSegment = 20 * kMiB,
                  kLeastOwnSegment = 10 * kMiB;

int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

BlockPools::Block BlockPools::allocate(int64_t bytes) {
  const int64_t size = std::max(round_up(bytes, kSmallest), kSmallest);
  const bool is_small = size <= kLargestSmall;
  Pool& pool = is_small ? small_ : large_;
  std::pair<int64_t, int64_t> place;
  if (const auto found = pool.lower_bound({size, 0, 0}); found != pool.end()) {
    place = {std::get<1>(*found), std::get<2>(*found)};
    pool.erase(found);
  } else {
    const int64_t segment = is_small                  ? kSmallSegment
                            : size < kLeastOwnSegment ? kMiddleSegment
                                                      : round_up(size, kSmallSegment);
    reserved_ += segment;
    place = {segments_++, 0};
    parts_[place] = {place.first, 0, segment, is_small, true};
  }
  Part& part = parts_.at(place);
  const int64_t rest = part.size - size;
  if (is_small ? rest >= kSmallest : rest > kLargestSmall) {
    const Part other{part.segment, part.begin + size, rest, is_small, true};
    parts_[{other.segment, other.begin}] = other;
    pool.insert({other.size, other.segment, other.begin});
    part.size = size;
  }
  part.is_free = false;
  allocated_ += part.size;
  used_[++blocks_] = place;
  return blocks_;
}

void BlockPools::free(Block block) {
  const auto used = used_.find(block);
  if (used == used_.end()) return;
  auto part = parts_.find(used->second);
  used_.erase(used);
  allocated_ -= part->second.size;
  part->second.is_free = true;
  const auto join = [&](auto first, auto second) {
    pool_of(first->second).erase({first->second.size, first->second.segment, first->second.begin});
    pool_of(second->second).erase({second->second.size, second->second.segment, second->second.begin});
    first->second.size += second->second.size;
    parts_.erase(second);
    return first;
  };
  if (part != parts_.begin())
    if (const auto before = std::prev(part); before->second.segment == part->second.segment && before->second.is_free)
      part = join(before, part);
  if (const auto after = std::next(part);
      after != parts_.end() && after->second.segment == part->second.segment && after->second.is_free)
    part = join(part, after);
  pool_of(part->second).insert({part->second.size, part->second.segment, part->second.begin});
}

}  // namespace fulgur::cli
