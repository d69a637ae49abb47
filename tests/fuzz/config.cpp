#include "config/config_tree.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/trainer/yaml.h"
#include "targets.h"

namespace fulgur::fuzz {
namespace {

// Options of every simple kind.
struct Options {
  int64_t number = 1;
  double rate = 0.1;
  bool flag = false;
  std::string name = "x";
  std::optional<double> maybe;
  std::vector<int64_t> list{1, 2};
  std::map<std::string, double> map;
  Length length{1};
  BatchLimit limit{1.0};
  Auto<int64_t> threads;
  void fields(Fields& f) {
    f(number, "number", "A number.").at_least(0);
    f(rate, "rate", "A rate.").greater_than(0);
    f(flag, "flag", "A flag.");
    f(name, "name", "A name.");
    f(maybe, "maybe", "A number or null.");
    f(list, "list", "A list.");
    f(map, "map", "A map.");
    f(length, "length", "A count or an interval.");
    f(limit, "limit", "A count or a part.");
    f(threads, "threads", "A number or auto.");
  }
};

}  // namespace

// A config as the loader takes it: read, merged upon itself, references filled, read into options and written again.
void config(std::string_view input) {
  Problems problems;
  ConfigNode node = parse_yaml(std::string(input), "fuzz", problems);
  if (!problems.empty()) {
    expect(!problems.report().empty(), "a refusal has words");
    return;
  }
  ConfigNode base = node;
  config::merge_into(base, node);
  config::interpolate(node, problems);
  if (problems.empty()) {
    const ConfigNode again = parse_yaml(to_yaml(node), "again", problems);
    // Limits may be met by the text that is written: long lines of what aliases stood for.
    if (problems.empty()) expect(again.same_as(node), "a config that is written reads the same");
  }
  Options options;
  Fields fields;
  options.fields(fields);
  Problems wrong;
  fields.read(node, wrong, "");
  if (!wrong.empty()) return;
  Options second;
  Fields second_fields;
  second.fields(second_fields);
  second_fields.read(fields.write(), wrong, "");
  expect(wrong.empty() && second_fields.write().same_as(fields.write()), "options that are written read the same");
}

}  // namespace fulgur::fuzz
