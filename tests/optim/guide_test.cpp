// docs/optimizers.md says what the fields of optimizers and schedules say, and its examples can be made.
#include "support/guide.h"
#include "fulgur/core/contracts/optimizer.h"

namespace guide_test {

using namespace fulgur;

TEST_CASE("docs/optimizers.md has a section for each optimizer and schedule, with a row for each option and no other") {
  for (const char* kind : {"optimizer", "lr_scheduler"})
    test::check_options_in_guide(test::guide("optimizers.md"), kind, "/optim/", {"groups", "no_decay_norm_and_bias"});
}

TEST_CASE("each example of docs/optimizers.md is a config whose optimizer and schedule can be made") {
  size_t made = 0;
  const size_t examples = test::for_each_example(test::guide("optimizers.md"), [&](const Config& config) {
    if (config.optimizer || config.lr_scheduler) ++made;
    if (config.optimizer) CHECK_NOTHROW(config.optimizer->create());
    if (config.lr_scheduler) CHECK_NOTHROW(config.lr_scheduler->create());
  });
  CHECK(made >= 25);
  CHECK(made + 1 >= examples);  // one is of the trainer
}

}  // namespace guide_test
