#include "trainer/config/config_components.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"

// Components with options of every kind, for the tests of the config.
namespace fulgur::test {
namespace {

struct Part {
  int64_t depth = 1;
  void fields(Fields& f) { f(depth, "depth", "Depth of the part.").at_least(1); }
};

struct ConfigModel : LightningModule {
  struct Options {
    int64_t classes = 10;
    double rate = 0.5;
    std::string name = "net";
    std::vector<int64_t> widths{8, 4};
    Part part;
    void fields(Fields& f) {
      f(classes, "classes", "Classes to tell apart.").required().at_least(2);
      f(rate, "rate", "A rate.").greater_than(0);
      f(name, "name", "A name.");
      f(widths, "widths", "Widths of the layers.").at_least(1);
      f(part, "part", "A part.");
    }
  };
  explicit ConfigModel(const Options& o) : options(o) {}
  StepOutput training_step(const Batch&, int64_t) override { return {}; }
  Options options;
};

struct OtherModel : LightningModule {
  struct Options {
    double rate = 0.25;
    void fields(Fields& f) { f(rate, "rate", "A rate."); }
  };
  explicit OtherModel(const Options&) {}
  StepOutput training_step(const Batch&, int64_t) override { return {}; }
};

struct ConfigData : DataModule {
  struct Options {
    std::filesystem::path data_dir;
    int64_t batch_size = 32;
    void fields(Fields& f) {
      f(data_dir, "data_dir", "Folder of the data.");
      f(batch_size, "batch_size", "Samples per batch.").at_least(1);
    }
  };
  explicit ConfigData(const Options&) {}
  std::vector<std::shared_ptr<Loader>> loaders(RunningStage) override { return {}; }
};

struct ConfigCallback : Callback {
  struct Options {
    std::string monitor = "val_loss";
    int64_t patience = 3;
    void fields(Fields& f) {
      f(monitor, "monitor", "Metric to watch.");
      f(patience, "patience", "Epochs to wait.").at_least(0);
    }
  };
  explicit ConfigCallback(const Options&) {}
};

struct ConfigLogger : Logger {
  void start(const std::filesystem::path&, std::optional<int64_t>) override {}
  void log_metrics(const Metrics&, int64_t) override {}
  void finalize(RunStatus) noexcept override {}
};

[[maybe_unused]] const bool registered =
    Registry<LightningModule>::add<ConfigModel>("ConfigModel", "A model of the tests.") &&
    Registry<LightningModule>::add<OtherModel>("OtherModel", "Another model of the tests.") &&
    Registry<DataModule>::add<ConfigData>("ConfigData", "Data of the tests.") &&
    Registry<Callback>::add<ConfigCallback>("ConfigCallback", "A callback of the tests.") &&
    Registry<Logger>::add<ConfigLogger>("ConfigLogger", "A logger of the tests.");

}  // namespace

using Pairs = std::vector<std::pair<std::string, std::string>>;

Config load(const std::string& yaml, const Pairs& overrides, const Pairs& environment) {
  const TemporaryFolder folder;
  ConfigSources sources{.files = {}, .overrides = overrides, .environment = environment};
  if (!yaml.empty()) {
    write_text(folder / "c.yaml", yaml);
    sources.files.push_back(folder / "c.yaml");
  }
  return load_config(sources);
}

std::string load_error(const std::string& yaml, const Pairs& overrides, const Pairs& environment) {
  return message_of<ConfigError>([&] { load(yaml, overrides, environment); });
}

std::string value_at(const Config& config, const std::string& path) {
  ConfigNode node = config.write();
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    const ConfigNode* next = node.find(key);
    if (next == nullptr && node.is_list() && static_cast<size_t>(std::stoi(key)) < node.items().size())
      next = &node.items()[std::stoi(key)];
    if (next == nullptr) return "missing";
    node = ConfigNode(*next);
    begin = end + 1;
  }
  std::string text = to_yaml(node);
  text.pop_back();
  return text;
}

}  // namespace fulgur::test
