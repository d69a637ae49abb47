// Writers of checkpoints that a user adds.
#include "fulgur/checkpoint/checkpoint_writer.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "trainer/boring.h"

namespace checkpoint_writer_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

/// Counts what it writes, and fails on request.
class CountingWriter final : public CheckpointWriter {
 public:
  struct Options {
    bool fails = false;
    void fields(Fields& f) { f(fails, "fails", "Throws what is no error of Fulgur."); }
  };
  explicit CountingWriter(const Options& options) : options_(options) {}
  std::filesystem::path write(const std::filesystem::path& folder, const CheckpointContent& content) override {
    if (options_.fails) throw std::runtime_error("the other disk is full");
    ++written;
    return CheckpointWriter::write(folder, content);
  }
  static inline int written = 0;

 private:
  Options options_;
};
FULGUR_REGISTER(CheckpointWriter, CountingWriter, "Counts the checkpoints of the tests.");

Spec<CheckpointWriter> counting(bool fails) {
  Spec<CheckpointWriter> spec("CountingWriter");
  static_cast<OptionsOf<CountingWriter::Options>&>(spec.options()).value.fails = fails;
  return spec;
}

}  // namespace

TEST_CASE("a writer of one's own writes every checkpoint, and the run resumes from it") {
  const bool async = GENERATE(false, true);
  CAPTURE(async);
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  options.async_checkpoint = async;
  options.checkpoint_writer = counting(false);
  CountingWriter::written = 0;
  const FitReport report = Trainer(options).fit(std::make_shared<SelfPlanned>(), regression_data());
  CHECK(CountingWriter::written >= 2);
  REQUIRE(report.last_checkpoint);
  CHECK(verify_checkpoint(*report.last_checkpoint).ok());
  const int before = CountingWriter::written;
  options.max_epochs = 3;
  const FitReport longer =
      Trainer(options).fit(std::make_shared<SelfPlanned>(), regression_data(), report.last_checkpoint->string());
  CHECK(longer.epochs == 3);
  CHECK(CountingWriter::written > before);
}

TEST_CASE("a writer that fails fails the save, whatever it throws") {
  const bool async = GENERATE(false, true);
  CAPTURE(async);
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.async_checkpoint = async;
  options.checkpoint_writer = counting(true);
  Trainer trainer(options);
  CHECK_THROWS_AS(trainer.fit(std::make_shared<SelfPlanned>(), regression_data()), CheckpointError);
}

}  // namespace checkpoint_writer_test
