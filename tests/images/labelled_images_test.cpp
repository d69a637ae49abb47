#include "fulgur/images/labelled_images.h"

#include "fulgur/core/text/errors.h"
#include "images/image_support.h"
#include "support/expect_error.h"
#include "support/shown_lines.h"

namespace labelled_images_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using Texts = std::vector<std::string>;

namespace {

/// Reads a text as the file `list` of a folder.
class Lists {
 public:
  ImageList read(std::string_view text, const LabelledImagesOptions& options = {}) const {
    write_text(folder_ / "list", text);
    return read_labelled_images(folder_ / "list", options);
  }
  std::string refused(std::string_view text, const LabelledImagesOptions& options = {}) const {
    return message_of<DataError>([&] { read(text, options); });
  }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("CSV and JSONL name files and labels") {
  const Lists lists;
  const std::vector<std::string> texts{
      "file,label\nx/1.jpg,dog\n2.jpg,cat\n/abs/3.jpg,dog\n",
      "\xef\xbb\xbfid,label,file\r\n7,dog,x/1.jpg\r\n8,cat,2.jpg\r\n9,dog,/abs/3.jpg",
      "label,file\n\"dog\",\"x/1.jpg\"\n\ncat,2.jpg\ndog,/abs/3.jpg\n\n",
      "{\"file\": \"x/1.jpg\", \"label\": \"dog\", \"more\": [1]}\n{\"label\": \"cat\", \"file\": \"2.jpg\"}\r\n\n"
      "{\"file\": \"/abs/3.jpg\", \"label\": \"dog\"}"};
  for (const std::string& text : texts) {
    INFO(text);
    const ImageList list = lists.read(text);
    CHECK(list.files == Texts{"x/1.jpg", "2.jpg", "/abs/3.jpg"});
    CHECK(list.classes == Texts{"cat", "dog"});
    CHECK(list.labels == std::vector<int64_t>{1, 0, 1});
    CHECK(list.path(0) == lists.path() / "x/1.jpg");
    CHECK(list.path(2) == "/abs/3.jpg");
  }
  LabelledImagesOptions options;
  options.root = "/images";
  options.file_column = "path";
  options.label_column = "kind";
  const ImageList other = lists.read("kind,path,file\na,\"1,\"\"2\"\".jpg\",unused\n", options);
  CHECK(other.path(0) == "/images/1,\"2\".jpg");
  CHECK(other.classes == Texts{"a"});
}

TEST_CASE("integer labels are classes from 0, all others are names") {
  const Lists lists;
  const ImageList numbers = lists.read("file,label\na,3\nb,0\nc,03\n");
  CHECK(numbers.classes == Texts{"0", "1", "2", "3"});
  CHECK(numbers.labels == std::vector<int64_t>{3, 0, 3});
  CHECK(lists.read("{\"file\": \"a\", \"label\": 2}\n").labels == std::vector<int64_t>{2});
  const ImageList names = lists.read("file,label\na,10\nb,9\nc,x\n");
  CHECK(names.classes == Texts{"10", "9", "x"});
  CHECK(names.labels == std::vector<int64_t>{0, 1, 2});
  CHECK_THAT(lists.refused("file,label\na,3\nb,-1\n"), ContainsSubstring("-1") && ContainsSubstring("line 3"));
  CHECK_THAT(lists.refused("file,label\na,1000000\n"), ContainsSubstring("1000000"));
}

TEST_CASE("spaces around a label of a CSV file do not count") {
  const Lists lists;
  const ImageList list = lists.read("file,label\na,cat\nb, cat\nc,dog\t\nd,\" dog \"\n");
  CHECK(list.classes == std::vector<std::string>{"cat", "dog"});
  CHECK(list.labels == std::vector<int64_t>{0, 0, 1, 1});
  CHECK(lists.read("file,label\na, 1\nb,0\n").labels == std::vector<int64_t>{1, 0});
  CHECK_THAT(lists.refused("file,label\na,  \n"), ContainsSubstring("must have a label"));
  // Classes of a checkpoint that was made when they counted.
  LabelledImagesOptions options;
  options.classes = {" cat", "dog"};
  CHECK(lists.read("file,label\na, cat\nb,dog\n", options).labels == std::vector<int64_t>{0, 1});
}

TEST_CASE("integer labels that leave numbers out are warned about") {
  const Lists lists;
  const auto shown = [&](std::string_view text, const LabelledImagesOptions& options = {}) {
    return fulgur::test::shown_lines([&] { (void)lists.read(text, options); });
  };
  CHECK_THAT(shown("file,label\na,1\nb,2\nc,7\n"),
             ContainsSubstring("is 7, so there are 8 classes, but no sample has the label 0, 3, 4, 5, 6.") &&
                 ContainsSubstring("data.missing_classes"));
  CHECK(shown("file,label\na,1\nb,2\nc,0\n").empty());
  CHECK(shown("file,label\na,1\nb,2\nc,x\n").empty());
  LabelledImagesOptions options;
  options.classes = {"0", "1", "2"};
  CHECK(shown("file,label\na,2\n", options).empty());
}

TEST_CASE("another delimiter of a list is named") {
  const Lists lists;
  CHECK_THAT(lists.refused("file;label\na;cat\n"),
             ContainsSubstring("must name the column 'file'; it has file;label. Columns must be separated by commas; "
                               "is the delimiter of this file \";\"? Save the file with commas"));
  CHECK_THAT(lists.refused("file\tlabel\na\tcat\n"), ContainsSubstring("\"\\t\""));
}

TEST_CASE("given classes are the only labels") {
  const Lists lists;
  LabelledImagesOptions options;
  options.classes = {"dog", "cat"};
  CHECK(lists.read("file,label\na,cat\nb,dog\n", options).labels == std::vector<int64_t>{1, 0});
  CHECK_THAT(lists.refused("file,label\na,cat\nb,cta\n", options),
             ContainsSubstring("line 3") && ContainsSubstring("'cta'") && ContainsSubstring("did you mean 'cat'"));
  options.classes = {"0", "1", "2"};
  CHECK(lists.read("file,label\na,02\n", options).labels == std::vector<int64_t>{2});
  CHECK_THAT(lists.refused("file,label\na,3\n", options), ContainsSubstring("'3'"));
}

TEST_CASE("files without labels need no label column") {
  const Lists lists;
  LabelledImagesOptions options;
  options.labels = false;
  for (const char* text : {"file\na\nb\n", "file,label\na,\nb,x\n", "{\"file\": \"a\"}\n{\"file\": \"b\"}\n"}) {
    const ImageList list = lists.read(text, options);
    CHECK(list.files == Texts{"a", "b"});
    CHECK(list.labels.empty());
  }
}

TEST_CASE("mistakes are named with their line") {
  const Lists lists;
  CHECK_THAT(lists.refused(""), ContainsSubstring("empty"));
  CHECK_THAT(lists.refused(" \n\n"), ContainsSubstring("empty"));
  CHECK_THAT(lists.refused("file,label\n"), ContainsSubstring("no line but its header"));
  CHECK_THAT(lists.refused("fil,label\na,b\n"), ContainsSubstring("'file'") && ContainsSubstring("did you mean 'fil'"));
  CHECK_THAT(lists.refused("file,file,label\na,b,c\n"), ContainsSubstring("twice"));
  CHECK_THAT(lists.refused("file,label\na,b\nc\n"),
             ContainsSubstring("line 3") && ContainsSubstring("header, 2; got 1"));
  CHECK_THAT(lists.refused("file,label\na,\"b\nc\",d\n"), ContainsSubstring("line 2") && ContainsSubstring("got 3"));
  CHECK_THAT(lists.refused("file,label\na,\"b\n"), ContainsSubstring("quote"));
  CHECK_THAT(lists.refused("file,label\na5\".png,1\nb.png,0\nc6\".png,1\n"), ContainsSubstring("a quote inside"));
  CHECK_THAT(lists.refused("file,label\n\"a.png\"x,1\n"), ContainsSubstring("text after the closing quote"));
  CHECK_THAT(lists.refused("file,label\n,b\n"), ContainsSubstring("must name a file"));
  CHECK_THAT(lists.refused("file,label\na,\n"), ContainsSubstring("must have a label"));
  CHECK_THAT(lists.refused("file,label\na,\xff\n"), ContainsSubstring("UTF-8"));
  CHECK_THAT(lists.refused(std::string_view("file,label\na,b\0\n", 16)),
             ContainsSubstring("zero byte") && ContainsSubstring("line 2"));
  CHECK_THAT(lists.refused("{\"file\": \"a\", \"label\": 1}\n{\"file\": \n"),
             ContainsSubstring("line 2") && ContainsSubstring("JSON object"));
  CHECK_THAT(lists.refused("{\"file\": 3, \"label\": 1}\n"), ContainsSubstring("'file'"));
  CHECK_THAT(lists.refused("{\"file\": \"a\", \"label\": 1.5}\n"), ContainsSubstring("'label'"));
  CHECK_THAT(lists.refused("{\"file\": \"a\"}\n"), ContainsSubstring("'label'"));
  CHECK_THAT(lists.refused("{" + std::string(100'000, '[') + "\n"), ContainsSubstring("JSON object"));
  CHECK_THAT(message_of<DataError>([&] { read_labelled_images(lists.path() / "absent.csv"); }),
             ContainsSubstring("does not"));
  CHECK_THAT(message_of<DataError>([&] { read_labelled_images(lists.path()); }), ContainsSubstring("folder"));
}

}  // namespace labelled_images_test
