// hooks.txt against the headers and the docs.
#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "fulgur/core/contracts/data_module.h"
#include "fulgur/core/contracts/hook_signatures.h"
#include "fulgur/core/contracts/module.h"

// Last: LibTorch defines its own CHECK.
#include <catch2/catch_test_macros.hpp>

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
  std::istringstream lines(text_of("tests/trainer/loops/hooks.txt"));
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
      {"module", declared_in("core/include/fulgur/core/contracts/module.h", "LightningModule")},
      {"callback", declared_in("core/include/fulgur/core/contracts/callback.h", "Callback")},
      {"data", declared_in("core/include/fulgur/core/contracts/data_module.h", "DataModule")}};
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

// The lists that the compiler names signatures from have the types of the declarations.
#define FULGUR_SAME(Base, hook, result, arguments, qualifiers) \
  static_assert(std::is_same_v<decltype(&fulgur::Base::hook), result(fulgur::Base::*) arguments qualifiers>);
#define FULGUR_SAME_OF_MODULE(...) FULGUR_SAME(LightningModule, __VA_ARGS__)
#define FULGUR_SAME_OF_CALLBACK(...) FULGUR_SAME(Callback, __VA_ARGS__)
#define FULGUR_SAME_OF_DATA(...) FULGUR_SAME(DataModule, __VA_ARGS__)
FULGUR_MODULE_SIGNATURES(FULGUR_SAME_OF_MODULE)
FULGUR_CALLBACK_SIGNATURES(FULGUR_SAME_OF_CALLBACK)
FULGUR_DATA_SIGNATURES(FULGUR_SAME_OF_DATA)

TEST_CASE("hook_signatures.h has each virtual function of the headers") {
#define FULGUR_NAME(hook, ...) #hook,
  const std::set<std::string> module{FULGUR_MODULE_SIGNATURES(FULGUR_NAME)};
  const std::set<std::string> callback{FULGUR_CALLBACK_SIGNATURES(FULGUR_NAME)};
  const std::set<std::string> data{FULGUR_DATA_SIGNATURES(FULGUR_NAME)};
  CHECK(module == declared_in("core/include/fulgur/core/contracts/module.h", "LightningModule"));
  CHECK(callback == declared_in("core/include/fulgur/core/contracts/callback.h", "Callback"));
  CHECK(data == declared_in("core/include/fulgur/core/contracts/data_module.h", "DataModule"));
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
