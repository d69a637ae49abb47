#include "ranks/split.h"

#include <algorithm>

#include "ranks/report.h"
#include "ranks/waiting.h"

namespace fulgur::simulated_nccl {
namespace {

/// Waits until a count of every member has reached `wanted`.
void wait_for(Communicator& parent, const std::vector<int>& members, std::atomic<uint64_t> SplitNote::*count,
              uint64_t wanted) {
  Waiting waiting([&] { return parent.place() + " waits for the other ranks of a split"; });
  for (const int member : members)
    while (parent.segment().note(member).*count < wanted) waiting.pause();
}

}  // namespace

ncclResult_t split(Communicator& parent, const std::vector<int>& members, int color, int key, ncclComm_t* made) {
  const uint64_t turn = parent.next_split();
  SplitNote& mine = parent.segment().note(parent.rank());
  mine.color = color;
  mine.key = key;
  // Rank 0 is known only after all notes are published, so each rank provides memory.
  const Origin own = mine.origin = Segment::create();
  mine.shown = turn;
  wait_for(parent, members, &SplitNote::shown, turn);
  std::vector<std::pair<int, int>> group;
  for (const int member : members)
    if (parent.segment().note(member).color == color) group.emplace_back(parent.segment().note(member).key, member);
  std::sort(group.begin(), group.end());
  const int rank =
      static_cast<int>(std::find(group.begin(), group.end(), std::pair(key, parent.rank())) - group.begin());
  const Origin origin = parent.segment().note(group.front().second).origin;
  // A note may be reused after all ranks have read it.
  mine.read = turn;
  wait_for(parent, members, &SplitNote::read, turn);
  if (rank != 0 || color < 0) Segment::close(own);
  *made = nullptr;
  if (color < 0) return ncclSuccess;
  const int world_size = static_cast<int>(group.size());
  std::string error;
  auto segment = Segment::attach(origin, world_size, rank, parent.segment().gpu(parent.rank()), error);
  if (!segment) return fail(ncclSystemError, "a split of the communicator: " + error);
  const auto communicator =
      std::make_shared<Communicator>(world_size, rank, parent.device(), std::move(segment), origin);
  const ncclResult_t joined = communicator->wait_for_all();
  if (joined == ncclSuccess) *made = new_handle(communicator);
  return joined;
}

}  // namespace fulgur::simulated_nccl
