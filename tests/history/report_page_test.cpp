#include "fulgur/history/report_page.h"

#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "fulgur/core/text/errors.h"
#include "history/written_run.h"
#include "support/expect_error.h"

using namespace fulgur::test;

namespace report_page_test {

using Catch::Matchers::ContainsSubstring;
using fulgur::history::report_page;

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

TEST_CASE("a page has the run's curves by step, epoch and time, its checkpoints, config and system") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  run.config("model: {class_path: MlpClassifier, init_args: {hidden: [8]}}\n")
      .csv(
          "step,epoch,train_loss,val_loss,lr-SGD,device/samples_per_sec,data_wait_share,loss_scale\n"
          "5,0,2.0,,0.1,100,0.01,65536\n10,0,,1.5,,,,\n15,1,1.0,,0.05,110,0.02,65536\n20,1,,1.25,,,,\n")
      .finished(2, 20, 12.5);
  run.checkpoint(0, 10, 6.0, "best.ckpt").checkpoint(1, 20, 12.0, "last.ckpt");
  const std::string page = report_page({run.folder});
  for (const char* title : {"Curves", "Learning rates", "Throughput and waiting", "Loss scale", "Values", "Checkpoints",
                            "Config", "System"})
    CHECK_THAT(page, ContainsSubstring(std::string("<h2>") + title + "</h2>"));
  CHECK(count_of(page, "<figure>") == 5);  // train_loss and val_loss share a chart
  CHECK(count_of(page, "class=\"chart by-step\"") == 5);
  CHECK(count_of(page, "class=\"chart by-epoch\"") == 5);
  CHECK(count_of(page, "class=\"chart by-time\"") == 5);
  CHECK_THAT(page, ContainsSubstring("val_loss = 1.25 at step 20"));
  CHECK_THAT(page, ContainsSubstring("epoch=0-step=10.ckpt"));
  CHECK_THAT(page, ContainsSubstring("model.init_args.hidden"));
  CHECK_THAT(page, ContainsSubstring("1 × cpu"));
  // The step 15 is in the middle of the second epoch, at 9 s; the axes begin at step 5, half an epoch, 3 s.
  CHECK_THAT(page, ContainsSubstring("data-unit=\"epoch\" data-box=\"54 8 392 204\" data-x0=\"0.5\" data-x1=\"2\""));
  CHECK_THAT(page, ContainsSubstring("data-unit=\"s\" data-box=\"54 8 392 204\" data-x0=\"3\" data-x1=\"12\""));
  CHECK_THAT(page, !ContainsSubstring("http://") && !ContainsSubstring("https://") && !ContainsSubstring("url("));
}

TEST_CASE("a page of several runs shows what differs, and a run without checkpoints has no times") {
  const TemporaryFolder folder;
  WrittenRun(folder / "a/version_0").config("lr: 0.1\nseed: 1\n").csv("step,epoch,loss\n1,0,1\n2,0,0.5\n");
  WrittenRun(folder / "b/version_0").config("lr: 0.2\nseed: 1\n").csv("step,epoch,loss\n1,0,2\n");
  const std::string page = report_page({folder / "a/version_0", folder / "b/version_0"});
  CHECK_THAT(page, ContainsSubstring("<h2>Options that differ</h2>"));
  CHECK_THAT(page,
             ContainsSubstring("<td class=\"number\">lr</td><td class=\"number\">0.1</td><td class=\"number\">0.2"));
  CHECK_THAT(page, ContainsSubstring("a/version_0: loss"));
  CHECK_THAT(page, ContainsSubstring("b/version_0: loss"));
  CHECK(count_of(page, "class=\"chart by-time\"") == 0);
  CHECK_THAT(page, ContainsSubstring("The times of these values are not known"));
}

TEST_CASE("runs with the same name have their paths on the page") {
  const TemporaryFolder folder;
  for (const char* name : {"a/x/version_0", "b/x/version_0"}) WrittenRun(folder / name).csv("step,epoch,loss\n1,0,1\n");
  const std::string page = report_page({folder / "a/x/version_0", folder / "b/x/version_0"});
  CHECK_THAT(page, ContainsSubstring("a/x/version_0: loss") && ContainsSubstring("b/x/version_0: loss"));
}

TEST_CASE("all texts of a run are escaped") {
  const TemporaryFolder folder;
  const std::string attack = "<script>alert(1)</script>";
  const WrittenRun run(folder / "<img src=x>\"");
  run.config("model: {\"" + attack + "\": \"" + attack + "\"}\n")
      .csv("step,epoch,\"" + attack + "\",\"a\"\"><b>\"\n1,0,1,2\n2,0,nan,1\n")
      .failed("<b>" + attack);
  std::filesystem::create_directories(run.folder / "media");
  run.put("media/<i>\"1.png", "png").put("media/text_2.txt", attack);
  const std::string page = report_page({run.folder});
  CHECK(count_of(page, "<script>") == 1);  // its own
  CHECK_THAT(page, !ContainsSubstring("<img src=x>") && !ContainsSubstring("<b>") && !ContainsSubstring("<i>"));
  CHECK_THAT(page, ContainsSubstring("&lt;script&gt;alert(1)&lt;/script&gt;"));
  CHECK_THAT(page, ContainsSubstring("data:image/png;base64,cG5n"));
  CHECK_THAT(page, ContainsSubstring("1 value NaN or infinite"));
}

