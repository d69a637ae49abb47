#include "trainer/config/config_components.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace config_links_test {

using namespace fulgur;
using test::load;
using test::load_error;
using test::value_at;

namespace {

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::string kData = "data: ConfigData\n";

StateTree facts() {
  return StateTree::map({{"classes", StateTree(7)},
                         {"rate", StateTree(0.5)},
                         {"label", StateTree("digits")},
                         {"widths", StateTree(StateTree::List{StateTree(2), StateTree(3)})},
                         {"none", StateTree(0)},
                         {"part", StateTree(StateTree::Map{})}});
}

std::string apply_error(const std::string& yaml) {
  Config config = load(yaml);
  return test::message_of<ConfigError>([&] { apply_links(config, facts()); });
}

}  // namespace

TEST_CASE("a link fills options of the model, required ones too") {
  Config config = load(kData +
                       "model: ConfigModel\n"
                       "link: {model.init_args.classes: data.classes, model.name: data.label, model.widths: "
                       "data.widths, model.part.depth: data.classes}\n");
  apply_links(config, facts());
  CHECK(value_at(config, "model.init_args.classes") == "7");
  CHECK(value_at(config, "model.init_args.name") == "digits");
  CHECK(value_at(config, "model.init_args.widths") == "[2, 3]");
  CHECK(value_at(config, "model.init_args.part.depth") == "7");
  CHECK(value_at(config, "model.init_args.rate") == "0.5");
  // What is written after the links reads back: link and value agree.
  Config again = config_from_node(config.write());
  apply_links(again, facts());
  CHECK(again.write().same_as(config.write()));
}

TEST_CASE("a required option without a link is missed") {
  CHECK(says(load_error("model: ConfigModel\n"), "model.init_args.classes: required option is missing"));
}

TEST_CASE("a link to what is not there is refused when the config is read") {
  const std::string model = kData + "model: {class_path: ConfigModel, init_args: {classes: 3}}\n";
  CHECK(says(load_error(model + "link: {model.init_args.clases: data.classes}\n"),
             ":3:8: link.model.init_args.clases: ConfigModel: there is no option 'clases'; did you mean 'classes'?"));
  CHECK(says(load_error(model + "link: {model.init_args.part.dept: data.classes}\n"), "did you mean 'depth'?"));
  CHECK(says(load_error(model + "link: {model.init_args.name.x: data.classes}\n"), "is not an option"));
  CHECK(says(load_error(model + "link: {model: data.classes}\n"), "the target must be an option"));
  CHECK(says(load_error(model + "link: {data.batch_size: data.classes}\n"), "only options of model"));
  CHECK(says(load_error(model + "link: {trainer.max_epochs: data.classes}\n"), "only options of model"));
  CHECK(says(load_error(model + "link: {model.classes: classes}\n"), "the source must be a fact"));
  CHECK(says(load_error(model + "link: {optimizer.lr: data.classes}\n"), "no optimizer is chosen"));
}

TEST_CASE("a fact must be there and fit") {
  const std::string model = kData + "model: {class_path: ConfigModel}\n";
  CHECK(says(apply_error(model + "link: {model.classes: data.clases}\n"),
             "provides no value 'clases'; did you mean 'classes'?"));
  CHECK(says(apply_error(model + "link: {model.classes: data.label}\n"), "expected int"));
  CHECK(says(apply_error(model + "link: {model.classes: data.none}\n"), "must be at least 2; got 0"));
  CHECK(says(apply_error(model + "link: {model.classes: data.part}\n"), "which no option accepts"));
}

TEST_CASE("a link and an explicit value must agree") {
  const std::string link = "link: {model.classes: data.classes}\n";
  Config same = load(kData + "model: {class_path: ConfigModel, init_args: {classes: 7}}\n" + link);
  apply_links(same, facts());
  CHECK(value_at(same, "model.init_args.classes") == "7");
  CHECK(says(apply_error(kData + "model: {class_path: ConfigModel, init_args: {classes: 3}}\n" + link),
             "the config sets '3', but the link to data.classes gives '7'"));
  CHECK(says(apply_error(kData + "model: {class_path: ConfigModel, init_args: {classes: 3, widths: [4, 3]}}\n" +
                         "link: {model.widths: data.widths}\n"),
             "the config sets [4, 3], but the link to data.widths gives [2, 3]. Remove one of them"));
}

