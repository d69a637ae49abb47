#include "fulgur/core/options/config_node.h"

#include <catch2/catch_test_macros.hpp>

#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"

namespace config_node_test {

using namespace fulgur;

TEST_CASE("a location is file, line and column, or only the source") {
  CHECK(Location{"c.yaml", 3, 7}.text() == "c.yaml:3:7");
  CHECK(Location{"command line", 0, 0}.text() == "command line");
  CHECK(Location{}.text().empty());
}

TEST_CASE("a map keeps its order and its keys unique") {
  ConfigNode node;
  node.set("b", ConfigNode::integer(1));
  node.set("a", ConfigNode::integer(2));
  node.set("b", ConfigNode::integer(3));
  REQUIRE(node.is_map());
  REQUIRE(node.entries().size() == 2);
  CHECK(node.entries()[0].first == "b");
  CHECK(node.find("b")->text() == "3");
  CHECK(node.find("c") == nullptr);
  node.erase("b");
  CHECK(node.find("b") == nullptr);
}

TEST_CASE("a scalar gives way to a map") {
  ConfigNode node = ConfigNode::string("x");
  node.get_or_add("key");
  CHECK(node.is_map());
  CHECK(node.text().empty());
}

TEST_CASE("sameness: quotes count only if they change the meaning") {
  CHECK(ConfigNode::string("abc").same_as(ConfigNode::scalar("abc")));
  CHECK_FALSE(ConfigNode::string("2").same_as(ConfigNode::scalar("2")));
  CHECK_FALSE(ConfigNode::string("true").same_as(ConfigNode::scalar("true")));
  CHECK_FALSE(ConfigNode::number(1).same_as(ConfigNode::integer(1)));
  CHECK_FALSE(ConfigNode::null().same_as(ConfigNode::map()));
  ConfigNode list = ConfigNode::list({ConfigNode::integer(1)});
  CHECK(list.same_as(ConfigNode::list({ConfigNode::integer(1)})));
  CHECK_FALSE(list.same_as(ConfigNode::list()));
}

TEST_CASE("plain texts that mean something else are recognised") {
  for (const char* text :
       {"~", "null", "True", "NO", "on", ".inf", "-.Inf", "1", "-1", "1e-3", "0x1F", "1_000", "12:30"}) {
    INFO(text);
    CHECK_FALSE(reads_as_text(text));
  }
  for (const char* text : {"abc", "32-true", "nullable", "1 to 2", "e5", "AdamW", "-", ".", ".."}) {
    INFO(text);
    CHECK(reads_as_text(text));
  }
}

TEST_CASE("problems are reported all at once, each in one line") {
  Problems problems;
  problems.throw_if_any();
  problems.add({"c.yaml", 2, 3}, "trainer.max_epochs", "wrong");
  CHECK(problems.report() == "c.yaml:2:3: trainer.max_epochs: wrong");
  problems.add({}, "model", "text with\nnewline and \x1b[0m");
  const std::string message = test::message_of<ConfigError>([&] { problems.throw_if_any(); });
  CHECK(message ==
        "[config] 2 problems:\nc.yaml:2:3: trainer.max_epochs: wrong\nmodel: text with\\nnewline and \\x1b[0m");
}

TEST_CASE("a report has an end") {
  Problems problems;
  for (int i = 0; i < 1000; ++i) problems.add({}, "key", "wrong");
  CHECK(problems.report().size() < 2000);
  CHECK(problems.report().ends_with("… and 900 more"));
}

}  // namespace config_node_test
