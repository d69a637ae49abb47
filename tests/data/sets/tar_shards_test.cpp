#include "fulgur/data/tar_shards.h"

#include <ATen/ops/full.h>
#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <set>

#include "fulgur/core/text/errors.h"
#include "fulgur/data/iterable_loader.h"
#include "reading/tar_reader.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace tar_shards_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;
using test::TemporaryFolder;
using test::write_text;

namespace {

using Files = std::vector<std::pair<std::string, std::string>>;

void write_tar(const std::filesystem::path& path, const Files& files) {
  struct archive* tar = archive_write_new();
  archive_write_set_format_pax_restricted(tar);
  archive_write_set_bytes_per_block(tar, 512);
  REQUIRE(archive_write_open_filename(tar, path.c_str()) == ARCHIVE_OK);
  for (const auto& [name, bytes] : files) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_filetype(entry, name.ends_with('/') ? AE_IFDIR : AE_IFREG);
    archive_entry_set_size(entry, static_cast<int64_t>(bytes.size()));
    REQUIRE(archive_write_header(tar, entry) == ARCHIVE_OK);
    if (!bytes.empty())
      REQUIRE(archive_write_data(tar, bytes.data(), bytes.size()) == static_cast<la_ssize_t>(bytes.size()));
    archive_entry_free(entry);
  }
  REQUIRE(archive_write_close(tar) == ARCHIVE_OK);
  archive_write_free(tar);
}

/// 7 shards `s00.tar` … with 5, 6, 7, 5, … samples, numbered through: `cls` has the number.
struct Shards {
  TemporaryFolder folder;
  TarShardsOptions options;
  int64_t count = 0;
  Shards() {
    for (int shard = 0; shard < 7; ++shard) {
      Files files = {{"folder/", ""}};
      for (int i = 0; i < 5 + shard % 3; ++i, ++count) {
        // Names beyond 100 bytes have headers of their own.
        const std::string key = "folder/" + std::string(count % 4 == 0 ? 150 : 3, 'k') + std::to_string(count);
        files.emplace_back(key + ".cls", std::to_string(count));
        files.emplace_back(key + ".data.bin", std::string(static_cast<size_t>(count * 37), 'x'));
      }
      write_tar(folder / ("s0" + std::to_string(shard) + ".tar"), files);
    }
    options.shards = {(folder / "s{00..06}.tar").string()};
    options.shuffle_buffer = 8;
    options.decode = [](const TarSample& sample, const SampleContext&) -> Sample {
      const int64_t number = std::stoll(sample.member("cls"));
      CHECK(static_cast<int64_t>(sample.member("data.bin").size()) == 37 * number);
      return {{"x", number}, {"key", sample.key}, {"pair", at::full({2}, number, at::kFloat)}};
    };
  }
  std::shared_ptr<IterableLoader> loader(int64_t rank = 0, int64_t world = 1, uint64_t seed = 3) const {
    auto made =
        std::make_shared<IterableLoader>(std::make_shared<TarShards>(options), IterableLoaderOptions{.batch_size = 3});
    made->configure(seed, rank, world);
    return made;
  }
};

std::vector<int64_t> ids_of(Loader& loader, int64_t epoch = 0) {
  loader.start_epoch(epoch);
  std::vector<int64_t> ids;
  for (Batch batch; loader.next(batch);) {
    const auto* values = batch["x"].const_data_ptr<int64_t>();
    ids.insert(ids.end(), values, values + batch.size());
    CHECK(batch["pair"].sizes() == at::IntArrayRef({batch.size(), 2}));
    CHECK(batch.strings("key").size() == static_cast<size_t>(batch.size()));
  }
  return ids;
}

}  // namespace

TEST_CASE("braces stand for ranges of numbers") {
  CHECK(expand_braces("a.tar") == std::vector<std::string>{"a.tar"});
  CHECK(expand_braces("a{08..10}.tar") == std::vector<std::string>{"a08.tar", "a09.tar", "a10.tar"});
  CHECK(expand_braces("{9..10}{0..1}") == std::vector<std::string>{"90", "91", "100", "101"});
  for (const char* const bad :
       {"a{1..}", "a{..2}", "a{2..1}", "a{1,2}", "a{1..2", "a{-1..2}", "a{}", "{0..9999999}", "{0..9999}{0..9999}"})
    CHECK_THROWS_AS(expand_braces(bad), ConfigError);
}