TEST_CASE("a link that is null is removed") {
  const std::string model = kData + "model: {class_path: ConfigModel, init_args: {classes: 3}}\n";
  const std::string link = "link: {model.classes: data.classes, model.rate: data.rate}\n";
  CHECK(load(model + link, {{"link.model.rate", "null"}}).link ==
        std::map<std::string, std::string>{{"model.classes", "data.classes"}});
  CHECK(load(model + link, {{"link", "null"}}).link.empty());
  CHECK(load(model + "link: null\n").link.empty());
  CHECK(load(model + "link: {model.classes: null}\n").link.empty());
}

TEST_CASE("links with and without init_args have one target, of which the last source gives the link") {
  const std::string model = kData + "model: {class_path: ConfigModel, init_args: {classes: 3}}\n";
  const std::string full = "link: {model.init_args.classes: data.classes, model.init_args.rate: data.rate}\n";
  using Links = std::map<std::string, std::string>;
  CHECK(load(model + full, {{"link.model.classes", "null"}}).link == Links{{"model.init_args.rate", "data.rate"}});
  CHECK(load(model + full, {{"link.model.classes", "data.size"}}).link ==
        Links{{"model.classes", "data.size"}, {"model.init_args.rate", "data.rate"}});
  CHECK(load(model + full, {{"link.model.classes", "null"}, {"link.model.init_args.classes", "data.size"}}).link ==
        Links{{"model.init_args.classes", "data.size"}, {"model.init_args.rate", "data.rate"}});
  CHECK(load(model + "link: {model.classes: data.classes}\n", {{"link.model.init_args.classes", "null"}}).link.empty());

  const test::TemporaryFolder folder;
  const auto links_of_files = [&](const std::string& later) {
    test::write_text(folder / "first.yaml", model + full);
    test::write_text(folder / "later.yaml", later);
    ConfigSources sources;
    sources.files = {folder / "first.yaml", folder / "later.yaml"};
    return load_config(sources).link;
  };
  CHECK(links_of_files("link: {model.classes: null, model.rate: null}\n").empty());
  CHECK(links_of_files("link: {model.classes: data.size}\n") ==
        Links{{"model.classes", "data.size"}, {"model.init_args.rate", "data.rate"}});
  CHECK(says(load_error(model + "link: {model.classes: data.classes, model.init_args.classes: data.size}\n"),
             "link.model.init_args.classes: the option has another link, model.classes; remove one of them"));
}

TEST_CASE("the data module can say why it has no value for a link") {
  Config config = load(kData + "model: ConfigModel\nlink: {model.classes: data.size}\n");
  const auto why = [](std::string_view name) { return name == "size" ? std::string("there are none. Set x") : ""; };
  CHECK(says(test::message_of<ConfigError>([&] { apply_links(config, facts(), why); }),
             "the data module provides no value 'size': there are none. Set x"));
  CHECK(says(test::message_of<ConfigError>([&] { apply_links(config, facts(), [](auto) { return std::string(); }); }),
             "no value 'size'; it provides"));
}

TEST_CASE("an optional link is left out if the data module does not provide its value") {
  Config config = load(kData +
                       "model: {class_path: ConfigModel, init_args: {classes: 3}}\n"
                       "link: {model.classes: 'data.size?', model.rate: 'data.rate?'}\n");
  apply_links(config, facts());
  CHECK(value_at(config, "model.init_args.classes") == "3");
  CHECK(value_at(config, "model.init_args.rate") == "0.5");
  // A required option needs a value from elsewhere.
  CHECK(says(apply_error(kData + "model: ConfigModel\nlink: {model.classes: 'data.size?'}\n"),
             "its link is left out, since ConfigData provides no value 'size'"));
}

TEST_CASE("another data module makes the links optional that were written for the first one") {
  const std::string yaml = kData +
                           "model: {class_path: ConfigModel, init_args: {classes: 3}}\n"
                           "link: {model.classes: data.classes}\n";
  const auto source = [&](const std::vector<std::pair<std::string, std::string>>& overrides) {
    return load(yaml, overrides).link.at("model.classes");
  };
  CHECK(source({}) == "data.classes");
  CHECK(source({{"data", "ConfigData"}}) == "data.classes");
  CHECK(source({{"data", "SyntheticDataModule"}}) == "data.classes?");
  CHECK(source({{"data.class_path", "SyntheticDataModule"}}) == "data.classes?");
  CHECK(source({{"data", "SyntheticDataModule"}, {"link.model.classes", "data.classes"}}) == "data.classes");
}

TEST_CASE("a link to no option of the model lists the options, if none has a similar name") {
  CHECK(says(load_error(kData + "model: {class_path: ConfigModel, init_args: {classes: 3}}\n"
                                "link: {model.zzzzzzzz: data.classes}\n"),
             "there is no option 'zzzzzzzz'; the options are "));
}

}  // namespace config_links_test
