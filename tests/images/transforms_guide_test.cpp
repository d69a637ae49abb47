// docs/image_transforms.md says what the fields of the transforms say, and its examples can be made.
#include "images/transform_support.h"
#include "support/guide.h"

namespace transforms_guide_test {

using namespace fulgur;

TEST_CASE("docs/image_transforms.md has a section for each transform, with a row for each option and no other") {
  test::check_options_in_guide(test::guide("image_transforms.md"), "image_transform", "/images/");
}

TEST_CASE("each example of docs/image_transforms.md is a list of transforms that can be made") {
  const std::string text = test::guide("image_transforms.md");
  size_t examples = 0;
  for (size_t start = text.find("```yaml\n"); start != std::string::npos; start = text.find("```yaml\n", start + 1)) {
    const std::string yaml = text.substr(start + 8, text.find("```", start + 8) - start - 8);
    CAPTURE(yaml);
    Problems problems;
    const ConfigNode node = parse_yaml(yaml, "example", problems);
    REQUIRE(node.find("transforms") != nullptr);
    std::vector<Spec<ImageTransform>> specs;
    CHECK(
        FieldTraits<std::vector<Spec<ImageTransform>>>::read(*node.find("transforms"), specs, problems, "transforms"));
    CHECK_NOTHROW(problems.throw_if_any());
    CHECK(specs.size() == 4);
    Tensor image = test::noise_image(3, 32, 32);
    for (const Spec<ImageTransform>& spec : specs) image = test::applied(*spec.create(), image);
    CHECK(image.scalar_type() == at::kFloat);
    ++examples;
  }
  CHECK(examples == 2);
}

}  // namespace transforms_guide_test