TEST_CASE("samples of tar shards come once per epoch, in an order of seed and epoch") {
  Shards shards;
  const auto first = ids_of(*shards.loader()), second = ids_of(*shards.loader(), 1);
  CHECK(first == ids_of(*shards.loader()));
  CHECK(first != second);
  CHECK(first != ids_of(*shards.loader(0, 1, 4)));
  CHECK(static_cast<int64_t>(first.size()) == shards.count);
  CHECK(std::set<int64_t>(first.begin(), first.end()).size() == first.size());
  shards.options.shuffle = false;
  const auto plain = ids_of(*shards.loader());
  CHECK(std::ranges::is_sorted(plain));
  CHECK(plain == ids_of(*shards.loader(), 1));
  // With a buffer of 1, the samples of a shard keep their order.
  shards.options.shuffle = true;
  shards.options.shuffle_buffer = 1;
  const auto by_shard = ids_of(*shards.loader());
  CHECK_FALSE(std::ranges::is_sorted(by_shard));
  int64_t falls = 0;
  for (size_t i = 1; i < by_shard.size(); ++i) falls += by_shard[i] < by_shard[i - 1];
  CHECK(falls < 7);
}

TEST_CASE("tar shards resume after each batch as if they had not stopped") {
  Shards shards;
  for (const int64_t buffer : {1, 8}) {
    shards.options.shuffle_buffer = buffer;
    const auto whole = ids_of(*shards.loader(), 2);
    const auto stopped = shards.loader();
    stopped->start_epoch(2);
    std::vector<int64_t> before;
    for (Batch batch; stopped->next(batch);) {
      const auto* values = batch["x"].const_data_ptr<int64_t>();
      before.insert(before.end(), values, values + batch.size());
      const auto resumed = shards.loader();
      resumed->load_state(stopped->state());
      std::vector<int64_t> ids = before;
      const auto rest = ids_of(*resumed, 2);
      ids.insert(ids.end(), rest.begin(), rest.end());
      if (ids != whole) FAIL("another order after " << before.size() << " samples");
    }
    CHECK(before == whole);
  }
  const auto stopped = shards.loader();
  stopped->start_epoch(0);
  Batch batch;
  REQUIRE(stopped->next(batch));
  shards.options.shuffle_buffer = 4;
  const auto other = shards.loader();
  other->load_state(stopped->state());
  CHECK_THAT(message_of<CheckpointError>([&] { other->start_epoch(0); }), ContainsSubstring("shuffle_buffer 8"));
}

TEST_CASE("ranks read disjoint shards") {
  const Shards shards;
  std::set<int64_t> together;
  for (int64_t rank = 0; rank < 3; ++rank)
    for (const int64_t id : ids_of(*shards.loader(rank, 3), 1)) CHECK(together.insert(id).second);
  CHECK(static_cast<int64_t>(together.size()) == shards.count);
  CHECK_THAT(message_of<DistributedError>([&] { shards.loader(0, 8); }), ContainsSubstring("7 shards for 8 processes"));
}

TEST_CASE("without a decode function, members are bytes") {
  Shards shards;
  shards.options.decode = {};
  shards.options.shuffle = false;
  const auto loader = shards.loader();
  loader->start_epoch(0);
  Batch batch;
  REQUIRE(loader->next(batch));
  CHECK(batch.strings("key")[1] == "folder/kkk1");
  CHECK(batch.list("cls")[2].const_data_ptr<uint8_t>()[0] == '2');
  CHECK(batch.list("data.bin")[0].numel() == 0);
  CHECK(batch.list("data.bin")[2].numel() == 74);
  CHECK(batch.list("data.bin")[2].scalar_type() == at::kByte);
}

