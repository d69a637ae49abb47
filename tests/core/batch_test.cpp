#include "fulgur/core/state/batch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"

namespace batch_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("Batch returns its entries by index, by name and unpacked") {
  Batch batch;
  batch.add("image", at::zeros({4, 2}));
  batch.add("label", at::arange(4));
  CHECK(batch.size() == 4);
  CHECK(batch[0].sizes() == at::IntArrayRef({4, 2}));
  CHECK(batch["label"].equal(at::arange(4)));
  auto [image, label] = batch.unpack<2>();
  CHECK(image.is_same(batch[0]));
  CHECK(label.is_same(batch[1]));
}

TEST_CASE("Batch returns lists by name and by index, and says what an entry is otherwise") {
  const Tensor x = at::zeros({2, 2}), y = at::arange(2);
  const std::vector<Tensor> tokens{at::ones({1}), at::ones({2})};
  const std::vector<std::string> texts{"a", "b"};
  const Batch batch{{"x", x}, {"y", y}, {"tokens", tokens}, {"text", texts}};
  CHECK(batch["y"].is_same(y));
  CHECK(&batch.list("tokens") == &batch.list(2));
  CHECK(batch.list("tokens").at(1).is_same(tokens[1]));
  CHECK(batch.strings("text") == texts);
  CHECK(batch.strings(3) == texts);
  CHECK_THROWS_WITH(batch.list("x"), ContainsSubstring("0 'x' is a tensor, not a list of tensors") &&
                                         ContainsSubstring("read it with batch[…]"));
  CHECK_THROWS_WITH(batch.strings("tokens"), ContainsSubstring("read it with batch.list(…)"));
  CHECK_THROWS_WITH(batch.list("token"), ContainsSubstring("no entry named 'token'"));
  CHECK_THROWS_WITH(batch.strings(4), ContainsSubstring("no entry 4"));
}

TEST_CASE("Batch names its entries when one is missing") {
  const Batch batch{{"image", at::zeros({1})}};
  CHECK_THROWS_WITH(batch["imgae"], ContainsSubstring("'image'") && ContainsSubstring("imgae"));
  CHECK_THROWS_WITH(batch[3], ContainsSubstring("no entry 3"));
}

TEST_CASE("Batch refuses two entries with the same name") {
  Batch batch{{"x", at::zeros({1})}};
  CHECK_THROWS_AS(batch.add("x", at::zeros({1})), Error);
}

TEST_CASE("a Batch whose entries have different numbers of samples cannot be split") {
  const Batch tensors({Batch::Entry{"x", at::ones({3, 2})}, Batch::Entry{"second/x", at::ones({5, 2})}});
  CHECK(fulgur::test::message_of<DataError>([&] {
          tensors.narrow(0, 1);
        }).find("'second/x' has 5 samples, but the batch has 3") != std::string::npos);
  const Batch texts({Batch::Entry{"x", at::ones({3})}, Batch::Entry{"name", std::vector<std::string>{"a"}}});
  CHECK(fulgur::test::message_of<DataError>([&] { texts.narrow(0, 1); }).find("'name' has 1 samples") !=
        std::string::npos);
}

TEST_CASE("Batch narrows tensors and lists alike") {
  Batch batch{at::arange(5)};
  batch.add("text", std::vector<std::string>{"a", "b", "c", "d", "e"});
  batch.add("ragged", std::vector<Tensor>{at::ones({1}), at::ones({2}), at::ones({3}), at::ones({4}), at::ones({5})});
  const Batch part = batch.narrow(1, 2);
  CHECK(part.size() == 2);
  CHECK(part[0].equal(at::arange(1, 3)));
  CHECK(std::get<std::vector<std::string>>(part.entry(1).second) == std::vector<std::string>{"b", "c"});
  CHECK(std::get<std::vector<Tensor>>(part.entry(2).second)[1].size(0) == 3);
  CHECK_THROWS_WITH(batch[1], ContainsSubstring("is a list of strings, not a tensor; read it with batch.strings(…)"));
}

TEST_CASE("Batch on its own device is not copied") {
  const Batch batch{at::arange(3)};
  CHECK(batch.to(at::kCPU)[0].is_same(batch[0]));
}

}  // namespace batch_test
