// docs/profilers.md says what the profilers' fields say, and its examples can be used.
#include "support/guide.h"

namespace profilers_guide_test {

using namespace fulgur;

TEST_CASE("docs/profilers.md has a section for each profiler, with a row for each option and no other") {
  test::check_options_in_guide(test::guide("profilers.md"), "profiler", "/profiling/");
}

TEST_CASE("each example of docs/profilers.md is a config whose profiler can be made") {
  const size_t examples = test::for_each_example(test::guide("profilers.md"), [](const Config& config) {
    REQUIRE(config.trainer.profiler);
    CHECK_NOTHROW(config.trainer.profiler.create());
  });
  CHECK(examples == 2);
}

}  // namespace profilers_guide_test
