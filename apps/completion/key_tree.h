#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/trainer/config.h"

namespace fulgur::cli {

/// The keys of a config as the command line writes them (`trainer.max_epochs`, `model.dropout`), for completion. Which
/// options a component has depends on the classes that the config chooses.
class KeyTree {
 public:
  /// `chosen` is the config as far as it has been given.
  explicit KeyTree(ConfigNode chosen);

  /// The fields below a key; none below a value, an unknown key, or a component of an unknown class. The top keys for
  /// an empty path.
  std::vector<const Field*> below(const std::vector<std::string>& path);
  /// The class that the config chooses at a top key; empty if it chooses none.
  std::string class_of(const std::string& key) const;
  /// The type of the value at a key; nullptr for an unknown key.
  const TypeInfo* type_of(const std::vector<std::string>& path);

 private:
  struct Place {
    const TypeInfo* type = nullptr;  ///< nullptr at the top, and at an unknown key
    const ConfigNode* node = nullptr;
    const Fields* fields = nullptr;  ///< below this place
    const Fields* common = nullptr;  ///< of a component: beside its class path
  };
  Place top() const;
  Place place_of(const TypeInfo& type, const ConfigNode* node);
  Place component(const TypeInfo& type, const ConfigNode* node);
  Place step(const Place& place, const std::string& part);
  Place walk(const std::vector<std::string>& path);

  ConfigNode chosen_;
  std::unique_ptr<Fields> schema_;
  std::vector<std::unique_ptr<Fields>> objects_;
  std::vector<std::unique_ptr<OptionFields>> components_;
};

}  // namespace fulgur::cli
