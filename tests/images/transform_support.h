#pragma once

#include <ATen/ops/empty.h>

#include <memory>
#include <string>

#include "fulgur/core/contracts/dataset.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/state/split_mix.h"
#include "fulgur/images/image_transform.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur::test {

/// Random bytes.
inline Tensor noise_image(int64_t channels, int64_t height, int64_t width, uint64_t seed = 1) {
  Tensor image = at::empty({channels, height, width}, at::TensorOptions().dtype(at::kByte));
  SplitMix64 random(seed);
  for (int64_t i = 0; i < image.numel(); ++i) image.data_ptr<uint8_t>()[i] = static_cast<uint8_t>(random.below(256));
  return image;
}

/// Made as from a config: `options` is YAML, such as `{p: 1}`.
inline std::shared_ptr<ImageTransform> transform_of(const std::string& name, const std::string& options = "{}") {
  const ComponentInfo& info = component_registry("image_transform").get(name);
  const auto made = info.make_options();
  Fields fields;
  made->fields(fields);
  Problems problems;
  fields.read(parse_yaml(options, "options", problems), problems, name);
  problems.throw_if_any();
  return Registry<ImageTransform>::create(name, *made);
}

/// The transformed image for a seed.
inline Tensor applied(const ImageTransform& transform, const Tensor& image, uint64_t seed = 1) {
  SplitMix64 random(seed);
  return transform.apply(image, random);
}

}  // namespace fulgur::test
