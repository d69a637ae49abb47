// The example of docs/data.md that reads images from tar files.
#include <archive.h>
#include <archive_entry.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/data/iterable_loader.h"
#include "fulgur/data/tar_shards.h"
#include "fulgur/images/decode_image.h"
#include "images/image_support.h"
#include "support/expect_error.h"
#include "support/guide.h"

namespace tar_images_test {

using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

fulgur::Sample decode_sample(const fulgur::TarSample& sample, const fulgur::SampleContext&) {
  return {{"image", fulgur::decode_image(sample.member("png"))}, {"label", std::stoll(sample.member("cls"))}};
}

std::shared_ptr<fulgur::Loader> tar_loader(const std::string& shards, int64_t batch_size) {
  fulgur::TarShardsOptions options;
  options.shards = {shards};  // train/{000..127}.tar
  options.decode = decode_sample;
  return std::make_shared<fulgur::IterableLoader>(
      std::make_shared<fulgur::TarShards>(options),
      fulgur::IterableLoaderOptions{.batch_size = batch_size, .num_workers = 1});
}

TEST_CASE("the example of the guide reads images from tar files, and the guide has its text") {
  const TemporaryFolder folder;
  const std::string bytes = read_text(image_fixture("colour.png"));
  struct archive* tar = archive_write_new();
  archive_write_set_format_ustar(tar);
  REQUIRE(archive_write_open_filename(tar, (folder / "0.tar").c_str()) == ARCHIVE_OK);
  for (const auto& [name, text] : {std::pair<std::string, std::string>("a.cls", "3"), {"a.png", bytes}}) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_size(entry, static_cast<int64_t>(text.size()));
    REQUIRE(archive_write_header(tar, entry) == ARCHIVE_OK);
    REQUIRE(archive_write_data(tar, text.data(), text.size()) == static_cast<la_ssize_t>(text.size()));
    archive_entry_free(entry);
  }
  REQUIRE(archive_write_close(tar) == ARCHIVE_OK);
  archive_write_free(tar);
  const auto loader = tar_loader((folder / "0.tar").string(), 2);
  loader->configure(1, 0, 1);
  loader->start_epoch(0);
  fulgur::Batch batch;
  REQUIRE(loader->next(batch));
  CHECK(batch["image"][0].equal(fulgur::decode_image(image_fixture("colour.png"))));
  CHECK(batch["label"].item<int64_t>() == 3);

  const std::string source = read_text(__FILE__), page = guide("data.md");
  const size_t begin = source.find("fulgur::Sample decode_sample("), end = source.find("TEST_CASE(\"the example");
  CHECK(page.find(source.substr(begin, end - begin - 1)) != std::string::npos);
}

TEST_CASE("a text is the bytes of an image, and a path or a literal a file") {
  const std::string file = image_fixture("colour.png").string(), bytes = read_text(file);
  const fulgur::Tensor image = fulgur::decode_image(std::filesystem::path(file));
  CHECK(fulgur::decode_image(bytes).equal(image));
  CHECK(fulgur::decode_image(std::string_view(bytes)).equal(image));
  CHECK(fulgur::decode_image(file.c_str()).equal(image));
  CHECK_THAT(message_of<fulgur::DataError>([&] { fulgur::decode_image(file); }),
             ContainsSubstring("the name of a file") && ContainsSubstring("std::filesystem::path"));
}

}  // namespace tar_images_test
