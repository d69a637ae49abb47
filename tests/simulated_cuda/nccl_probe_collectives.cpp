// Each collective against a plain computation of the same numbers.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "nccl_probe.h"

namespace fulgur::test {
namespace {

// Small, so that the types of one byte hold every sum and product of four ranks.
double number(int rank, size_t i, bool is_signed) {
  return static_cast<double>((static_cast<size_t>(rank) * 2 + i * 5 + i / 7) % 3) - (is_signed ? 1 : 0);
}

template <class T>
double to_double(T value) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<double>(value);
  else
    return static_cast<double>(static_cast<float>(value));
}

template <class T>
T from_double(double value) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<T>(value);
  else
    return static_cast<T>(static_cast<float>(value));
}

template <class T>
constexpr bool kSigned = !std::is_unsigned_v<T>;

template <class T>
std::vector<T> numbers(int rank, size_t count) {
  std::vector<T> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = from_double<T>(number(rank, i, kSigned<T>));
  return all;
}

double reduced(int world, size_t i, bool is_signed, ncclRedOp_t op) {
  double value = number(0, i, is_signed);
  for (int rank = 1; rank < world; ++rank) {
    const double other = number(rank, i, is_signed);
    if (op == ncclProd)
      value *= other;
    else if (op == ncclMax)
      value = std::max(value, other);
    else if (op == ncclMin)
      value = std::min(value, other);
    else
      value += other;
  }
  return op == ncclAvg ? value / world : value;
}

template <class T>
void check(const std::vector<T>& got, size_t begin, const std::function<double(size_t)>& wanted, size_t count,
           const char* what) {
  for (size_t i = 0; i < count; ++i) {
    const double value = to_double(got[begin + i]), expected = to_double(from_double<T>(wanted(i)));
    if (value == expected) continue;
    std::fprintf(stderr, "%s: element %zu is %g instead of %g\n", what, i, value, expected);
    std::_Exit(1);
  }
}

template <class T>
void collectives_of(const Rank& r, ncclDataType_t type, size_t count) {
  constexpr bool s = kSigned<T>;
  const auto world = static_cast<size_t>(r.world);
  const OnDevice<T> mine(numbers<T>(r.rank, count)), whole(numbers<T>(r.rank, count * world));
  const int root = r.world - 1;
  for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg}) {
    const auto sum = [&](size_t i) { return reduced(r.world, i, s, op); };
    const OnDevice<T> all(count), in_place(numbers<T>(r.rank, count)), scattered(count), at_root(count);
    PROBE_CHECK(ncclAllReduce(mine.get(), all.get(), count, type, op, r.comm, r.stream) == ncclSuccess);
    PROBE_CHECK(ncclAllReduce(in_place.get(), in_place.get(), count, type, op, r.comm, r.stream) == ncclSuccess);
    PROBE_CHECK(ncclReduce(mine.get(), at_root.get(), count, type, op, root, r.comm, r.stream) == ncclSuccess);
    PROBE_CHECK(ncclReduceScatter(whole.get(), scattered.get(), count, type, op, r.comm, r.stream) == ncclSuccess);
    r.wait();
    check(all.values(), 0, sum, count, "all-reduce");
    check(in_place.values(), 0, sum, count, "all-reduce in place");
    if (r.rank == root) check(at_root.values(), 0, sum, count, "reduce");
    const size_t begin = static_cast<size_t>(r.rank) * count;
    check(
        scattered.values(), 0, [&](size_t i) { return reduced(r.world, begin + i, s, op); }, count, "reduce-scatter");
  }
  const OnDevice<T> sent(numbers<T>(r.rank, count)), out(count), all(count * world), exchanged(count * world),
      gathered(count * world), part(count);
  PROBE_CHECK(ncclBroadcast(mine.get(), out.get(), count, type, root, r.comm, r.stream) == ncclSuccess);
  PROBE_CHECK(ncclBcast(sent.get(), count, type, root, r.comm, r.stream) == ncclSuccess);
  PROBE_CHECK(ncclAllGather(mine.get(), all.get(), count, type, r.comm, r.stream) == ncclSuccess);
  PROBE_CHECK(ncclAlltoAll(whole.get(), exchanged.get(), count, type, r.comm, r.stream) == ncclSuccess);
  PROBE_CHECK(ncclGather(mine.get(), gathered.get(), count, type, root, r.comm, r.stream) == ncclSuccess);
  PROBE_CHECK(ncclScatter(whole.get(), part.get(), count, type, root, r.comm, r.stream) == ncclSuccess);
  r.wait();
  const size_t own = static_cast<size_t>(r.rank) * count;
  check(
      out.values(), 0, [&](size_t i) { return number(root, i, s); }, count, "broadcast");
  check(
      sent.values(), 0, [&](size_t i) { return number(root, i, s); }, count, "broadcast in place");
  check(
      part.values(), 0, [&](size_t i) { return number(root, own + i, s); }, count, "scatter");
  for (int other = 0; other < r.world; ++other) {
    const size_t begin = static_cast<size_t>(other) * count;
    check(
        all.values(), begin, [&](size_t i) { return number(other, i, s); }, count, "all-gather");
    check(
        exchanged.values(), begin, [&](size_t i) { return number(other, own + i, s); }, count, "all-to-all");
    if (r.rank == root)
      check(
          gathered.values(), begin, [&](size_t i) { return number(other, i, s); }, count, "gather");
  }
}

}  // namespace

