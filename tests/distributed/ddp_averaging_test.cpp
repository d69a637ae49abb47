// Averages of weights over several ranks.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "ranks.h"

namespace ddp_averaging_test {

using namespace fulgur::test;
namespace fs = std::filesystem;

namespace {

using Arguments = std::vector<std::string>;

Arguments averaging(const std::string& kind, const std::string& epochs, const Arguments& more = {}) {
  Arguments all{
      "--trainer.max_epochs",      epochs, "--trainer.callbacks+=WeightAveraging", "--trainer.callbacks.kind", kind,
      "--trainer.callbacks.start", "1st"};
  all.insert(all.end(), {"--model.norm", "true"});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<Finished> fit(const fs::path& folder, const Arguments& more) {
  return run_ranks({.count = 2, .folder = folder}, probe("fit", 2, 8, more));
}

/// The averages in the last checkpoint of a run, as a file.
std::string exported(const fs::path& folder, const Arguments& more = {}) {
  Arguments arguments{"export", last_checkpoint(folder).string(), "--output", "out.safetensors", "--force"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Finished done = trainer(arguments, {.folder = folder});
  INFO(done.err);
  REQUIRE(done.exit_code == 0);
  return read_text(folder / "out.safetensors");
}

}  // namespace

TEST_CASE("ddp: a resumed run has the averages of a quiet one, with the statistics of batch norms") {
  const std::string kind = GENERATE("ema", "swa");
  CAPTURE(kind);
  const TemporaryFolder whole, parts;
  // The weights of ranks are compared at the end of each epoch and of the fit.
  REQUIRE(all_exit(fit(whole.path(), averaging(kind, "3")), 0));
  REQUIRE(all_exit(fit(parts.path(), averaging(kind, "2")), 0));
  REQUIRE(all_exit(fit(parts.path(), averaging(kind, "3", {"--resume", "--allow-config-change"})), 0));
  const std::string averages = exported(whole.path(), {"--averaged"});
  CHECK((averages == exported(parts.path(), {"--averaged"})));
  CHECK((averages != exported(whole.path())));
}

TEST_CASE("ddp: parameters are frozen and unfrozen on all ranks, as in one process; a resumed run has the same bits") {
  const auto freezing = [](const std::string& epochs, const Arguments& more = {}) {
    Arguments all{"--trainer.max_epochs",
                  epochs,
                  "--trainer.callbacks+=Finetuning",
                  "--trainer.callbacks.freeze",
                  "['first.*']",
                  "--trainer.callbacks.unfreeze",
                  "[{pattern: '*.weight', at: 1ep}, {pattern: '*', at: 2ep}]"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const TemporaryFolder one, whole, parts;
  const Finished alone =
      trainer(probe("fit", 1, 8, freezing("3")), {.folder = one.path(), .environment = {"OMP_NUM_THREADS=1"}});
  INFO(alone.err);
  REQUIRE(alone.exit_code == 0);
  REQUIRE(all_exit(fit(whole.path(), freezing("3")), 0));
  CHECK(difference(last_checkpoint(one.path()), last_checkpoint(whole.path())) < 1e-6);
  // The first part ends inside the second epoch of eight steps, in which only the weight is trained.
  REQUIRE(all_exit(fit(parts.path(), freezing("3", {"--trainer.max_steps", "11"})), 0));
  REQUIRE(all_exit(fit(parts.path(), freezing("3", {"--resume", "--allow-config-change"})), 0));
  CHECK(same_bits(last_checkpoint(whole.path()), last_checkpoint(parts.path())));
}

}  // namespace ddp_averaging_test
