#include "fulgur/core/contracts/registry.h"

#include <catch2/catch_test_macros.hpp>

#include "support/expect_error.h"

namespace registry_test {

using namespace fulgur;

namespace {

struct Animal {
  static constexpr const char* kRegistryKind = "test_animal";
  virtual ~Animal() = default;
  virtual int64_t legs() const = 0;
};

struct Dog : Animal {
  struct Options {
    int64_t legs = 4;
    void fields(Fields& f) { f(legs, "legs", "Number of legs.").at_least(0); }
  };
  explicit Dog(const Options& o) : options(o) {}
  int64_t legs() const override { return options.legs; }
  Options options;
};

struct Centipede : Animal {
  struct Options {
    int64_t segments = 15, legs_each = 2;
    void fields(Fields& f) {
      f(segments, "segments", "Number of segments.");
      f(legs_each, "legs_each", "Legs of a segment.");
    }
  };
  explicit Centipede(const Options& o) : options(o) {}
  int64_t legs() const override { return options.segments * options.legs_each; }
  Options options;
};

struct Snake : Animal {
  int64_t legs() const override { return 0; }
};

struct Plant {
  static constexpr const char* kRegistryKind = "test_plant";
  virtual ~Plant() = default;
};
struct Tree : Plant {};

const bool registered =
    Registry<Animal>::add<Dog>("Dog", "Barks.") && Registry<Animal>::add<Snake>("Snake", "Hisses.") &&
    Registry<Animal>::add<Centipede>("Centipede", "Runs.") && Registry<Plant>::add<Tree>("Tree", "Stands.");

std::string read_report(const ConfigNode& node, Spec<Animal>* out = nullptr) {
  Spec<Animal> spec;
  Problems problems;
  spec.read(node, problems, "pet");
  if (out != nullptr) *out = spec;
  return problems.report();
}

}  // namespace

TEST_CASE("a component is created from its name and options") {
  REQUIRE(registered);
  Spec<Animal> spec;
  CHECK(read_report(ConfigNode::scalar("Dog"), &spec).empty());
  CHECK(spec.create()->legs() == 4);
  const ConfigNode three = ConfigNode::map(
      {{"class_path", ConfigNode::scalar("Dog")}, {"init_args", ConfigNode::map({{"legs", ConfigNode::integer(3)}})}});
  CHECK(read_report(three, &spec).empty());
  CHECK(spec.create()->legs() == 3);
  CHECK(spec.write().same_as(three));
  const Spec<Animal> copy = spec;
  CHECK(copy.create()->legs() == 3);
  CHECK(Spec<Animal>("Snake").create()->legs() == 0);
}

TEST_CASE("F45 an unknown component names its kind and the nearest names") {
  CHECK(read_report(ConfigNode::scalar("Dgo")) ==
        "pet.class_path: unknown test_animal 'Dgo'; did you mean 'Dog'? If it is your own class, load its plug-in "
        "(--plugin FILE.so)");
  CHECK(
      read_report(ConfigNode::scalar("Zebrafish")) ==
      "pet.class_path: unknown test_animal 'Zebrafish'; the registered names are Centipede, Dog, Snake. If it is your "
      "own "
      "class, load its plug-in (--plugin FILE.so), or link the object file that registers it into the program: from a "
      "static library, the linker takes only what is referenced");
}

TEST_CASE("F45 a class of another kind is reported as such") {
  CHECK(read_report(ConfigNode::scalar("Tree")).find("there is a test_plant of that name") != std::string::npos);
}

TEST_CASE("F45 names are looked up and never interpreted") {
  for (const char* name : {";rm -rf /", "%n%s", "{}", "../Dog", "Dog\n"}) {
    INFO(name);
    CHECK(read_report(ConfigNode::scalar(name)).find("unknown test_animal") != std::string::npos);
  }
  CHECK(read_report(ConfigNode::scalar("a\x1b[2J")).find('\x1b') == std::string::npos);
}

TEST_CASE("options of a component are checked at once") {
  const auto dog = [](ConfigNode args) {
    return ConfigNode::map({{"class_path", ConfigNode::scalar("Dog")}, {"init_args", std::move(args)}});
  };
  CHECK(read_report(dog(ConfigNode::map({{"legs", ConfigNode::integer(-1)}}))) ==
        "pet.init_args.legs: must be at least 0; got -1");
  CHECK(read_report(dog(ConfigNode::map({{"lges", ConfigNode::integer(1)}}))) ==
        "pet.init_args.lges: unknown key; did you mean 'legs'? `describe Dog` lists the options of this class");
  CHECK(read_report(dog(ConfigNode::null())).empty());
  CHECK(read_report(dog(ConfigNode::list())).find("expected a map of options") != std::string::npos);
  ConfigNode beside = dog(ConfigNode::map());
  beside.set("legs", ConfigNode::integer(2));
  CHECK(read_report(beside) == "pet.legs: unknown key; options of a component belong under init_args: {legs: 2}");
}

TEST_CASE("a key that is nearly class_path or init_args is an unknown key with the right one") {
  for (const char* key : {"classpath", "class_pth", "class"})
    CHECK(read_report(ConfigNode::map({{key, ConfigNode::scalar("Dog")}})) ==
          std::string("pet.") + key + ": unknown key; did you mean 'class_path'?");
  CHECK(read_report(ConfigNode::map({{"class_path", ConfigNode::scalar("Dog")}, {"init_arg", ConfigNode::map()}})) ==
        "pet.init_arg: unknown key; did you mean 'init_args'?");
  CHECK(read_report(ConfigNode::map({{"breed", ConfigNode::scalar("Dog")}})).find("no test_animal is chosen") !=
        std::string::npos);
}

TEST_CASE("a map without class_path needs a class that was already chosen") {
  const ConfigNode args = ConfigNode::map({{"init_args", ConfigNode::map({{"legs", ConfigNode::integer(3)}})}});
  CHECK(read_report(args).find("no test_animal is chosen") != std::string::npos);
  Spec<Animal> spec("Dog");
  Problems problems;
  CHECK(spec.read(args, problems, "pet"));
  CHECK(spec.create()->legs() == 3);
}

TEST_CASE("a map without class_path keeps the options that it does not name; one with it begins with the defaults") {
  const auto args = [](const char* name, int64_t value) {
    return ConfigNode::map({{"init_args", ConfigNode::map({{name, ConfigNode::integer(value)}})}});
  };
  Spec<Animal> spec("Centipede");
  Problems problems;
  REQUIRE(spec.read(args("segments", 21), problems, "pet"));
  REQUIRE(spec.read(args("legs_each", 4), problems, "pet"));
  CHECK(spec.create()->legs() == 84);
  ConfigNode named = args("legs_each", 4);
  named.set("class_path", ConfigNode::scalar("Centipede"));
  REQUIRE(spec.read(named, problems, "pet"));
  CHECK(spec.create()->legs() == 60);
}

TEST_CASE("nothing chosen") {
  Spec<Animal> spec;
  CHECK_FALSE(spec);
  CHECK(spec.write().is_null());
  CHECK_THROWS_AS(spec.options(), std::logic_error);
  CHECK_THROWS_AS(Spec<Animal>("Unknown").create(), ConfigError);
}

TEST_CASE("two components with the same name are reported with both locations, not thrown before main") {
  ComponentRegistry registry("test_own");
  registry.add({.name = "A", .doc = "", .file = "one.cpp", .line = 1, .exports = {}, .make_options = {}, .create = {}});
  registry.add({.name = "A", .doc = "", .file = "two.cpp", .line = 2, .exports = {}, .make_options = {}, .create = {}});
  CHECK(registry.names() == std::vector<std::string>{"A"});
  const std::string message = test::message_of<ConfigError>([&] { registry.throw_if_problems(); });
  CHECK(message.find("one.cpp:1 and two.cpp:2") != std::string::npos);
}

TEST_CASE("kinds are listed") {
  const std::vector<std::string> kinds = registry_kinds();
  CHECK(std::find(kinds.begin(), kinds.end(), "test_animal") != kinds.end());
  CHECK(Registry<Animal>::instance().names() == std::vector<std::string>{"Centipede", "Dog", "Snake"});
  throw_if_registration_failed();
}

}  // namespace registry_test