TEST_CASE("F37: shards that are damaged, compressed or uneven are named") {
  const TemporaryFolder folder;
  const auto error = [&](TarShardsOptions options = {}) {
    options.shards = {(folder / "s.tar").string()};
    IterableLoader loader(std::make_shared<TarShards>(options), {.batch_size = 2});
    loader.configure(0, 0, 1);
    return message_of<DataError>([&] {
      Batch batch;
      loader.start_epoch(0);
      while (loader.next(batch)) {
      }
    });
  };
  write_text(folder / "s.tar", std::string(2000, 'x'));
  CHECK_THAT(error(), ContainsSubstring("s.tar'"));
  write_text(folder / "s.tar", "\x1f\x8b\x08" + std::string(1000, 'x'));
  CHECK_THAT(error(), ContainsSubstring("s.tar'"));
  write_tar(folder / "s.tar", {{"a.x", std::string(5000, 'x')}, {"b.x", "1"}});
  std::filesystem::resize_file(folder / "s.tar", 3000);
  CHECK_THAT(error(), ContainsSubstring("s.tar'") && ContainsSubstring("truncated"));
  write_tar(folder / "s.tar", {{"a.x", "1"}, {"a.y", "2"}, {"b.x", "1"}});
  CHECK_THAT(error(), ContainsSubstring("must have the same members") && ContainsSubstring("'b'"));
  write_tar(folder / "s.tar", {{"a.x", "1"}, {"a.x", "2"}});
  CHECK_THAT(error(), ContainsSubstring("has 'x' twice"));
  write_tar(folder / "s.tar", {{"a.x", "1"}, {"b.x", "22"}});
  TarShardsOptions uneven;
  uneven.shuffle = false;
  uneven.decode = [](const TarSample& sample, const SampleContext&) -> Sample {
    return {{"x", at::full({static_cast<int64_t>(sample.member("x").size())}, 1.0)}};
  };
  CHECK_THAT(error(uneven), ContainsSubstring("same shape and dtype") && ContainsSubstring("sample 'b'"));
  uneven.decode = [](const TarSample& sample, const SampleContext&) -> Sample { return {{"x", sample.member("jpg")}}; };
  CHECK_THAT(error(uneven), ContainsSubstring("must have a member 'jpg'; it has x"));
  CHECK_THROWS_AS(TarShards({}), ConfigError);
  CHECK_THROWS_AS(TarShards({.shards = {"a.tar"}, .shuffle_buffer = 0}), ConfigError);
}

TEST_CASE("F37: shards that do not exist are named before any is read") {
  const Shards shards;
  std::filesystem::remove(shards.folder / "s04.tar");
  CHECK_THAT(message_of<DataError>([&] { TarShards{shards.options}; }),
             ContainsSubstring("all shards must exist; 1 of 7 does not: '") && ContainsSubstring("s04.tar'."));
  TarShardsOptions more;
  more.shards = {(shards.folder / "s{03..09}.tar").string()};
  CHECK_THAT(message_of<DataError>([&] { TarShards{more}; }),
             ContainsSubstring("4 of 7 do not: '") && ContainsSubstring("s09.tar'."));
  // One that disappears later is named when it is reached.
  more.shards = {(shards.folder / "s00.tar").string()};
  IterableLoader loader(std::make_shared<TarShards>(more), {.batch_size = 2});
  std::filesystem::remove(shards.folder / "s00.tar");
  loader.configure(0, 0, 1);
  CHECK_THAT(message_of<DataError>([&] {
               Batch batch;
               loader.start_epoch(0);
               while (loader.next(batch)) {
               }
             }),
             ContainsSubstring("s00.tar' cannot be opened: No such file"));
}