void probe_collectives(Rank& r) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{37}}) {
    collectives_of<int8_t>(r, ncclInt8, count);
    collectives_of<uint8_t>(r, ncclUint8, count);
    collectives_of<int32_t>(r, ncclInt32, count);
    collectives_of<uint32_t>(r, ncclUint32, count);
    collectives_of<int64_t>(r, ncclInt64, count);
    collectives_of<uint64_t>(r, ncclUint64, count);
    collectives_of<__half>(r, ncclFloat16, count);
    collectives_of<float>(r, ncclFloat32, count);
    collectives_of<double>(r, ncclFloat64, count);
    collectives_of<__nv_bfloat16>(r, ncclBfloat16, count);
    collectives_of<__nv_fp8_e4m3>(r, ncclFloat8e4m3, count);
    collectives_of<__nv_fp8_e5m2>(r, ncclFloat8e5m2, count);
  }
}

void probe_large(Rank& r) { collectives_of<float>(r, ncclFloat32, 200'003); }

void probe_premultiplied(Rank& r) {
  // One factor is read at once, the other when the work runs.
  int64_t at_once = r.rank + 2;
  const OnDevice<int64_t> later(std::vector<int64_t>{0}), mine(numbers<int64_t>(r.rank, 9)), a(9), b(9);
  ncclRedOp_t first{}, second{};
  PROBE_CHECK(ncclRedOpCreatePreMulSum(&first, &at_once, ncclInt64, ncclScalarHostImmediate, r.comm) == ncclSuccess);
  PROBE_CHECK(ncclRedOpCreatePreMulSum(&second, later.get(), ncclInt64, ncclScalarDevice, r.comm) == ncclSuccess);
  const int64_t factor = at_once;
  PROBE_CHECK(cudaMemcpyAsync(later.get(), &factor, sizeof factor, cudaMemcpyHostToDevice, r.stream) == cudaSuccess);
  at_once = 99;
  PROBE_CHECK(ncclAllReduce(mine.get(), a.get(), 9, ncclInt64, first, r.comm, r.stream) == ncclSuccess);
  PROBE_CHECK(ncclRedOpDestroy(first, r.comm) == ncclSuccess);
  PROBE_CHECK(ncclAllReduce(mine.get(), b.get(), 9, ncclInt64, second, r.comm, r.stream) == ncclSuccess);
  PROBE_CHECK(ncclRedOpDestroy(second, r.comm) == ncclSuccess);
  r.wait();
  const auto wanted = [&](size_t i) {
    double sum = 0;
    for (int rank = 0; rank < r.world; ++rank) sum += (rank + 2) * number(rank, i, true);
    return sum;
  };
  check(a.values(), 0, wanted, 9, "premul-sum with a factor of the host");
  check(b.values(), 0, wanted, 9, "premul-sum with a factor of the device");
  PROBE_CHECK(ncclAllReduce(mine.get(), a.get(), 9, ncclInt64, first, r.comm, r.stream) == ncclInvalidArgument);
}

void probe_half_in_float(Rank& r) {
  // Added up in half precision, 1024 + 0.5 + 0.5 is 1024; integers of 64 bits do not go through a double.
  const OnDevice<__half> half(std::vector<__half>{__float2half(r.rank == 0 ? 1024.0f : 0.5f)});
  const OnDevice<int64_t> large(std::vector<int64_t>{(int64_t{1} << 60) + r.rank});
  PROBE_CHECK(ncclAllReduce(half.get(), half.get(), 1, ncclFloat16, ncclSum, r.comm, r.stream) == ncclSuccess);
  PROBE_CHECK(ncclAllReduce(large.get(), large.get(), 1, ncclInt64, ncclSum, r.comm, r.stream) == ncclSuccess);
  r.wait();
  PROBE_CHECK(r.world == 3);
  PROBE_CHECK(__half2float(half.values()[0]) == 1025.0f);
  PROBE_CHECK(large.values()[0] == 3 * (int64_t{1} << 60) + 3);
}

}  // namespace fulgur::test
