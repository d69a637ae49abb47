#include "fulgur/strategies/traced_tensor_rank.h"

#include <ATen/ops/empty.h>

#include <unordered_set>
#include <utility>

#include "tensor/tensor_calls.h"

namespace fulgur::detail {
namespace {

class NotedExchange final : public LayerExchange {
 public:
  explicit NotedExchange(int64_t ranks) : ranks_(ranks) {}
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return ranks_; }
  Tensor all_reduce(const Tensor& value, ReduceOp) override {
    Tensor copy = value.detach().clone();
    sum(copy);
    return copy;
  }
  void sum(Tensor values) override { note(TracedExchange::Kind::all_reduce, values); }
  Tensor gather_rows(const Tensor& value) override {
    std::vector<int64_t> sizes = value.sizes().vec();
    sizes.insert(sizes.begin(), ranks_);
    Tensor rows = at::empty(sizes, value.options().requires_grad(false));
    note(TracedExchange::Kind::all_gather, rows);
    return rows;
  }
  Tensor reduce_rows(const Tensor& rows) override {
    note(TracedExchange::Kind::reduce_scatter, rows);
    return at::empty(rows.sizes().slice(1), rows.options().requires_grad(false));
  }

  std::vector<TracedExchange> noted;

 private:
  void note(TracedExchange::Kind kind, const Tensor& value) {
    noted.push_back({.kind = kind, .bytes = static_cast<double>(value.nbytes())});
  }
  int64_t ranks_;
};

std::unordered_set<const void*> all_parameters(const DividedLayers& layers) {
  std::unordered_set<const void*> all;
  for (const DividedParameter& parameter : layers.parameters) all.insert(parameter.value.unsafeGetTensorImpl());
  return all;
}

}  // namespace

struct TracedTensorRank::Impl {
  Impl(DividedLayers layers, int64_t ranks)
      : exchange(ranks), here(all_parameters(layers)), shards(exchange, std::move(layers.parameters), here) {
    for (const DividedParameter& parameter : shards.parameters()) {
      wholes.push_back(parameter.value.detach());
      splits.emplace(parameter.name, parameter.split);
    }
    shards.divide();
    calls = std::make_unique<TensorCalls>(shards, layers.of_norms);
  }
  ~Impl() {
    for (size_t i = 0; i < wholes.size(); ++i) Tensor(shards.parameters()[i].value).set_data(wholes[i]);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  NotedExchange exchange;
  std::unordered_set<const void*> here;
  TensorShards shards;
  std::vector<Tensor> wholes;
  std::map<std::string, TensorSplit> splits;
  std::unique_ptr<TensorCalls> calls;
};

TracedTensorRank::TracedTensorRank(LightningModule& module, const std::map<std::string, TensorSplit>& options,
                                   int64_t ranks)
    : impl_(std::make_unique<Impl>(plan_divided_layers(module, options, ranks), ranks)) {}

TracedTensorRank::~TracedTensorRank() = default;

void TracedTensorRank::compute(const std::function<void()>& forward) {
  const SeenCalls seen(impl_->calls.get());
  forward();
}

Tensor TracedTensorRank::whole(const Tensor& value, std::string_view what) const {
  return impl_->calls->whole(value, what);
}

std::vector<TracedExchange> TracedTensorRank::take_exchanges() { return std::exchange(impl_->exchange.noted, {}); }
const std::map<std::string, TensorSplit>& TracedTensorRank::divided() const { return impl_->splits; }

}  // namespace fulgur::detail
