// docs/callbacks.md says what the callbacks' fields say, and its examples can be used.
#include "callbacks/scored.h"
#include "support/guide.h"

namespace options_test {

using namespace fulgur;

TEST_CASE("docs/callbacks.md has a section for each callback, with a row for each option and no other") {
  test::check_options_in_guide(test::guide("callbacks.md"), "callback", "/callbacks/");
}

TEST_CASE("each example of docs/callbacks.md is a config whose callbacks can be made") {
  const size_t examples = test::for_each_example(test::guide("callbacks.md"), [](const Config& config) {
    CHECK_FALSE(config.trainer.callbacks.empty());
    for (const auto& callback : config.trainer.callbacks) CHECK_NOTHROW(callback.create());
  });
  CHECK(examples >= 9);
}

}  // namespace options_test