TEST_CASE("the newest file of each name in media is shown, and links are not followed") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  std::filesystem::create_directories(run.folder / "media/confusion");
  run.put("media/confusion/step=9.png", "old").put("media/confusion/step=10.png", "new").put("secret", "x");
  std::filesystem::create_symlink(run.folder / "secret", run.folder / "media/link.png");
  const std::string page = report_page({run.folder});
  CHECK_THAT(page, ContainsSubstring("confusion/step=10.png"));
  CHECK_THAT(page, !ContainsSubstring("step=9.png") && !ContainsSubstring("link.png"));
}

TEST_CASE("small tables in media are shown, with their texts escaped") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  std::filesystem::create_directories(run.folder / "media/val_samples");
  std::filesystem::create_directories(run.folder / "media/wide");
  // A matrix of 31 classes fits, and one of 32 does not.
  std::string matrix = "\"rows: label, columns: prediction\"", wide = "a";
  for (int i = 0; i < 31; ++i) matrix += ",c" + std::to_string(i);
  for (int i = 0; i < 32; ++i) wide += ",c" + std::to_string(i);
  run.put("media/matrix_1.csv", matrix + "\n");
  run.put("media/val_samples/step=9.csv", "label,stale_prediction\n1,2\n")
      .put("media/val_samples/step=10.csv", "label,\"predic,tion\"\n7,<b>\n")
      .put("media/val_samples/step=10.png", "png")
      .put("media/wide/step=1.csv", wide + "\n");
  std::string long_table = "a\n";
  for (int i = 0; i < 65; ++i) long_table += "x\n";
  run.put("media/long_1.csv", long_table).put("media/broken_1.csv", "a\n\"open\n");
  const std::string page = report_page({run.folder});
  CHECK_THAT(page, ContainsSubstring("<table><tr><th>label</th><th>predic,tion</th></tr>\n"
                                     "<tr><td>7</td><td>&lt;b&gt;</td></tr>\n</table>"));
  CHECK_THAT(page, !ContainsSubstring("stale_prediction"));
  // Both files of the name, and three tables that are not shown.
  CHECK_THAT(page, ContainsSubstring("val_samples/step=10.png"));
  CHECK_THAT(page, ContainsSubstring("wide/step=1.csv is not shown: it has 33 columns, and a page shows at most 32."));
  CHECK_THAT(page, ContainsSubstring("long_1.csv is not shown: it has more than 64 rows."));
  CHECK_THAT(page, ContainsSubstring("broken_1.csv is not shown: it is damaged."));
  CHECK_THAT(page, ContainsSubstring("<th>rows: label, columns: prediction</th>") && ContainsSubstring("<th>c30</th>"));
  CHECK_THAT(page, !ContainsSubstring("more are not shown"));
}

TEST_CASE("a page has at most 24 figures, and says how many more there are") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  std::filesystem::create_directories(run.folder / "media");
  for (char name = 'a'; name <= 'z'; ++name) run.put(std::string("media/") + name + ".txt", "x");
  CHECK_THAT(report_page({run.folder}), ContainsSubstring("2 more are not shown: a page has at most 24."));
}

TEST_CASE("a page stays small for many rows and many metrics") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  std::string text = "step,epoch";
  for (int m = 0; m < 700; ++m) text += ",metric_" + std::to_string(m);
  text += "\n";
  for (int step = 1; step <= 1200; ++step) {
    text += std::to_string(step) + "," + std::to_string(step / 100);
    for (int m = 0; m < 700; ++m) text += "," + std::to_string(std::sin(step * 0.1 + m) + step % 7);
    text += "\n";
  }
  run.csv(text).checkpoint(11, 1200, 60);
  const std::string page = report_page({run.folder});
  CHECK(page.size() < 3'000'000);
  CHECK_THAT(page, ContainsSubstring("550 more metrics are not shown"));
}

TEST_CASE("a report needs a run") {
  CHECK_THROWS_AS(report_page({}), fulgur::ConfigError);
  CHECK_THROWS_AS(report_page({"/nowhere/version_0"}), fulgur::ConfigError);
}

TEST_CASE("a page of a run that has logged nothing says so") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  CHECK_THAT(report_page({run.folder}), ContainsSubstring("No metrics have been logged yet"));
}

}  // namespace report_page_test
