#include "fulgur/images/image_folder.h"

#include "fulgur/core/text/errors.h"
#include "images/image_support.h"
#include "support/expect_error.h"

namespace image_folder_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using Texts = std::vector<std::string>;

namespace {

void make_file(const std::filesystem::path& path) {
  std::filesystem::create_directories(path.parent_path());
  write_text(path, "x");
}

}  // namespace

TEST_CASE("files are listed by class, folder and name, as torchvision lists them") {
  const TemporaryFolder folder;
  for (const char* name : {"b/2.jpg", "b/10.JPG", "b/sub/1.png", "b/sub-a/1.webp", "B/z.jpeg", "a/x.jpg", "a/X.jpg"})
    make_file(folder / name);
  // These are no images, or hidden.
  for (const char* name : {"a/notes.txt", "a/.hidden.jpg", "a/.cache/1.jpg", ".git/1.jpg", "top.jpg", "a/jpg"})
    make_file(folder / name);
  const ImageList list = list_image_folder(folder.path());
  CHECK(list.classes == Texts{"B", "a", "b"});
  CHECK(list.files == Texts{"B/z.jpeg", "a/X.jpg", "a/x.jpg", "b/10.JPG", "b/2.jpg", "b/sub/1.png", "b/sub-a/1.webp"});
  CHECK(list.labels == std::vector<int64_t>{0, 1, 1, 2, 2, 2, 2});
  CHECK(list.path(1) == folder / "a/X.jpg");
  const ImageList part = list.select({6, 0});
  CHECK(part.files == Texts{"b/sub-a/1.webp", "B/z.jpeg"});
  CHECK(part.labels == std::vector<int64_t>{2, 0});
  CHECK(part.classes == list.classes);

  ImageFolderOptions only_png;
  only_png.suffixes = {".PNG"};
  only_png.allow_empty = true;
  CHECK(list_image_folder(folder.path(), only_png).files == Texts{"b/sub/1.png"});
  CHECK(list_images(folder.path()).files.size() == 8);
  CHECK(list_images(folder.path()).files.front() == "top.jpg");
  CHECK(list_images(folder.path()).labels.empty());
}

TEST_CASE("links are followed, and a folder is listed once in a class") {
  const TemporaryFolder folder;
  make_file(folder / "elsewhere/1.jpg");
  make_file(folder / "elsewhere/2.jpg");
  make_file(folder / "data/a/0.jpg");
  make_file(folder / "data/b/0.jpg");
  std::filesystem::create_directory_symlink(folder / "elsewhere", folder / "data/a/link");
  std::filesystem::create_directory_symlink(folder / "elsewhere", folder / "data/a/other_link");
  std::filesystem::create_directory_symlink(folder / "data/a", folder / "data/a/loop");
  std::filesystem::create_directory_symlink(folder / "elsewhere", folder / "data/b/link");
  std::filesystem::create_symlink(folder / "elsewhere/1.jpg", folder / "data/b/file.jpg");
  std::filesystem::create_directory_symlink(folder / "elsewhere", folder / "data/c");
  CHECK(list_image_folder(folder / "data").files == Texts{"a/0.jpg", "a/link/1.jpg", "a/link/2.jpg", "b/0.jpg",
                                                          "b/file.jpg", "b/link/1.jpg", "b/link/2.jpg", "c/1.jpg",
                                                          "c/2.jpg"});
}

TEST_CASE("classes without images are errors, unless they are allowed") {
  const TemporaryFolder folder;
  make_file(folder / "a/1.jpg");
  make_file(folder / "b/1.bmp");
  make_file(folder / "b/2.bmp");
  std::filesystem::create_directory(folder / "c");
  const std::string message = message_of<DataError>([&] { list_image_folder(folder.path()); });
  CHECK_THAT(message, ContainsSubstring("none for b, c") && ContainsSubstring("2 .bmp") &&
                          ContainsSubstring("allow_empty") && ContainsSubstring("jpg, jpeg, png, webp"));
  ImageFolderOptions allowing;
  allowing.allow_empty = true;
  const ImageList list = list_image_folder(folder.path(), allowing);
  CHECK(list.classes == Texts{"a", "b", "c"});
  CHECK(list.labels == std::vector<int64_t>{0});
  std::filesystem::remove(folder / "a/1.jpg");
  CHECK_THROWS_AS(list_image_folder(folder.path(), allowing), DataError);
  CHECK_THAT(message_of<DataError>([&] { list_image_folder(folder / "a"); }),
             ContainsSubstring("folder for each class"));
  CHECK_THAT(message_of<DataError>([&] { list_image_folder(folder / "absent"); }), ContainsSubstring("No such file"));
  CHECK_THROWS_AS(list_images(folder.path()), DataError);
}

TEST_CASE("given classes keep their numbers in a folder that lacks some of them") {
  const TemporaryFolder folder;
  make_file(folder / "cat/1.jpg");
  make_file(folder / "emu/1.jpg");
  ImageFolderOptions options;
  options.classes = {"ant", "cat", "emu"};
  CHECK_THAT(message_of<DataError>([&] { list_image_folder(folder.path(), options); }),
             ContainsSubstring("none for ant"));
  options.allow_empty = true;
  CHECK(list_image_folder(folder.path(), options).labels == std::vector<int64_t>{1, 2});
  make_file(folder / "cats/1.jpg");
  CHECK_THAT(message_of<DataError>([&] { list_image_folder(folder.path(), options); }),
             ContainsSubstring("'cats'") && ContainsSubstring("did you mean 'cat'"));
}

TEST_CASE("ImageFolder is the data set of the list") {
  const TemporaryFolder folder;
  copy_fixture("colour.png", folder / "a/1.png");
  copy_fixture("alpha.png", folder / "b/1.png");
  const ImageFolder images(folder.path());
  CHECK(images.size() == 2);
  CHECK(images.classes() == Texts{"a", "b"});
  CHECK(images.prototype()["image"].sizes() == at::IntArrayRef({1, 3, 14, 19}));
}

}  // namespace image_folder_test