TEST_CASE("F37: tar shards are not resumed with other shards") {
  Shards shards;
  shards.options.shuffle = false;
  const auto stopped = shards.loader();
  stopped->start_epoch(0);
  Batch batch;
  for (int i = 0; i < 2; ++i) REQUIRE(stopped->next(batch));
  const StateTree state = stopped->state();
  const auto resume = [&] {
    const auto resumed = shards.loader();
    resumed->load_state(state);
    resumed->start_epoch(0);
  };
  CHECK_NOTHROW(resume());
  const auto before = shards.options.shards;

  // As many, but in another order.
  shards.options.shards = {(shards.folder / "s{01..06}.tar").string(), (shards.folder / "s00.tar").string()};
  CHECK_THAT(message_of<CheckpointError>(resume), ContainsSubstring("the shards and their order"));
  shards.options.shards = before;
  shards.options.shuffle = true;
  CHECK_THAT(message_of<CheckpointError>(resume), ContainsSubstring("with shuffle"));
  shards.options.shuffle = false;

  // Other contents of the same size.
  const auto first = shards.folder / "s00.tar";
  std::filesystem::copy_file(first, shards.folder / "kept");
  write_tar(first, {{"folder/", ""}, {"folder/a.cls", "0"}, {"folder/a.data.bin", ""}});
  std::filesystem::resize_file(first, std::filesystem::file_size(shards.folder / "kept"));
  CHECK_THAT(message_of<CheckpointError>(resume), ContainsSubstring("s00.tar' or one after it"));

  // All of them in another folder.
  std::filesystem::rename(shards.folder / "kept", first);
  std::filesystem::create_directory(shards.folder / "moved");
  for (int shard = 0; shard < 7; ++shard) {
    const std::string name = "s0" + std::to_string(shard) + ".tar";
    std::filesystem::rename(shards.folder / name, shards.folder / "moved" / name);
  }
  shards.options.shards = {(shards.folder / "moved" / "s{00..06}.tar").string()};
  CHECK_NOTHROW(resume());
}

TEST_CASE("F37: a shard that lost samples or names is an error") {
  const TemporaryFolder folder;
  const auto path = folder / "s.tar";
  const auto keys = [&] {
    TarReader reader(path, 0);
    std::string names;
    while (reader.next()) names += reader.name() + ' ';
    return names;
  };
  // Each file has a header and one block; the end is marked by two blocks of zeros.
  write_tar(path, {{"a.x", "1"}, {"b.x", "2"}});
  const std::string whole = test::read_text(path);
  REQUIRE(whole.size() == 6 * 512);
  CHECK(keys() == "a.x b.x ");
  for (const size_t size : {size_t{4 * 512}, size_t{2 * 512}}) {
    write_text(path, whole.substr(0, size));
    CHECK_THAT(message_of<DataError>(keys), ContainsSubstring("s.tar' is truncated: it ends at byte " +
                                                              std::to_string(size) + " without the zeros"));
  }
  write_text(path, whole.substr(0, 5 * 512));
  CHECK(keys() == "a.x b.x ");
  write_text(path, whole + std::string(20 * 512, '\0'));
  CHECK(keys() == "a.x b.x ");
  write_text(path, whole.substr(0, 2 * 512) + std::string(512, '\0') + whole.substr(2 * 512));
  CHECK_THAT(message_of<DataError>(keys),
             ContainsSubstring("the zeros that mark its end at byte 1024, it has other bytes at byte 1536"));
  write_text(path, whole + whole);
  CHECK_THAT(message_of<DataError>(keys), ContainsSubstring("it has other bytes at byte 3072"));

  // A name that is too long for the header is in a pax header before it.
  const std::string name = std::string(150, 'k') + ".x";
  write_tar(path, {{name, "1"}});
  CHECK(keys() == name + ' ');
  std::string damaged = test::read_text(path);
  const size_t length = damaged.find(" path=");
  REQUIRE(length != std::string::npos);
  REQUIRE(length >= 3);
  const std::string digits = damaged.substr(length - 3, 3);
  damaged.replace(length - 3, 3, "9x9");
  write_text(path, damaged);
  CHECK_THAT(message_of<DataError>(keys), ContainsSubstring("pax"));
  // Names in UTF-8 need no locale.
  std::string utf8 = damaged.replace(length - 3, 3, digits);
  utf8.replace(length + 6, 2, "\xc3\xa4");
  write_text(path, utf8);
  CHECK(keys() == "\xc3\xa4" + name.substr(2) + ' ');
}

}  // namespace tar_shards_test
