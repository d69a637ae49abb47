#pragma once

#include "fulgur/core/contracts/metric.h"
#include "fulgur/core/options/fields.h"

namespace fulgur::metrics {

/// A number of many: each update takes a scalar or a tensor whose elements all count.
class FULGUR_API Aggregation : public Metric {
 public:
  /// With a weight, each element counts so much; only `Mean` uses it.
  virtual void update(const Tensor& value, double weight) = 0;
  void update(const Tensor& value) { update(value, 1); }
  void update(double value, double weight = 1);
};

/// The weighted mean; NaN without values.
class FULGUR_API Mean final : public Aggregation {
 public:
  Mean();
  using Aggregation::update;
  void update(const Tensor& value, double weight) override;
  Tensor compute() const override;

 private:
  Tensor &sum_, &weight_;
};

/// The sum of all elements.
class FULGUR_API Sum final : public Aggregation {
 public:
  Sum();
  using Aggregation::update;
  void update(const Tensor& value, double weight) override;
  Tensor compute() const override;

 private:
  Tensor& sum_;
};

/// The smallest element; infinity without values, NaN if one is NaN.
class FULGUR_API Min final : public Aggregation {
 public:
  Min();
  using Aggregation::update;
  void update(const Tensor& value, double weight) override;
  Tensor compute() const override;

 private:
  Tensor& least_;
};

/// The largest element; minus infinity without values, NaN if one is NaN.
class FULGUR_API Max final : public Aggregation {
 public:
  Max();
  using Aggregation::update;
  void update(const Tensor& value, double weight) override;
  Tensor compute() const override;

 private:
  Tensor& most_;
};

/// The mean of the last `window` updates, each of which counts with the mean of its elements. Over several ranks, the
/// mean of the last updates of each.
class FULGUR_API RunningMean final : public Aggregation {
 public:
  struct FULGUR_API Options {
    int64_t window = 100;
    void fields(Fields& f);
  };
  RunningMean();
  explicit RunningMean(const Options& options);
  using Aggregation::update;
  void update(const Tensor& value, double weight) override;
  Tensor compute() const override;

 private:
  int64_t window_;
  std::vector<Tensor>& values_;
};

/// Exponential moving average, without bias towards 0: Σ dᵗ⁻ⁱ xᵢ / Σ dᵗ⁻ⁱ, where x is the mean of an update's elements
/// and d = 2^(−1 / half_life). Over several ranks, the mean weighted by their sums of weights.
class FULGUR_API Ema final : public Aggregation {
 public:
  struct FULGUR_API Options {
    double half_life = 100;  ///< in updates
    void fields(Fields& f);
  };
  Ema();
  explicit Ema(const Options& options);
  using Aggregation::update;
  void update(const Tensor& value, double weight) override;
  Tensor compute() const override;

 private:
  double decay_;
  Tensor &sum_, &weight_;
};

}  // namespace fulgur::metrics
