#include "point_data.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <fulgur/core/contracts/registry.h>

PointData::PointData(const Options& options)
    : TensorDataModule(fulgur::TensorDataOptions{.batch_size = options.batch_size}), options_(options) {}

void PointData::setup(fulgur::TrainerFn) {
  const fulgur::Batch other = circles_of(options_.points / 3, 1);
  set_data({.train = circles_of(options_.points, 0), .val = other, .predict = other});
}

fulgur::StateTree PointData::exported_values() const {
  return fulgur::StateTree::map({{"num_classes", options_.circles}});
}

// A generator for each set: the points do not depend on what else draws random numbers.
fulgur::Batch PointData::circles_of(int64_t points, uint64_t seed) const {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const fulgur::Tensor circle = at::arange(points * options_.circles).remainder(options_.circles);
  const fulgur::Tensor angle = at::rand({circle.size(0)}, generator) * 6.2832;
  const fulgur::Tensor radius = circle + 1 + at::randn({circle.size(0)}, generator) * options_.noise;
  using Entry = fulgur::Batch::Entry;
  return fulgur::Batch{Entry{"point", at::stack({radius * angle.cos(), radius * angle.sin()}, 1)},
                       Entry{"circle", circle}};
}

FULGUR_REGISTER(fulgur::DataModule, PointData, "Points on circles around the origin.");
