#include <cstdlib>

#include "fulgur/data/data_loader.h"
#include "fulgur/images/image_folder.h"
#include "images/image_support.h"
#include "support/expect_error.h"

/// Real files: a folder `cifar10-jpg` of the trial data with an archive of JPEG files.
namespace trial_images_test {

using namespace fulgur;
using namespace fulgur::test;

TEST_CASE("the JPEG files of the trial data are read, the same by several workers") {
  const char* const trial_data = std::getenv("FULGUR_TRIAL_DATA");
  if (trial_data == nullptr) SKIP("FULGUR_TRIAL_DATA does not name a folder with cifar10-jpg/");
  const auto archive = std::filesystem::path(trial_data) / "cifar10-jpg" / "cifar10-jpg-tree.tar.gz";
  if (!std::filesystem::exists(archive)) SKIP(archive.string() + " does not exist");
  const TemporaryFolder folder;
  const std::string command = "tar -xzf '" + archive.string() + "' -C '" + folder.path().string() + "' ./test";
  REQUIRE(std::system(command.c_str()) == 0);
  const auto images = std::make_shared<ImageFolder>(folder / "test");
  CHECK(images->classes().size() == 10);
  CHECK(images->size() == 10'000);
  const auto sum_with = [&](int64_t workers) {
    DataLoaderOptions how;
    how.batch_size = 500;
    how.num_workers = workers;
    DataLoader loader(images, how);
    loader.start_epoch(0);
    Batch batch;
    int64_t count = 0, sum = 0;
    while (loader.next(batch)) {
      count += batch.size();
      sum += batch["image"].sum().item<int64_t>();
    }
    CHECK(count == images->size());
    return sum;
  };
  CHECK(sum_with(0) == sum_with(2));
}

}  // namespace trial_images_test
