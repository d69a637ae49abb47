#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/collectives.h"

namespace fulgur::test {

/// Counts the exchanges of its rank, and the bytes that it sends and receives in them: of a reduction about twice its
/// size, of a gather the texts of all.
class CountingCollectives final : public Collectives {
 public:
  explicit CountingCollectives(Collectives& inner) : inner_(inner) {}
  int64_t rank() const override { return inner_.rank(); }
  int64_t world_size() const override { return inner_.world_size(); }
  Tensor all_reduce(const Tensor& value, ReduceOp op) override {
    ++exchanges;
    bytes += 2 * static_cast<int64_t>(value.nbytes());
    return inner_.all_reduce(value, op);
  }
  std::vector<Tensor> all_gather(const Tensor& value, bool with_gradients) override {
    ++exchanges;
    std::vector<Tensor> all = inner_.all_gather(value, with_gradients);
    for (const Tensor& one : all) bytes += static_cast<int64_t>(one.nbytes());
    return all;
  }
  Tensor broadcast(const Tensor& value, int64_t source) override {
    ++exchanges;
    bytes += static_cast<int64_t>(value.nbytes());
    return inner_.broadcast(value, source);
  }
  bool any(bool value) override { return start_max({value ? 1 : 0})->take()[0] != 0; }
  void barrier(std::string_view) override { start_max({0})->take(); }
  std::vector<std::string> gather_text(std::string_view text) override {
    ++exchanges, ++gathers;
    sent_to_gathers += static_cast<int64_t>(text.size());
    std::vector<std::string> all = inner_.gather_text(text);
    for (const std::string& one : all) bytes += static_cast<int64_t>(one.size());
    return all;
  }
  std::string broadcast_text(std::string_view text, int64_t source) override {
    ++exchanges;
    std::string sent = inner_.broadcast_text(text, source);
    bytes += static_cast<int64_t>(sent.size());
    return sent;
  }
  std::unique_ptr<PendingReduction> start_max(std::vector<int64_t> values) override {
    ++exchanges;
    bytes += 2 * static_cast<int64_t>(values.size() * sizeof(int64_t));
    return inner_.start_max(std::move(values));
  }

  int64_t exchanges = 0, bytes = 0, gathers = 0, sent_to_gathers = 0;

 private:
  Collectives& inner_;
};

}  // namespace fulgur::test
