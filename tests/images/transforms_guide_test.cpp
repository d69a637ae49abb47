// docs/image_transforms.md says what the fields of the transforms say, and its examples can be made.
#include "images/transform_support.h"
#include "support/guide.h"

namespace transforms_guide_test {

using namespace fulgur;

// The example of the guide.
class Darken : public fulgur::ImageTransform {
 public:
  struct Options {
    double p = 0.5;
    void fields(fulgur::Fields& f) { f(p, "p", "Probability that an image is darkened.").range(0, 1); }
  };
  explicit Darken(const Options& options) : options_(options) {}
  fulgur::Tensor apply(const fulgur::Tensor& image, fulgur::SplitMix64& random) const override {
    return random.uniform() < options_.p ? image.bitwise_right_shift(1) : image;
  }

 private:
  Options options_;
};
FULGUR_REGISTER(fulgur::ImageTransform, Darken, "Halves all values with a probability.");

TEST_CASE("the transform of the guide works, and the guide has its text") {
  const Tensor image = test::noise_image(3, 4, 5);
  CHECK(test::applied(*test::transform_of("Darken", "{p: 1}"), image).equal(image.floor_divide(2)));
  CHECK(test::applied(*test::transform_of("Darken", "{p: 0}"), image).equal(image));
  const std::string source = test::read_text(__FILE__), guide = test::guide("image_transforms.md");
  const size_t begin = source.find("class Darken"), end = source.find("FULGUR_REGISTER(fulgur::ImageTransform");
  CHECK(guide.find(source.substr(begin, end - begin)) != std::string::npos);
}

TEST_CASE("docs/image_transforms.md has a section for each transform, with a row for each option and no other") {
  test::check_options_in_guide(test::guide("image_transforms.md"), "image_transform", "/images/src/");
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
