// Groups, several communicators, several devices.
#include <algorithm>
#include <memory>

#include "nccl_probe.h"

namespace fulgur::test {
namespace {

constexpr size_t kLong = 100'000;  // more than a channel holds

/// What one rank sends another as its n-th message.
std::vector<int> message(int from, int to, int n, size_t count) {
  std::vector<int> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = from * 1000 + to * 100 + n * 10 + static_cast<int>(i % 7);
  return all;
}

int sum_of(const std::vector<int>& values) {
  int sum = 0;
  for (const int value : values) sum += value;
  return sum;
}

/// An all-reduce of each member's `value`.
int summed(ncclComm_t comm, cudaStream_t stream, int value) {
  const OnDevice<int> one(std::vector<int>{value});
  PROBE_CHECK(ncclAllReduce(one.get(), one.get(), 1, ncclInt32, ncclSum, comm, stream) == ncclSuccess);
  PROBE_CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  return one.values()[0];
}

}  // namespace

void probe_group_orders(Rank& r) {
  struct Exchange {
    int peer, n;
    bool sends;
  };
  std::vector<Exchange> plan;
  for (int peer = 0; peer < r.world; ++peer)
    for (int n = 0; n < 2; ++n) {
      plan.push_back({peer, n, true});
      plan.push_back({peer, n, false});
    }
  // All receive first; all send first; ranks go in different orders. Messages between the same two stay in their order.
  const auto by = [&](auto before) { std::stable_sort(plan.begin(), plan.end(), before); };
  for (int order = 0; order < 4; ++order) {
    by([](const Exchange& a, const Exchange& b) { return a.peer < b.peer; });
    if (order == 0) by([](const Exchange& a, const Exchange& b) { return a.sends < b.sends; });
    if (order == 1) by([](const Exchange& a, const Exchange& b) { return a.sends > b.sends; });
    if (order == 2)
      by([&](const Exchange& a, const Exchange& b) { return r.rank % 2 == 0 ? a.peer > b.peer : a.peer < b.peer; });
    if (order == 3)
      by([&](const Exchange& a, const Exchange& b) {
        return (a.peer + a.sends + r.rank) % 3 < (b.peer + b.sends + r.rank) % 3;
      });
    std::vector<std::unique_ptr<OnDevice<int>>> memory;
    PROBE_CHECK(ncclGroupStart() == ncclSuccess);
    for (const Exchange& e : plan) {
      const size_t count = e.n == 0 ? kLong : 5;
      memory.push_back(e.sends ? std::make_unique<OnDevice<int>>(message(r.rank, e.peer, e.n, count))
                               : std::make_unique<OnDevice<int>>(count));
      if (e.sends)
        PROBE_CHECK(ncclSend(memory.back()->get(), count, ncclInt32, e.peer, r.comm, r.stream) == ncclSuccess);
      else
        PROBE_CHECK(ncclRecv(memory.back()->get(), count, ncclInt32, e.peer, r.comm, r.stream) == ncclSuccess);
    }
    PROBE_CHECK(ncclGroupEnd() == ncclSuccess);
    r.wait();
    for (size_t i = 0; i < plan.size(); ++i)
      if (!plan[i].sends)
        PROBE_CHECK(memory[i]->values() == message(plan[i].peer, r.rank, plan[i].n, plan[i].n == 0 ? kLong : 5));
  }
  // An empty message is not sent.
  if (r.rank == 0) PROBE_CHECK(ncclSend(nullptr, 0, ncclInt32, r.world - 1, r.comm, r.stream) == ncclSuccess);
  PROBE_CHECK(summed(r.comm, r.stream, 1) == r.world);
}

void probe_group_of_collectives(Rank& r) {
  // A collective and messages in one group, on two streams: their order among each other is free.
  cudaStream_t other = nullptr;
  PROBE_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
  const int next = (r.rank + 1) % r.world, before = (r.rank + r.world - 1) % r.world;
  const OnDevice<int> a(std::vector<int>(kLong, r.rank)), b(std::vector<int>(3, 10 + r.rank)), got(kLong);
  const auto reduce = [&] {
    PROBE_CHECK(ncclAllReduce(b.get(), b.get(), 3, ncclInt32, ncclSum, r.comm, other) == ncclSuccess);
  };
  PROBE_CHECK(ncclGroupStart() == ncclSuccess);
  PROBE_CHECK(ncclGroupStart() == ncclSuccess);
  if (r.rank % 2 == 0) reduce();
  PROBE_CHECK(ncclSend(a.get(), kLong, ncclInt32, next, r.comm, r.stream) == ncclSuccess);
  PROBE_CHECK(ncclGroupEnd() == ncclSuccess);
  PROBE_CHECK(ncclRecv(got.get(), kLong, ncclInt32, before, r.comm, r.stream) == ncclSuccess);
  if (r.rank % 2 == 1) reduce();
  PROBE_CHECK(ncclGroupEnd() == ncclSuccess);
  // Both streams wait for the group.
  PROBE_CHECK(cudaStreamSynchronize(other) == cudaSuccess);
  r.wait();
  PROBE_CHECK(got.values() == std::vector<int>(kLong, before));
  PROBE_CHECK(b.values() == std::vector<int>(3, 10 * r.world + r.world * (r.world - 1) / 2));
  PROBE_CHECK(ncclGroupEnd() == ncclInvalidUsage);
}

void probe_two_streams(Rank& r) {
  // Work of a communicator runs in the order of the calls on all ranks, whatever its streams.
  cudaStream_t other = nullptr;
  PROBE_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
  // The first stream is late on one rank, so that the second's work could overtake it there.
  if (r.rank == 0) PROBE_CHECK(cudaLaunchHostFunc(r.stream, sleep_on_stream, nullptr) == cudaSuccess);
  std::vector<std::unique_ptr<OnDevice<int>>> memory;
  for (int i = 0; i < 20; ++i) {
    memory.push_back(std::make_unique<OnDevice<int>>(std::vector<int>(static_cast<size_t>(i) + 1, r.rank + i)));
    const bool first = i % 2 == 0;
    PROBE_CHECK(ncclAllReduce(memory.back()->get(), memory.back()->get(), static_cast<size_t>(i) + 1, ncclInt32,
                              ncclSum, r.comm, first ? r.stream : other) == ncclSuccess);
  }
  PROBE_CHECK(cudaDeviceSynchronize() == cudaSuccess);
  for (int i = 0; i < 20; ++i)
    PROBE_CHECK(memory[static_cast<size_t>(i)]->values()[0] == i * r.world + r.world * (r.world - 1) / 2);
}

void probe_split(Rank& r) {
  PROBE_CHECK(r.world == 4);
  for (int turn = 0; turn < 3; ++turn) {
    // Even and odd ranks, the highest first.
    ncclComm_t half = nullptr;
    PROBE_CHECK(ncclCommSplit(r.comm, r.rank % 2, -r.rank, &half, nullptr) == ncclSuccess);
    int count = 0, rank = -1;
    PROBE_CHECK(ncclCommCount(half, &count) == ncclSuccess && ncclCommUserRank(half, &rank) == ncclSuccess);
    PROBE_CHECK(count == 2 && rank == (r.rank < 2 ? 1 : 0));
    PROBE_CHECK(summed(half, r.stream, r.rank) == (r.rank % 2 == 0 ? 2 : 4));
    ncclComm_t some = nullptr;
    PROBE_CHECK(ncclCommSplit(r.comm, r.rank == turn ? NCCL_SPLIT_NOCOLOR : 7, 0, &some, nullptr) == ncclSuccess);
    PROBE_CHECK((some == nullptr) == (r.rank == turn));
    if (some) PROBE_CHECK(summed(some, r.stream, 1) == 3);
    if (some) PROBE_CHECK(ncclCommDestroy(some) == ncclSuccess);
    PROBE_CHECK(ncclCommDestroy(half) == ncclSuccess);
  }
  PROBE_CHECK(summed(r.comm, r.stream, 1) == 4);
}

void probe_shrink(Rank& r) {
  PROBE_CHECK(r.world == 3);
  if (r.rank == 1) return;  // it is gone, and the others continue without it
  int gone = 1;
  ncclComm_t fewer = nullptr;
  PROBE_CHECK(ncclCommShrink(r.comm, &gone, 1, &fewer, nullptr, NCCL_SHRINK_ABORT) == ncclSuccess);
  PROBE_CHECK(summed(fewer, r.stream, r.rank) == 2);
}

void probe_one_process(Rank&) {
  constexpr int kDevices = 3;
  ncclComm_t comms[kDevices];
  PROBE_CHECK(ncclCommInitAll(comms, kDevices, nullptr) == ncclSuccess);
  std::vector<std::unique_ptr<OnDevice<int>>> memory;
  for (int device = 0; device < kDevices; ++device) {
    int on = -1;
    PROBE_CHECK(ncclCommCuDevice(comms[device], &on) == ncclSuccess && on == device);
    PROBE_CHECK(cudaSetDevice(device) == cudaSuccess);
    memory.push_back(std::make_unique<OnDevice<int>>(std::vector<int>(kLong, device + 1)));
  }
  PROBE_CHECK(ncclGroupStart() == ncclSuccess);
  for (int device = 0; device < kDevices; ++device)
    PROBE_CHECK(ncclAllReduce(memory[static_cast<size_t>(device)]->get(), memory[static_cast<size_t>(device)]->get(),
                              kLong, ncclInt32, ncclSum, comms[device], nullptr) == ncclSuccess);
  PROBE_CHECK(ncclGroupEnd() == ncclSuccess);
  for (int device = 0; device < kDevices; ++device) {
    PROBE_CHECK(cudaSetDevice(device) == cudaSuccess && cudaStreamSynchronize(nullptr) == cudaSuccess);
    PROBE_CHECK(sum_of(memory[static_cast<size_t>(device)]->values()) == 6 * static_cast<int>(kLong));
    PROBE_CHECK(ncclCommDestroy(comms[device]) == ncclSuccess);
  }
  // The same with ranks that one thread makes one by one.
  ncclUniqueId id;
  PROBE_CHECK(ncclGetUniqueId(&id) == ncclSuccess && ncclGroupStart() == ncclSuccess);
  for (int device = 0; device < kDevices; ++device) {
    PROBE_CHECK(cudaSetDevice(device) == cudaSuccess);
    PROBE_CHECK(ncclCommInitRank(&comms[device], kDevices, id, device) == ncclSuccess);
  }
  PROBE_CHECK(ncclGroupEnd() == ncclSuccess);
  for (ncclComm_t comm : comms) PROBE_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

}  // namespace fulgur::test
