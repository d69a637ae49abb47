#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fulgur/core/contracts/collectives.h"

namespace fulgur::test {

/// Where the ranks of a ThreadCollectives meet. Reductions go from rank 0 up, so all ranks get the same bits.
class ThreadWorld {
 public:
  explicit ThreadWorld(int64_t size) : size_(size), values_(static_cast<size_t>(size)) {}
  int64_t size() const { return size_; }

  /// Every rank's value, by rank.
  std::vector<Tensor> exchange(int64_t rank, const Tensor& value) {
    values_[static_cast<size_t>(rank)] = value;
    wait();
    std::vector<Tensor> all = values_;
    wait();
    return all;
  }

  /// What `combine` makes of every rank's value, by rank. Made once, so that a thousand ranks are cheap.
  Tensor reduce(int64_t rank, const Tensor& value, const std::function<Tensor(const std::vector<Tensor>&)>& combine) {
    values_[static_cast<size_t>(rank)] = value;
    wait([&] { reduced_ = combine(values_); });
    Tensor own = reduced_.clone();
    wait();
    return own;
  }

  /// Returns when all ranks are here; throws once one has failed, or does not come within a minute. The last to come
  /// calls `last` while the others wait.
  void wait(const std::function<void()>& last = {}) {
    std::unique_lock lock(mutex_);
    const int64_t mine = round_;
    if (++waiting_ == size_) {
      if (last) last();
      waiting_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    const bool came = changed_.wait_for(lock, std::chrono::minutes(1), [&] { return round_ != mine || failed_; });
    if (round_ == mine) throw std::runtime_error(came ? "another rank has failed" : "another rank has not come");
  }

  /// Lets no rank wait any more.
  void fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
  }

 private:
  const int64_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t waiting_ = 0, round_ = 0;
  bool failed_ = false;
  std::vector<Tensor> values_;
  Tensor reduced_;
};

/// Collectives between threads of one process, for CPU tensors: LibTorch runs their backward on the thread that calls
/// it. The default generator is one per process, so ranks draw no random numbers.
class ThreadCollectives final : public Collectives {
 public:
  ThreadCollectives(ThreadWorld& world, int64_t rank) : world_(world), rank_(rank) {}
  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return world_.size(); }

  Tensor all_reduce(const Tensor& value, ReduceOp op) override {
    return world_.reduce(rank_, value.detach().clone(), [&](const std::vector<Tensor>& all) {
      Tensor result = all[0].clone();
      for (size_t i = 1; i < all.size(); ++i) {
        if (op == ReduceOp::min)
          result = result.minimum(all[i]);
        else if (op == ReduceOp::max)
          result = result.maximum(all[i]);
        else
          result.add_(all[i]);
      }
      return op == ReduceOp::mean ? result.div_(world_.size()) : result;
    });
  }

  std::vector<Tensor> all_gather(const Tensor& value, bool with_gradients = false) override {
    if (with_gradients) return Gather::apply(value, this);
    std::vector<Tensor> all = world_.exchange(rank_, value.detach().clone());
    for (Tensor& tensor : all) tensor = tensor.clone();
    return all;
  }

  Tensor broadcast(const Tensor& value, int64_t source_rank) override {
    return all_gather(value)[static_cast<size_t>(source_rank)];
  }
  bool any(bool value) override {
    return all_reduce(at::scalar_tensor(value ? 1 : 0, at::kLong), ReduceOp::max).item<int64_t>() != 0;
  }
  void barrier(std::string_view) override { world_.wait(); }
  std::vector<std::string> gather_text(std::string_view text) override {
    std::vector<std::string> texts;
    for (const Tensor& bytes : world_.exchange(rank_, to_bytes(text))) texts.push_back(to_text(bytes));
    return texts;
  }
  std::string broadcast_text(std::string_view text, int64_t source_rank) override {
    return gather_text(text)[static_cast<size_t>(source_rank)];
  }
  std::unique_ptr<PendingReduction> start_max(std::vector<int64_t> values) override {
    const Tensor all =
        all_reduce(at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kLong), ReduceOp::max);
    const int64_t* data = all.const_data_ptr<int64_t>();
    return SingleProcessCollectives().start_max({data, data + all.numel()});
  }

 private:
  struct Gather : torch::autograd::Function<Gather> {
    static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const Tensor& value,
                                                  ThreadCollectives* collectives) {
      context->saved_data["collectives"] = static_cast<int64_t>(reinterpret_cast<intptr_t>(collectives));
      return collectives->all_gather(value);
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   const torch::autograd::variable_list& gradients) {
      auto& collectives =
          *reinterpret_cast<ThreadCollectives*>(static_cast<intptr_t>(context->saved_data["collectives"].toInt()));
      Tensor own;
      for (size_t rank = 0; rank < gradients.size(); ++rank) {
        const Tensor sum = collectives.all_reduce(gradients[rank], ReduceOp::sum);
        if (static_cast<int64_t>(rank) == collectives.rank()) own = sum;
      }
      return {own, Tensor()};
    }
  };

  static Tensor to_bytes(std::string_view text) {
    Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
    std::copy(text.begin(), text.end(), static_cast<char*>(bytes.mutable_data_ptr()));
    return bytes;
  }
  static std::string to_text(const Tensor& bytes) {
    return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
  }

  ThreadWorld& world_;
  const int64_t rank_;
};

/// Runs `body` on as many threads as ranks; throws what the first of them threw that did not only wait for another.
/// Catch2's macros belong into the thread of the test: let the ranks return what is to be compared.
inline void run_ranks(int64_t ranks, const std::function<void(Collectives&)>& body) {
  ThreadWorld world(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        ThreadCollectives collectives(world, rank);
        body(collectives);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        world.fail();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace fulgur::test
