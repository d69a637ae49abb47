// hooks.txt against the headers and the docs.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/source_text.h"

namespace hooks_declared_test {

using fulgur::test::text_of;

namespace {

// Names of the virtual functions that a class of the header declares or overrides.
std::set<std::string> declared_in(const std::string& header, const std::string& class_name) {
  const std::string text = text_of(header);
  const size_t begin = text.find("class FULGUR_API " + class_name + " ");
  REQUIRE(begin != std::string::npos);
  const std::string body = text.substr(begin, text.find("\n};", begin) - begin);
  std::set<std::string> names;
  const std::regex declaration(R"(\n\s+virtual [^\n;{]*?(\w+)\(|\n\s+[\w:<>&, ]+ (\w+)\([^\n]*\) (?:const )?override)");
  for (std::sregex_iterator match(body.begin(), body.end(), declaration), end; match != end; ++match)
    names.insert((*match)[1].matched ? (*match)[1].str() : (*match)[2].str());
  std::erase_if(names, [](const std::string& name) { return name.starts_with("~"); });
  return names;
}

struct Hook {
  std::string kind, name, relation, other;
};

std::vector<Hook> listed() {
  std::vector<Hook> hooks;
  std::istringstream lines(text_of("tests/trainer/hooks.txt"));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    Hook hook;
    std::istringstream(line) >> hook.kind >> hook.name >> hook.relation >> hook.other;
    hooks.push_back(hook);
  }
  return hooks;
}

}  // namespace

TEST_CASE("hooks.txt lists what the headers declare, name by name") {
  const std::map<std::string, std::set<std::string>> declared{
      {"module", declared_in("core/include/fulgur/core/module.h", "LightningModule")},
      {"callback", declared_in("core/include/fulgur/core/callback.h", "Callback")},
      {"data", declared_in("core/include/fulgur/core/data_module.h", "DataModule")}};
  std::map<std::string, std::set<std::string>> expected;
  for (const Hook& hook : listed()) {
    CAPTURE(hook.kind, hook.name);
    REQUIRE(declared.contains(hook.kind));
    REQUIRE(
        (hook.relation.empty() || hook.relation == "as" || hook.relation == "added" || hook.relation == "left_out"));
    if (hook.relation == "left_out")
      CHECK_FALSE(declared.at(hook.kind).contains(hook.name));
    else
      expected[hook.kind].insert(hook.relation == "as" ? hook.other : hook.name);
  }
  for (const auto& [kind, names] : declared) {
    CAPTURE(kind);
    CHECK(names.size() > 5);
    CHECK(names == expected[kind]);
  }
}

TEST_CASE("each hook that is omitted, or has another name, is in the docs with its reason") {
  const std::string docs = text_of("docs/coming_from_lightning.md");
  for (const Hook& hook : listed()) {
    if (hook.relation != "left_out" && hook.relation != "as") continue;
    CAPTURE(hook.kind, hook.name);
    CHECK(docs.find("`" + hook.name) != std::string::npos);
  }
}

}  // namespace hooks_declared_test
