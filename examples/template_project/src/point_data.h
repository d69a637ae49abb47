#pragma once

#include <fulgur/data/tensor_data_module.h>

/// Points on circles around the origin, generated in memory: `point` (N, 2), and `circle` (N), the class.
class PointData : public fulgur::TensorDataModule {
 public:
  struct Options {
    int64_t circles = 3;
    int64_t points = 300;
    double noise = 0.1;
    int64_t batch_size = 32;
    void fields(fulgur::Fields& f) {
      f(circles, "circles", "Number of circles, which are the classes.").at_least(2);
      f(points, "points", "Training points on each circle; validation has a third of them.").at_least(3);
      f(noise, "noise", "Standard deviation of the radius; circles have a distance of 1.").at_least(0);
      f(batch_size, "batch_size", "Points in a batch.").at_least(1);
    }
  };
  static constexpr const char* kExports = "num_classes";

  explicit PointData(const Options& options);
  void setup(fulgur::TrainerFn fn) override;
  /// Values that a config can link to options of the model.
  fulgur::StateTree exported_values() const override;

 private:
  fulgur::Batch circles_of(int64_t points, uint64_t seed) const;
  Options options_;
};
