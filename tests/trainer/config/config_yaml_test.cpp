#include <sys/resource.h>

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <functional>

#include "fulgur/core/text/text.h"
#include "fulgur/trainer/yaml.h"
#include "support/full_speed.h"
#include "support/temporary_folder.h"

namespace config_yaml_test {

using namespace fulgur;

namespace {

struct Parsed {
  ConfigNode node;
  std::string report;
};

Parsed parse(const std::string& text) {
  Problems problems;
  ConfigNode node = parse_yaml(text, "c.yaml", problems);
  return {std::move(node), problems.report()};
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Whether `work` takes less than so many seconds; a program that does not run at full speed has the time it needs.
bool ends_within(double seconds, const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return !test::kRunsAtFullSpeed ||
         std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds;
}

int64_t peak_mib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

std::string repeated(const std::string& part, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += part;
  return out;
}

}  // namespace

TEST_CASE("values keep their text, their quotes and their place") {
  const Parsed parsed = parse("a: 1\nb:\n  c: '2'\n  d: [x, null, ~]\ne:\n");
  CHECK(parsed.report.empty());
  CHECK(parsed.node.find("a")->text() == "1");
  CHECK_FALSE(parsed.node.find("a")->quoted());
  const ConfigNode& c = *parsed.node.find("b")->find("c");
  CHECK(c.quoted());
  CHECK(c.where.text() == "c.yaml:3:6");
  CHECK(c.key_where.text() == "c.yaml:3:3");
  const ConfigNode& d = *parsed.node.find("b")->find("d");
  REQUIRE(d.items().size() == 3);
  CHECK(d.items()[1].is_null());
  CHECK(d.items()[2].is_null());
  CHECK(parsed.node.find("e")->is_null());
}

TEST_CASE("F40 an empty file, or one of comments, is said to be empty") {
  for (const char* text : {"", "\n\n", "# only\n# comments\n", "---\n", "null\n", "\xEF\xBB\xBF"}) {
    INFO(text);
    CHECK(says(parse(text).report, "is empty"));
  }
}

TEST_CASE("F40 two documents are refused") { CHECK(says(parse("a: 1\n---\nb: 2\n").report, "c.yaml:2:")); }

TEST_CASE("F40 duplicate keys are refused with both places") {
  const Parsed parsed = parse("trainer:\n  lr: 0.1\n  lr: 0.2\nb: {x: 1, x: 2}\n");
  CHECK(parsed.report ==
        "c.yaml:3:3: trainer.lr: duplicate key; it was first set at c.yaml:2:3\nc.yaml:4:11: b.x: duplicate key; "
        "it was first set at c.yaml:4:5");
}

TEST_CASE("F40 merge keys are refused, quoted ones are keys") {
  CHECK(says(parse("a: &a {x: 1}\nb:\n  <<: *a\n").report, "c.yaml:3:3: b.<<: merge keys are not supported"));
  CHECK(parse("'<<': 1\n").report.empty());
}

TEST_CASE("F40 tabs that indent are refused with a hint") {
  CHECK(says(parse("trainer:\n\tmax_epochs: 3\n").report, "indented with a tab"));
  CHECK(parse("a:\t1\n").node.find("a")->text() == "1");
}

TEST_CASE("F40 lines with another indentation than their neighbours are refused with a hint") {
  CHECK(says(parse("a:\n   b: 1\n  c: 2\n").report, "must have the same indentation"));
  CHECK(says(parse("a:\n  - 1\n - 2\n").report, "must have the same indentation"));
  CHECK(says(parse("a: 1\n  b: 2\n").report, "indented more than the one above it"));
  CHECK(says(parse("a: text: more\n").report, "needs quotes"));
}

TEST_CASE("F40 a line that makes the next one illegal is named, with what to write") {
  const std::string hint = "In line 2, write 'devices: 1', with a space after the colon";
  CHECK(says(parse("trainer:\n  devices:1\n  precision: 32\n").report, hint));
  CHECK(says(parse("a: 1\ndevices:1\n# more\n\nb: 2\n").report, hint));
  CHECK(says(parse("a: 1\ndevices:1\n").report, hint));
  CHECK(says(parse("a:\n - devices:1\n   b: 2\n").report, hint));
  CHECK(says(parse("a:\n - ModelCheckpoint\n   monitor: x\n").report,
             "In line 2, write '- class_path: ModelCheckpoint'; the options of the class stand under init_args"));
  CHECK_FALSE(says(parse("a: 1\nhttp://host\nb: 2\n").report, "In line 2"));
}

TEST_CASE("F40 byte order mark and CRLF change nothing") {
  const Parsed parsed = parse(
      "\xEF\xBB\xBF"
      "a: 1\r\nb: x\r\n");
  CHECK(parsed.report.empty());
  CHECK(parsed.node.find("a")->text() == "1");
  CHECK(parsed.node.find("b")->text() == "x");
}

TEST_CASE("F40 bad UTF-8, UTF-16 and control characters are refused") {
  CHECK(says(parse("a: 1\nb: \xC3\x28\n").report, "c.yaml:2:1: this line is not valid UTF-8"));
  CHECK(says(parse(std::string("\xFF\xFE"
                               "a\0:\0",
                               6))
                 .report,
             "UTF-16"));
  CHECK(says(parse(std::string("a: \0", 4)).report, "control character"));
  CHECK(says(parse("a: b\rc\n").report, "control character"));
  CHECK(says(parse("a: \x1b[2J\n").report, "c.yaml:1:4: control character"));
}

TEST_CASE("F40 tags, odd keys and broken YAML are refused") {
  CHECK(says(parse("a: !!python/object:os.system x\n").report, "tags are not supported"));
  CHECK(says(parse("[a, b]: 1\n").report, "a key must be text"));
  CHECK(says(parse("a: &x 1\n*x : 2\n").report, "a key must be text"));
  CHECK(says(parse("? ~\n: 1\n").report, "a key must be text"));
  for (const char* text : {"a: [1, 2\n", "a: {b: 1\n", "a: 'x\n", "a: 'x", "a: \"x\nb: 1\n", "a: *nobody\n",
                           "a: 1\n b: 2\n", "a: b: c\n", "%\n", "!2"}) {
    INFO(text);
    CHECK(says(parse(text).report, "c.yaml:"));
  }
}

TEST_CASE("aliases are resolved") {
  const Parsed parsed = parse("a: &a {x: 1}\nb: *a\n");
  CHECK(parsed.report.empty());
  CHECK(parsed.node.find("b")->same_as(*parsed.node.find("a")));
}

TEST_CASE("F41 an alias bomb is refused at once") {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int level = 1; level <= 9; ++level) {
    const std::string below = cat("*a", level - 1);
    text += cat("a", level, ": &a", level, " [", below, repeated(", " + below, 8), "]\n");
  }
  std::string report;
  CHECK(ends_within(1, [&] { report = parse(text).report; }));
  CHECK(says(report, "more than 100000 values"));
}

TEST_CASE("F41 aliases of one long text are refused") {
  const std::string text = "a: &a " + std::string(500'000, 'x') + "\nb: [*a" + repeated(", *a", 1000) + "]\n";
  std::string report;
  CHECK(ends_within(1, [&] { report = parse(text).report; }));
  CHECK(says(report, "bytes of text"));
}

TEST_CASE("F41 a cyclic alias is refused with the chain") {
  CHECK(says(parse("a: &a [*a]\n").report, "a → a.0"));
  CHECK(says(parse("m: &m\n  b:\n    c: *m\n").report, "m → m.b.c"));
}

TEST_CASE("F41 deep nesting is refused at once") {
  const size_t deep = 100'000;
  for (const std::string& text : {repeated("[", deep) + repeated("]", deep), repeated("- ", deep),
                                  repeated("{a: ", deep) + repeated("}", deep)}) {
    std::string report;
    CHECK(ends_within(1, [&] { report = parse(text).report; }));
    CHECK(says(report, "nested deeper than 64 levels"));
  }
  for (const std::string& text :
       {repeated("[", deep), repeated("{a: ", deep), repeated("? ", deep), repeated("&a ", deep)}) {
    std::string report;
    CHECK(ends_within(1, [&] { report = parse(text).report; }));
    CHECK(says(report, "c.yaml:1:"));
  }
  CHECK(parse(repeated("[", 64) + repeated("]", 64)).report.empty());
  CHECK(says(parse(repeated("[", 65) + repeated("]", 65)).report, "nested deeper"));
  // Depth that comes through aliases counts too.
  CHECK(says(
      parse("a: &a " + repeated("[", 40) + repeated("]", 40) + "\nb: " + repeated("[", 40) + "*a" + repeated("]", 40))
          .report,
      "nested deeper"));
}

TEST_CASE("F41 10,000 keys are read in less than a second, and many more are refused") {
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += cat("key_number_", i, ": ", i, "\n");
  Parsed parsed;
  CHECK(ends_within(1, [&] { parsed = parse(text); }));
  CHECK(parsed.report.empty());
  CHECK(parsed.node.entries().size() == 10'000);
  text.clear();
  for (int i = 0; i < 100'000; ++i) text += cat("k", i, ":\n");
  CHECK(ends_within(3, [&] { parsed = parse(text); }));
  CHECK(says(parsed.report, "more than 100000 values"));
}

TEST_CASE("F41 large files and texts") {
  const test::TemporaryFolder folder;
  // Sparse: 100 MB that cost no disk.
  test::write_text(folder / "big.yaml", "a: 1\n");
  std::filesystem::resize_file(folder / "big.yaml", 100'000'000);
  Problems problems;
  const int64_t before = peak_mib();
  CHECK(ends_within(1, [&] { load_yaml_file(folder / "big.yaml", problems); }));
  CHECK(says(problems.report(), "larger than a config may be"));
  CHECK(peak_mib() - before < 50);

  const std::string long_text = "a: \"" + std::string((1 << 20) - 10, 'x') + "\"\n";
  Parsed parsed;
  CHECK(ends_within(2, [&] { parsed = parse(long_text); }));
  CHECK(parsed.report.empty());
  CHECK(says(parse("a: " + std::string(1 << 20, 'x')).report, "larger than a config may be"));
}

TEST_CASE("a file that cannot be read says why") {
  const test::TemporaryFolder folder;
  Problems problems;
  load_yaml_file(folder / "none.yaml", problems);
  CHECK(says(problems.report(), "cannot be opened: No such file"));
  Problems of_folder;
  load_yaml_file(folder.path(), of_folder);
  CHECK(says(of_folder.report(), "is a folder"));
}

TEST_CASE("what is written parses back to the same") {
  ConfigNode node = ConfigNode::map();
  const std::vector<std::string> texts = {
      "plain",       "",     " ",     "2",           "1.0",   "true",       "null",      "~",
      "yes",         "a: b", "a:",    "- x",         "-",     "-?x",        "-x",        ".",
      "--",          "# x",  "x #y",  "'q'",         "\"d\"", "[a]",        "{a}",       "a,b",
      "*x",          "&x",   "!x",    "%x",          "@x",    "`x",         "|",         ">",
      "? x",         "<<",   "=",     "line\nbreak", "tab\t", "esc\x1b[0m", "ö→",        "\x7f",
      "C:\\dir",     "...",  "...1",  "--1",         "-?x",   "a?",         "-x",        ".",
      "---",         "0x1F", "1_000", ".inf",        "12:30", "${x}",       "trailing ", "\xE2\x80\xA8",
      "\xEF\xBB\xBF"};
  for (const std::string& text : texts) node.set("k" + std::to_string(node.entries().size()), ConfigNode::string(text));
  for (const char* text : {"a b", "true", "1", "a: b", "", "x\ny"}) node.set(text, ConfigNode::integer(1));
  node.set("number", ConfigNode::number(1));
  node.set("negative", ConfigNode::integer(-5));
  node.set("tiny", ConfigNode::number(-1e-300));
  node.set("inf", ConfigNode::scalar("-.inf"));
  node.set("null", ConfigNode::null());
  node.set("no_items", ConfigNode::list());
  node.set("no_entries", ConfigNode::map());
  ConfigNode inner = ConfigNode::map(
      {{"class_path", ConfigNode::string("X")},
       {"init_args",
        ConfigNode::map({{"a", ConfigNode::list({ConfigNode::list({ConfigNode::integer(1)}), ConfigNode::null()})}})}});
  node.set("items",
           ConfigNode::list({inner, ConfigNode::list({inner, ConfigNode::map()}), ConfigNode::string("x"), inner}));
  std::vector<ConfigNode> many;
  for (int i = 0; i < 100; ++i) many.push_back(ConfigNode::integer(i));
  node.set("many", ConfigNode::list(many));
  for (auto& [key, value] : node.entries()) value.comment = "About " + key + "\nin two lines";
  for (auto& [key, value] : node.find("items")->items()[0].entries()) value.comment = "About " + key;

  for (const bool comments : {false, true}) {
    const std::string text = to_yaml(node, {.comments = comments, .skip_null = false});
    const Parsed parsed = parse(text);
    INFO(text);
    CHECK(parsed.report.empty());
    REQUIRE(parsed.node.entries().size() == node.entries().size());
    for (size_t i = 0; i < node.entries().size(); ++i) {
      INFO(escape_controls(node.entries()[i].first) << ": " << to_yaml(node.entries()[i].second));
      CHECK(parsed.node.entries()[i].first == node.entries()[i].first);
      CHECK(parsed.node.entries()[i].second.same_as(node.entries()[i].second));
    }
  }
}

TEST_CASE("styles of writing") {
  ConfigNode node = ConfigNode::map({{"a", ConfigNode::number(1)}, {"b", ConfigNode::null()}});
  node.find("a")->comment = "First.";
  CHECK(to_yaml(node) == "a: 1.0\nb: null\n");
  CHECK(to_yaml(node, {.comments = true, .skip_null = false}) == "# First.\na: 1.0\nb: null\n");
  CHECK(to_yaml(node, {.comments = false, .skip_null = true}) == "a: 1.0\n");
}

}  // namespace config_yaml_test
