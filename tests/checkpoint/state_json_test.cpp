#include "formats/state_json.h"

#include <ATen/ops/arange.h>

#include <bit>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <ctime>
#include <limits>

#include "fulgur/core/text/errors.h"

namespace state_json_test {

using namespace fulgur;
using namespace fulgur::detail;
using Catch::Matchers::ContainsSubstring;

namespace {

// Through text and back.
StateTree through(const StateTree& tree) {
  StateTensors tensors;
  const std::string json = R"({"optimizers":null,"state":)" + encode_state(tree, "", tensors) + "}";
  TensorMap by_name;
  for (const auto& [name, tensor] : tensors.tensors()) by_name.emplace(name, tensor);
  REQUIRE(by_name.size() == tensors.tensors().size());
  return decode_state(json, CheckpointParts::all, {}, by_name).state;
}

uint64_t bits(double value) { return std::bit_cast<uint64_t>(value); }

StateTree decode(const std::string& state) {
  return decode_state(R"({"optimizers":null,"state":)" + state + "}", CheckpointParts::all, {}, {}).state;
}

}  // namespace

TEST_CASE("every double comes back bit for bit, and as a double") {
  for (const double value :
       {0.0, -0.0, 1.0, -1.0, 0.1, 1.0 / 3, 1e22, 1e300, 123456789012345680.0, 5e-324, 2.2250738585072014e-308,
        std::numeric_limits<double>::max(), std::numeric_limits<double>::epsilon(), HUGE_VAL, -HUGE_VAL,
        std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::quiet_NaN(),
        std::bit_cast<double>(uint64_t{0x7ff8000000000123})}) {
    const StateTree back = through(value);
    CHECK(back.holds<double>());
    CHECK(bits(back.as_double()) == bits(value));
  }
  // All over the range, by a step through the bits.
  for (uint64_t pattern = 1; pattern < uint64_t{1} << 63; pattern += 0x0007'1234'5678'9abd)
    REQUIRE(bits(through(std::bit_cast<double>(pattern)).as_double()) == pattern);
}

TEST_CASE("every integer comes back") {
  for (const int64_t value : {INT64_MIN, int64_t{-1}, int64_t{0}, int64_t{1} << 53 | 1, INT64_MAX}) {
    CHECK(through(value).holds<int64_t>());
    CHECK(through(value).as_int() == value);
  }
  CHECK(through(UINT64_MAX).as_uint() == UINT64_MAX);
  CHECK(through(uint64_t{1} << 63).holds<uint64_t>());
  CHECK(through(uint64_t{5}).as_uint() == 5);
}

TEST_CASE("a map that looks like one of the format's own words comes back as it was") {
  for (const char* word : {"__tensor__", "__float__", "__map__"}) {
    const StateTree inner = StateTree::map({{word, "nan"}});
    for (const StateTree& tree : {inner, StateTree::map({{word, inner}}), StateTree::map({{word, at::arange(3)}}),
                                  StateTree::map({{word, nullptr}}), StateTree::map({{word, "inf"}, {"more", 1}}),
                                  StateTree(StateTree::List{inner, inner})}) {
      StateTensors before, after;
      const StateTree back = through(tree);
      CHECK(encode_state(back, "", after) == encode_state(tree, "", before));
      CHECK(back.type_name() == tree.type_name());
      if (tree.is_map()) CHECK(back.at(word).type_name() == tree.at(word).type_name());
    }
    CHECK(through(StateTree::map({{word, StateTree::map({{word, 1.5}})}})).at(word).at(word).as_double() == 1.5);
  }
}

TEST_CASE("tensors whose paths look alike keep different names") {
  StateTree tree;
  tree["a.b"] = at::arange(1);
  tree["a"]["b"] = at::arange(2);
  tree["__metadata__"] = at::arange(3);
  tree["a.b#2"] = at::arange(4);
  const StateTree back = through(tree);
  CHECK(back.at("a.b").tensor().size(0) == 1);
  CHECK(back.at("a").at("b").tensor().size(0) == 2);
  CHECK(back.at("__metadata__").tensor().size(0) == 3);
  CHECK(back.at("a.b#2").tensor().size(0) == 4);
  CHECK(through(at::arange(5)).tensor().size(0) == 5);
}

TEST_CASE("text that is not UTF-8 is refused with its place") {
  StateTensors tensors;
  CHECK_THROWS_WITH(encode_state(StateTree::map({{"a", StateTree::map({{"b", "\xff"}})}}), "callbacks", tensors),
                    ContainsSubstring("'callbacks.a.b' is not UTF-8"));
  CHECK_THROWS_WITH(encode_state(StateTree::map({{"\xff", 1}}), "callbacks", tensors),
                    ContainsSubstring("'callbacks' is not UTF-8"));
}

TEST_CASE("F12 a state may be as deep as the limit, and no deeper") {
  const auto nested = [](int levels) {
    StateTree tree = 1;
    for (int i = 0; i < levels; ++i)
      tree = i % 2 == 0 ? StateTree(StateTree::List{tree}) : StateTree::map({{"__map__", tree}});
    return tree;
  };
  StateTensors tensors;
  StateTree back = through(nested(kMaxStateDepth));
  for (int i = 0; i < kMaxStateDepth; ++i) back = StateTree(back.is_list() ? back.as_list()[0] : back.at("__map__"));
  CHECK(back.as_int() == 1);
  CHECK_THROWS_WITH(encode_state(nested(kMaxStateDepth + 1), "", tensors), ContainsSubstring("nested deeper than 256"));
  CHECK_THROWS_WITH(decode(std::string(100000, '[') + std::string(100000, ']')),
                    ContainsSubstring("nested too deeply"));
}

TEST_CASE("what is not a state is refused") {
  CHECK_THROWS_WITH(decode(R"({"__tensor__":"absent"})"), ContainsSubstring("'absent' is missing"));
  CHECK_THROWS_WITH(decode(R"({"__float__":"big"})"), ContainsSubstring("'big' is not a number"));
  CHECK_THROWS_WITH(decode(R"({"__float__":1})"), ContainsSubstring("not a number"));
  CHECK_THROWS_WITH(decode(R"({"__map__":1})"), ContainsSubstring("not an object"));
  CHECK_THROWS_WITH(decode("{"), ContainsSubstring("not the state"));
  CHECK_THROWS_WITH(decode_state("[]", CheckpointParts::all, {}, {}), ContainsSubstring("not the state"));
}

TEST_CASE("F12 a map of many keys takes no more than its share of time") {
  StateTree tree;
  for (int i = 0; i < 100000; ++i) tree[std::to_string(i)] = i;
  const std::clock_t start = std::clock();
  CHECK(through(tree).at("99999").as_int() == 99999);
  // Of processor time: far from what it takes, and from what looking each key up in a list would.
  CHECK(std::clock() - start < 10 * CLOCKS_PER_SEC);
}

}  // namespace state_json_test
