#include "type_name.h"

#include <catch2/catch_test_macros.hpp>

namespace type_name_test {

using fulgur::detail::short_type_name;

TEST_CASE("short_type_name: no namespaces, no Impl") {
  CHECK(short_type_name("torch::nn::LinearImpl") == "Linear");
  CHECK(short_type_name("fulgur::CnnClassifier") == "CnnClassifier");
  CHECK(short_type_name("Net") == "Net");
  CHECK(short_type_name("(anonymous namespace)::Net") == "Net");
  CHECK(short_type_name("main::{lambda(int)#1}::operator()() const::Block") == "Block");
  CHECK(short_type_name("Impl") == "Impl");
  CHECK(short_type_name("my::Pair<torch::nn::LinearImpl, my::Twin<a::B, c::D>>") == "Pair<Linear, Twin<B, D>>");
  CHECK(short_type_name("my::Stack<3>") == "Stack<3>");
  CHECK(short_type_name("my::Outer<int>::InnerImpl") == "Inner");
  CHECK(short_type_name("").empty());
}

}  // namespace type_name_test
