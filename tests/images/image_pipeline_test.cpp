#include "fulgur/images/image_pipeline.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <set>

#include "fulgur/core/text/errors.h"
#include "images/image_support.h"
#include "support/expect_error.h"

namespace image_pipeline_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Writes down the first number that it draws.
class Draws : public ImageTransform {
 public:
  explicit Draws(std::vector<uint64_t>& drawn) : drawn_(drawn) {}
  Tensor apply(const Tensor& image, SplitMix64& random) const override {
    drawn_.push_back(random.next());
    return image;
  }
  std::optional<ImageSize> enough(ImageSize size, SplitMix64 random) const override {
    drawn_.push_back(random.next());
    return ImageSize{size.height / 2, size.width};
  }

 private:
  std::vector<uint64_t>& drawn_;
};

class Returns : public ImageTransform {
 public:
  explicit Returns(Tensor result) : result_(std::move(result)) {}
  Tensor apply(const Tensor&, SplitMix64&) const override { return result_; }

 private:
  Tensor result_;
};

}  // namespace

TEST_CASE("each transform draws by seed, epoch, index and its place alone") {
  const Tensor image = at::zeros({3, 2, 2}, at::kByte);
  std::vector<uint64_t> drawn;
  const auto draws = std::make_shared<Draws>(drawn);
  const ImagePipeline two({draws, draws}), three({draws, draws, draws});
  const SampleContext context{.seed = 7, .epoch = 3};
  const auto of = [&](const ImagePipeline& pipeline, const SampleContext& where, int64_t index) {
    drawn.clear();
    pipeline.apply(image, where, index);
    return drawn;
  };
  const auto first = of(two, context, 5);
  CHECK(first == of(two, context, 5));
  const auto longer = of(three, context, 5);
  REQUIRE(longer.size() == 3);
  CHECK(std::vector<uint64_t>(longer.begin(), longer.begin() + 2) == first);
  std::set<uint64_t> all(longer.begin(), longer.end());
  for (const auto& other :
       {of(two, context, 6), of(two, {.seed = 7, .epoch = 4}, 5), of(two, {.seed = 8, .epoch = 3}, 5)})
    all.insert(other.begin(), other.end());
  CHECK(all.size() == 9);
  // `enough` knows what the first transform will draw.
  drawn.clear();
  CHECK(two.enough({8, 6}, context, 5) == ImageSize{4, 6});
  CHECK(drawn == std::vector<uint64_t>{first[0]});
}

TEST_CASE("without transforms images stay as they are") {
  const Tensor image = at::full({3, 2, 2}, 9, at::kByte);
  const ImagePipeline none;
  CHECK(none.empty());
  CHECK(none.apply(image, {}, 0).is_same(image));
  CHECK(!none.enough({8, 6}, {}, 0));
}

TEST_CASE("transforms must be there and return images") {
  CHECK_THROWS_AS(ImagePipeline({nullptr}), ConfigError);
  const Tensor image = at::zeros({3, 2, 2}, at::kByte);
  for (const Tensor& wrong : {Tensor(), at::zeros({2, 2}, at::kByte), at::zeros({3, 2, 2}, at::kDouble)}) {
    const ImagePipeline pipeline({std::make_shared<Returns>(image), std::make_shared<Returns>(wrong)});
    CHECK_THAT(message_of<Error>([&] { pipeline.apply(image, {}, 0); }), ContainsSubstring("number 1"));
  }
}

}  // namespace image_pipeline_test
