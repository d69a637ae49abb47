#include "fulgur/core/options/options.h"

#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"

namespace options_test {

using namespace fulgur;

namespace {

struct Inner {
  int64_t depth = 1;
  void fields(Fields& f) { f(depth, "depth", "Depth.").at_least(1); }
};

struct Sample {
  int64_t count = 3;
  int32_t small = 1;
  double rate = 0.5;
  bool flag = false;
  std::string name = "x";
  std::string mode = "min";
  std::filesystem::path folder;
  std::optional<int64_t> maybe;
  Auto<int64_t> threads;
  BatchLimit limit;
  Interval every{1, Interval::Unit::epochs};
  std::vector<int64_t> widths{8};
  std::map<std::string, double> weights;
  Inner inner;
  void fields(Fields& f) {
    f(count, "count", "A count.").at_least(1).at_most(10);
    f(small, "small", "A small number.");
    f(rate, "rate", "A rate.").greater_than(0);
    f(flag, "flag", "A flag.");
    f(name, "name", "A name.");
    f(mode, "mode", "A mode.").one_of({"min", "max"});
    f(folder, "folder", "A folder.");
    f(maybe, "maybe", "Perhaps a number.").at_least(0);
    f(threads, "threads", "Threads.").at_least(1);
    f(limit, "limit", "A limit.");
    f(every, "every", "An interval.");
    f(widths, "widths", "Widths.").at_least(1).min_items(1);
    f(weights, "weights", "Weights.");
    f(inner, "inner", "More.");
  }
};

struct Result {
  Sample value;
  std::string report;
};

Result read(const std::string& key, const ConfigNode& node) {
  Result result;
  Fields fields;
  result.value.fields(fields);
  Problems problems;
  ConfigNode map = ConfigNode::map();
  map.set(key, node);
  fields.read(map, problems, "");
  result.report = problems.report();
  return result;
}

Result read(const std::string& key, const std::string& plain) { return read(key, ConfigNode::scalar(plain)); }
bool says(const Result& result, const std::string& text) { return result.report.find(text) != std::string::npos; }

}  // namespace

TEST_CASE("well-formed values are read") {
  CHECK(read("count", "7").value.count == 7);
  CHECK(read("count", "+7").value.count == 7);
  CHECK(read("rate", "1").value.rate == 1.0);
  CHECK(read("rate", "1e-3").value.rate == 1e-3);
  CHECK(read("rate", ".5").value.rate == .5);
  CHECK(read("rate", "2.").value.rate == 2.0);
  CHECK(std::isinf(read("rate", ".inf").value.rate));
  CHECK(read("flag", "true").value.flag);
  CHECK(read("flag", "True").value.flag);
  CHECK(read("name", "123").value.name == "123");
  CHECK(read("name", ConfigNode::string("")).value.name.empty());
  CHECK(read("maybe", ConfigNode::null()).report.empty());
  CHECK(read("maybe", "4").value.maybe == 4);
  CHECK(read("threads", "auto").value.threads.is_auto());
  CHECK(read("threads", "2").value.threads.value == 2);
  CHECK(read("widths", ConfigNode::list({ConfigNode::integer(4), ConfigNode::integer(5)})).value.widths ==
        std::vector<int64_t>{4, 5});
  CHECK(read("inner", ConfigNode::map({{"depth", ConfigNode::integer(9)}})).value.inner.depth == 9);
  CHECK(read("inner", ConfigNode::null()).report.empty());
}

TEST_CASE("F40 numbers that YAML readers disagree about are refused with a hint") {
  CHECK(says(read("count", "010"), "leading zero"));
  CHECK(says(read("rate", "010"), "leading zero"));
  CHECK(says(read("count", "0x1F"), "decimal"));
  CHECK(says(read("count", "1_000"), "write 1000, without underscores"));
  CHECK(says(read("count", "1.0"), "write 1, without point or exponent"));
  CHECK(says(read("count", "1e3"), "write 1000, without point or exponent"));
  CHECK(says(read("count", "1.5"), "whole number"));
  CHECK(says(read("count", ConfigNode::string("2")), "remove the quotes"));
  CHECK(says(read("rate", ".nan"), "NaN"));
  CHECK(says(read("rate", "nan"), "NaN"));
  CHECK(says(read("count", "99999999999999999999"), "does not fit 64 bits"));
  CHECK(says(read("rate", "1e999"), "does not fit a double"));
  CHECK(says(read("small", "3000000000"), "does not fit its type"));
  for (const char* word : {"yes", "no", "on", "off", "y", "1", "0"}) {
    INFO(word);
    CHECK(says(read("flag", word), "write true or false"));
  }
}

TEST_CASE("F40 a value out of its range is refused and leaves the default") {
  const Result low = read("count", "0");
  CHECK(says(low, "count: must be at least 1 and at most 10; got 0"));
  CHECK(low.value.count == 3);
  CHECK(says(read("rate", "0"), "must be greater than 0"));
  CHECK(says(read("rate", "-.inf"), "must be greater than 0"));
  CHECK(says(read("mode", "mix"), "must be one of min, max; got 'mix'; did you mean 'min' or 'max'?"));
  CHECK(says(read("maybe", "-1"), "at least 0"));
  CHECK(says(read("threads", "0"), "at least 1"));
  CHECK(says(read("threads", "many"), "expected auto or int"));
  CHECK(says(read("widths", ConfigNode::list({ConfigNode::integer(4), ConfigNode::integer(0)})),
             "widths.1: must be at least 1"));
  CHECK(says(read("widths", ConfigNode::list()), "needs at least 1 item; got 0"));
  CHECK(says(read("inner", ConfigNode::map({{"depth", ConfigNode::integer(0)}})), "inner.depth: must be at least 1"));
}

TEST_CASE("a float is read as the nearest one, and written as the shortest number that is read as it") {
  struct Single {
    float rate = 0.1F;
    void fields(Fields& f) { f(rate, "rate", "A rate."); }
  };
  const auto read = [](Single& options, const std::string& text) {
    Fields fields;
    options.fields(fields);
    Problems problems;
    fields.read(ConfigNode::map({{"rate", ConfigNode::scalar(text)}}), problems, "o");
    return problems.report();
  };
  Single options;
  Fields fields;
  options.fields(fields);
  CHECK(fields.write().find("rate")->text() == "0.1");
  CHECK(read(options, "0.7").empty());
  CHECK(options.rate == 0.7F);
  CHECK(read(options, "1e39").find("does not fit a float; got ") != std::string::npos);
  CHECK(options.rate == 0.7F);
}

TEST_CASE("F40 wrong kinds and null are refused") {
  CHECK(says(read("count", ConfigNode::null()), "expected int"));
  CHECK(says(read("name", ConfigNode::null()), "expected string"));
  CHECK(says(read("widths", "4"), "write a list: [4]"));
  CHECK(says(read("widths", ConfigNode::list({ConfigNode::null()})), "widths.0"));
  CHECK(says(read("name", ConfigNode::list()), "expected string"));
  CHECK(says(read("weights", ConfigNode::map({{"a", ConfigNode::scalar("x")}})), "weights.a: expected float"));
  CHECK(says(read("inner", "4"), "expected map"));
}

TEST_CASE("F40 an unknown key names the nearest one") {
  CHECK(says(read("cuont", "1"), "cuont: unknown key; did you mean 'count'?"));
  CHECK(says(read("<<", "1"), "merge keys are not supported"));
  CHECK(says(read("depth", "1"), "depth: unknown key; it is an option of inner: write `inner: {depth: …}`"));
  Sample value;
  Fields fields;
  value.fields(fields);
  fields.hint_for_unknown = [](std::string_view key) {
    return key == "old" ? std::optional<std::string>("write new") : std::nullopt;
  };
  Problems problems;
  fields.read(ConfigNode::map({{"old", ConfigNode::integer(1)}}), problems, "part");
  CHECK(problems.report() == "part.old: unknown key; write new");
}

TEST_CASE("F40 all problems come in one report") {
  Sample value;
  Fields fields;
  value.fields(fields);
  Problems problems;
  fields.read(ConfigNode::map(
                  {{"count", ConfigNode::integer(0)}, {"rate", ConfigNode::scalar("x")}, {"nmae", ConfigNode::null()}}),
              problems, "");
  CHECK(problems.items().size() == 3);
}

TEST_CASE("a missing required option is reported, unless something fills it later") {
  std::string value;
  Fields fields;
  fields(value, "data_dir", "Folder of the data.").required();
  Problems problems;
  problems.allow_missing("other.data_dir");
  fields.read(ConfigNode::null(), problems, "data.init_args");
  CHECK(problems.report() == "data.init_args.data_dir: required option is missing: Folder of the data.");
  Problems null;
  fields.read(ConfigNode::map({{"data_dir", ConfigNode::null()}}), null, "data.init_args");
  CHECK(null.report() ==
        "data.init_args.data_dir: expected string; got null; the option is required: Folder of the data.");
  Problems filled;
  filled.allow_missing("data.init_args.data_dir");
  fields.read(ConfigNode::map(), filled, "data.init_args");
  CHECK(filled.empty());
}

TEST_CASE("an option is declared once") {
  int64_t a = 0, b = 0;
  Fields fields;
  fields(a, "a", "A.");
  CHECK_THROWS_AS(fields(b, "a", "A again."), std::logic_error);
}

TEST_CASE("what is written reads back") {
  Sample value;
  value.count = 5;
  value.rate = 0.1 + 0.2;
  value.name = "2";
  value.maybe = 7;
  value.threads = Auto<int64_t>(4);
  value.limit = BatchLimit(1);
  value.every = *Interval::parse("90min");
  value.weights = {{"a", 1.0}};
  Fields fields;
  value.fields(fields);
  const ConfigNode written = fields.write();
  CHECK(written.find("count")->comment == "A count. (int, at least 1 and at most 10)");
  Sample again;
  Fields again_fields;
  again.fields(again_fields);
  Problems problems;
  again_fields.read(written, problems, "");
  CHECK(problems.report().empty());
  CHECK(again_fields.write().same_as(written));
  CHECK(again.rate == value.rate);
  CHECK(again.limit.count == 1);
}

TEST_CASE("a batch limit is a count or a fraction, by how it is written") {
  CHECK(read("limit", "1").value.limit.count == 1);
  CHECK_FALSE(read("limit", "1.0").value.limit.count);
  CHECK(says(read("limit", "1.5"), "at most 1"));
  CHECK(says(read("limit", "-1"), "at least 0"));
  CHECK(says(read("limit", "all"), "expected int"));
  CHECK(BatchLimit(5).resolve(3, "limit_train_batches") == 3);
  CHECK(BatchLimit(5).resolve(std::nullopt, "limit_train_batches") == 5);
  CHECK(BatchLimit(0.5).resolve(5, "limit_train_batches") == 2);
  CHECK(BatchLimit(0.0).resolve(5, "limit_train_batches") == 0);
  CHECK_FALSE(BatchLimit().resolve(std::nullopt, "limit_train_batches").has_value());
  CHECK(BatchLimit(0.1).resolve(0, "limit_train_batches") == 0);
  const std::string few = test::message_of<ConfigError>([] { BatchLimit(0.1).resolve(5, "limit_val_batches"); });
  CHECK(few.find("limit_val_batches") != std::string::npos);
  CHECK_THROWS_AS(BatchLimit(0.5).resolve(std::nullopt, "limit_val_batches"), ConfigError);
}

TEST_CASE("intervals") {
  for (const char* text : {"10ep", "500st", "3sa", "7tok", "30s", "30min", "2h", "0.5dur", "1.5s"}) {
    INFO(text);
    REQUIRE(Interval::parse(text));
    CHECK(Interval::parse(text)->text() == text);
  }
  CHECK(Interval::parse("90min")->value == 5400);
  CHECK(Interval{1e-9, Interval::Unit::seconds}.text() == "0.000000001s");
  for (const char* text : {"", "10", "ep", "-1ep", "1.5st", "2dur", "1 h", "010s", "1d", "1e3st", "1.2.3s"}) {
    INFO(text);
    CHECK_FALSE(Interval::parse(text));
  }
  CHECK(says(read("every", "10"), "write the unit too: 10ep"));
  // All units in which the number can be written; a fraction is a part of the run if that is allowed.
  struct Lengths {
    Interval any = {}, counted = {}, whole = {};
    void fields(Fields& f) {
      f(any, "any", "");
      f(counted, "counted", "").units({"ep", "st", "tok"});
      f(whole, "whole", "").units({"st"});
    }
  };
  const auto hint = [](const char* name, const char* text) {
    Lengths lengths;
    Fields fields;
    lengths.fields(fields);
    Problems problems;
    fields.read(ConfigNode::map({{name, ConfigNode::scalar(text)}}), problems, "");
    REQUIRE(problems.items().size() == 1);
    const std::string message = problems.items().front().message;
    return message.substr(std::min(message.size(), message.rfind("write ")));
  };
  CHECK(hint("any", "0.5") == "write the unit too: 0.5dur is this part of the run");
  CHECK(hint("any", "20") == "write the unit too: 20ep, 20st, 20sa, 20tok, 20s, 20min or 20h");
  CHECK(hint("counted", "20") == "write the unit too: 20ep, 20st or 20tok");
  CHECK(hint("counted", "0.5") == "write the unit too: 0.5ep");
  CHECK(hint("whole", "0.5") == "write a number and a unit, such as 10st");
}

namespace {

enum class Shape { line, cosine };
constexpr auto enum_names(Shape) {
  return std::to_array<EnumName<Shape>>({{Shape::line, "line"}, {Shape::cosine, "cos"}});
}

struct Curve {
  Shape shape = Shape::line;
  std::optional<Shape> end;
  std::vector<Shape> all;
  double rate = 0.1;
  void fields(Fields& f) {
    f(shape, "shape", "A shape.");
    f(end, "end", "Another.");
    f(all, "all", "Some.");
    f(rate, "rate", "A rate.").learning_rate();
  }
};

}  // namespace

TEST_CASE("an enum is an option by the names of its values") {
  Curve curve;
  Fields fields;
  curve.fields(fields);
  CHECK(type_text(fields.all()[0].type) == "one of line, cos");
  Problems problems;
  fields.read(ConfigNode::map({{"shape", ConfigNode::scalar("cos")},
                               {"end", ConfigNode::scalar("line")},
                               {"all", ConfigNode::list({ConfigNode::scalar("cos"), ConfigNode::scalar("line")})}}),
              problems, "");
  CHECK(problems.empty());
  CHECK((curve.shape == Shape::cosine));
  CHECK((curve.end == Shape::line));
  CHECK((curve.all == std::vector{Shape::cosine, Shape::line}));
  CHECK(fields.write().find("shape")->text() == "cos");
  fields.read(ConfigNode::map({{"shape", ConfigNode::scalar("cosine")}, {"end", ConfigNode::null()}}), problems, "");
  CHECK(problems.report().find("shape: must be one of line, cos; got ") != std::string::npos);
  CHECK((curve.shape == Shape::cosine));
  CHECK_FALSE(curve.end.has_value());
  CHECK(fields.all()[3].is_learning_rate);
  CHECK_FALSE(fields.all()[0].is_learning_rate);
}

TEST_CASE("reading is linear in the number of keys") {
  ConfigNode map = ConfigNode::map();
  for (int i = 0; i < 100'000; ++i) map.entries().emplace_back("unknown_key_" + std::to_string(i), ConfigNode::null());
  Sample value;
  Fields fields;
  value.fields(fields);
  Problems problems;
  fields.read(map, problems, "");
  CHECK(problems.items().size() == 100'000);
}

}  // namespace options_test
