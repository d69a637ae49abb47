#include "distributed/gradient_averages.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_div.h>

#include <utility>

#include "distributed/tensor_average.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr size_t kLargeBytes = size_t{256} * 1024;

}  // namespace

GradientAverages::GradientAverages(const ProcessGroup& group, C10dCollectives& ranks,
                                   std::vector<NamedParameter> parameters, std::string strategy)
    : group_(group), ranks_(ranks), parameters_(std::move(parameters)), strategy_(std::move(strategy)), order_(0) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i].value;
    const bool is_large = parameter.nbytes() >= kLargeBytes;
    place_in_large_.push_back(is_large ? std::optional(large_.size()) : std::nullopt);
    if (is_large) large_.push_back({.parameter = i});
    hooks_.push_back(std::make_unique<GradientHook>(parameter, [this, i] { take(i); }));
  }
  order_ = ArrivalOrder(large_.size());
}

void GradientAverages::begin() {
  awaited_.assign(parameters_.size(), 1);
  for (Large& large : large_) large.work.reset();
  order_.begin();
}

Tensor GradientAverages::gradient(size_t parameter) const {
  Tensor& gradient = parameters_[parameter].value.mutable_grad();
  if (!gradient.defined()) return {};
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  if (!gradient.is_contiguous()) gradient = gradient.contiguous();
  // A gradient that has passed through a view may be memory which this backward still reads, or another gradient.
  if (gradient.storage().use_count() > 1) gradient = gradient.clone();
  return gradient.detach();
}

void GradientAverages::take(size_t parameter) {
  if (!counts_) return;
  if (!std::exchange(awaited_[parameter], 0))
    throw DistributedError(
        cat("[strategies.", strategy_, "] '", escape_controls(parameters_[parameter].name),
            "' got its gradient twice in one backward, after the first one was exchanged. A layer that computes its "
            "backward inside another backward must not share parameters."));
  if (place_in_large_[parameter])
    order_.arrive(*place_in_large_[parameter], [this](size_t item) { start(large_[item]); });
}

void GradientAverages::start(Large& large) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> sum{gradient(large.parameter)};
  if (!sum.front().defined()) return;
  run_exchange(group_, strategy_.c_str(), [&] { large.work = ranks_.group()->allreduce(sum); });
}

void GradientAverages::end() {
  const at::NoGradGuard no_grad;
  // Those that had no part in a backward that counts, and what comes after them.
  order_.start_rest([this](size_t item) { start(large_[item]); });
  run_exchange(group_, strategy_.c_str(), [&] {
    order_.for_each([&](size_t item) {
      if (const auto work = std::exchange(large_[item].work, {})) work->wait();
    });
  });
  std::vector<Tensor> small, sums;
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (const Tensor& gradient = parameters_[i].value.grad(); gradient.defined()) {
      if (place_in_large_[i])
        sums.push_back(gradient.detach());
      else
        small.push_back(this->gradient(i));
    }
  if (!sums.empty()) at::_foreach_div_(sums, static_cast<double>(ranks_.world_size()));
  TensorAverage(kBlockMiB, DDPStrategy::Compression::none).average(small, ranks_);
  order_.learn([this](const Tensor& order) { return ranks_.broadcast(order, 0); });
}

}  // namespace fulgur::detail
