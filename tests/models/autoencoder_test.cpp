#include "fulgur/models/autoencoder.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include "fulgur/core/state/rng.h"
#include "models/training.h"
#include "support/expect_error.h"

namespace autoencoder_test {

using namespace fulgur;

TEST_CASE("an autoencoder has mirrored parts and learns to reconstruct its input") {
  seed_everything(3);
  Autoencoder model({.in_features = 12, .hidden = {16}, .code_size = 6});
  CHECK(model.named_children().contains("encoder"));
  CHECK(model.named_children().contains("decoder"));
  CHECK(model.named_parameters()["encoder.layer1.weight"].sizes() == at::IntArrayRef({6, 16}));
  CHECK(model.named_parameters()["decoder.layer0.weight"].sizes() == at::IntArrayRef({16, 6}));
  const Batch batch({at::randn({8, 3, 2, 2})});
  const auto losses = test::descend(model, batch, 600, 0.3);
  CHECK(losses.back() < 0.3 * losses.front());

  const Outputs outputs = model.predict_step(batch, 0, 0);
  CHECK(outputs["reconstruction"].sizes() == batch[0].sizes());
  CHECK(outputs["code"].sizes() == at::IntArrayRef({8, 6}));
  CHECK(at::equal(outputs["reconstruction"].flatten(1), model.decode(model.encode(batch[0]))));
}

TEST_CASE("an autoencoder names the shape that does not fit") {
  Autoencoder model({});
  CHECK_THAT(test::message_of<ConfigError>([&] {
               model.training_step(Batch({at::randn({2, 10})}), 0);
             }),
             Catch::Matchers::ContainsSubstring("Autoencoder") && Catch::Matchers::ContainsSubstring("[2, 10]"));
}

}  // namespace autoencoder_test
