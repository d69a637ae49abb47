#include "fulgur/core/contracts/registry.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "fulgur/core/options/form_hints.h"
#include "fulgur/core/system/program_name.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

const char detail::FULGUR_BUILT_WITH = 0;

namespace {

struct Registries {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<ComponentRegistry>, std::less<>> by_kind;
};

Registries& registries() {
  // Never destroyed: plug-ins and static objects may outlive any order of destruction.
  static Registries* const all = new Registries;
  return *all;
}

std::vector<ComponentRegistry*> all_registries() {
  Registries& all = registries();
  const std::lock_guard lock(all.mutex);
  std::vector<ComponentRegistry*> out;
  for (const auto& [kind, registry] : all.by_kind) out.push_back(registry.get());
  return out;
}

/// Names under which Lightning, torchmetrics and others have a component.
struct NameElsewhere {
  std::string_view elsewhere, here;
};
constexpr NameElsewhere kNamesElsewhere[] = {{"F1", "FBeta"},
                                             {"F1Score", "FBeta"},
                                             {"FBetaScore", "FBeta"},
                                             {"Jaccard", "IoU"},
                                             {"JaccardIndex", "IoU"},
                                             {"MeanIoU", "IoU"},
                                             {"DiceScore", "Dice"},
                                             {"MSE", "MeanSquaredError"},
                                             {"MAE", "MeanAbsoluteError"},
                                             {"AUC", "Auroc"},
                                             {"EMA", "WeightAveraging"},
                                             {"EMACallback", "WeightAveraging"},
                                             {"EMAWeightAveraging", "WeightAveraging"},
                                             {"ExponentialMovingAverage", "WeightAveraging"},
                                             {"ToTensor", "ToFloat"},
                                             {"PILToTensor", "ToFloat"},
                                             {"ConvertImageDtype", "ToFloat"},
                                             {"ToDtype", "ToFloat"},
                                             {"TrivialAugment", "TrivialAugmentWide"},
                                             {"auto", "single_device"},
                                             {"ModelParallelStrategy", "mesh"},
                                             {"DeepSpeedStrategy", "fsdp"},
                                             {"deepspeed", "fsdp"},
                                             {"deepspeed_stage_1", "fsdp"},
                                             {"deepspeed_stage_2", "fsdp"},
                                             {"deepspeed_stage_2_offload", "fsdp"},
                                             {"deepspeed_stage_3", "fsdp"},
                                             {"deepspeed_stage_3_offload", "fsdp"},
                                             {"fsdp_cpu_offload", "fsdp"}};

/// The component that another library calls `name`, with `Binary` and the like before it or not; empty if there is
/// none.
std::string component_of_elsewhere(const ComponentRegistry& registry, std::string_view name) {
  for (const std::string_view task : {"Binary", "Multiclass", "Multilabel"})
    if (name.starts_with(task)) {
      name.remove_prefix(task.size());
      if (registry.find(name)) return std::string(name);
      break;
    }
  for (const auto& [elsewhere, here] : kNamesElsewhere)
    if (name == elsewhere && registry.find(here)) return std::string(here);
  return "";
}

std::string unknown_component(const ComponentRegistry& registry, std::string_view name) {
  std::string text = cat("unknown ", registry.kind(), " '", name.substr(0, 100), "'");
  for (const ComponentRegistry* other : all_registries()) {
    if (other != &registry && other->find(name) != nullptr)
      text += cat("; there is a ", other->kind(), " of that name");
  }
  if (const std::string known = component_of_elsewhere(registry, name); !known.empty())
    return text + cat("; did you mean '", known, "'?");
  const std::vector<std::string> names = registry.names();
  const std::string near = did_you_mean(name, names);
  if (!near.empty()) return cat(text, near, " If it is your own class, load its plug-in (--plugin FILE.so)");
  constexpr size_t kMostNames = 20;
  constexpr std::string_view kOwn =
      ". If it is your own class, load its plug-in (--plugin FILE.so), or link the object file that registers it into "
      "the program: from a static library, the linker takes only what is referenced";
  if (!names.empty() && names.size() <= kMostNames) return cat(text, "; the registered names are ", join(names), kOwn);
  return cat(text, "; `", program_name(), " list ", registry.kind(), "` shows all", kOwn);
}

}  // namespace

void ComponentRegistry::add(ComponentInfo info) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    for (const auto& known : components_) {
      if (known->name != info.name) continue;
      problems_.push_back(cat("two components of kind ", kind_, " are named '", info.name, "': ", known->file, ":",
                              known->line, " and ", info.file, ":", info.line));
      return;
    }
    components_.push_back(std::make_unique<ComponentInfo>(std::move(info)));
  } catch (...) {
    // Out of memory before main: the component stays unknown, which its first use reports.
  }
}

void ComponentRegistry::add_alias(std::string alias, std::string name) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    aliases_.emplace_back(std::move(alias), std::move(name));
  } catch (...) {
    // As in `add`.
  }
}

const ComponentInfo* ComponentRegistry::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto alias = std::ranges::find(aliases_, name, &std::pair<std::string, std::string>::first);
  if (alias != aliases_.end()) name = alias->second;
  const auto found =
      std::ranges::find(components_, name, [](const auto& known) -> const std::string& { return known->name; });
  return found == components_.end() ? nullptr : found->get();
}

const ComponentInfo& ComponentRegistry::get(std::string_view name) const {
  if (const ComponentInfo* found = find(name)) return *found;
  throw ConfigError(cat("[registry] ", unknown_component(*this, name)));
}

std::vector<std::string> ComponentRegistry::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& known : components_) out.push_back(known->name);
  std::ranges::sort(out);
  return out;
}

std::vector<std::string> ComponentRegistry::aliases() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [alias, meant] : aliases_) out.push_back(alias);
  std::ranges::sort(out);
  return out;
}

void ComponentRegistry::throw_if_problems() const {
  const std::lock_guard lock(mutex_);
  if (!problems_.empty()) throw ConfigError("[registry.add] " + join(problems_, "; ") + ". Rename one of them.");
}

ComponentRegistry& component_registry(std::string_view kind) {
  Registries& all = registries();
  const std::lock_guard lock(all.mutex);
  auto found = all.by_kind.find(kind);
  if (found == all.by_kind.end()) {
    found = all.by_kind.emplace(std::string(kind), std::make_unique<ComponentRegistry>(std::string(kind))).first;
  }
  return *found->second;
}

void detail::throw_other_options(const std::string& class_path) {
  throw ConfigError(cat("[core.Spec] the options must be those of the class; ", class_path,
                        " has others. Name the class under "
                        "which they are registered."));
}

std::vector<std::string> registry_kinds() {
  std::vector<std::string> out;
  for (const ComponentRegistry* registry : all_registries()) out.push_back(registry->kind());
  return out;
}

void throw_if_registration_failed() {
  for (const ComponentRegistry* registry : all_registries()) registry->throw_if_problems();
}

namespace {
std::string misplaced_option(const std::string& name, const std::string& key, const ConfigNode& value,
                             const Fields& common) {
  const std::string where = cat("options of a component belong under init_args: {", key, ": ",
                                value.is_scalar() ? escape_controls(value.text()) : std::string("…"), "}");
  // Other classes of this kind have the key here.
  if (common.find(key) != nullptr) return cat("unknown key; ", name, " has its own `", key, "`, and ", where);
  return cat("unknown key; ", where);
}

/// `; did you mean 'class_path'?` for a key of a component's map, or empty.
std::string near_component_key(const std::string& key, const Fields& common) {
  if (const std::string hint = detail::missing_space_hint(key); !hint.empty()) return "; " + hint;
  if (key == "class") return "; did you mean 'class_path'?";
  std::vector<std::string> known = common.names();
  known.insert(known.begin(), {"class_path", "init_args"});
  return did_you_mean(key, known);
}

/// For a map that has the name of a class as a key, in place of class_path: what to write. Empty for any other key.
std::string class_as_key_hint(const ComponentRegistry& registry, const std::string& key, const ConfigNode& value) {
  if (value.is_scalar() || (registry.find(key) == nullptr && !detail::looks_like_class(key))) return {};
  return cat("; the class is the value of class_path: write ", detail::component_form(key, value));
}

/// `, every, from`: what may stand beside class_path and init_args.
std::string common_keys(const Fields& common) {
  std::string out;
  for (const Field& field : common.all()) out += ", " + field.name;
  return out;
}
}  // namespace

ComponentSpec::ComponentSpec(std::string kind, std::string class_path)
    : kind_(std::move(kind)), class_path_(std::move(class_path)) {}

ComponentSpec::ComponentSpec(const ComponentSpec& other)
    : where(other.where),
      kind_(other.kind_),
      class_path_(other.class_path_),
      options_(other.options_ ? other.options_->clone() : nullptr),
      common_options_(other.common_options_ ? other.common_options_->clone() : nullptr) {}

ComponentSpec& ComponentSpec::operator=(const ComponentSpec& other) {
  if (this != &other) *this = ComponentSpec(other);
  return *this;
}

ComponentSpec::~ComponentSpec() = default;

AnyOptions& ComponentSpec::options() {
  return const_cast<AnyOptions&>(static_cast<const ComponentSpec*>(this)->options());
}

const AnyOptions& ComponentSpec::options() const {
  if (class_path_.empty()) throw std::logic_error("[registry] no " + kind_ + " is chosen");
  if (!options_) options_ = component_registry(kind_).get(class_path_).make_options();
  return *options_;
}

bool ComponentSpec::read(const ConfigNode& node, Problems& problems, const std::string& path) {
  if (node.is_null()) {
    class_path_.clear();
    options_.reset();
    common_options_.reset();
    return true;
  }
  const size_t problems_before = problems.items().size();
  const ConfigNode* name = node.is_scalar() ? &node : node.find("class_path");
  const ConfigNode* init_args = node.find("init_args");
  if (node.is_list() || (name != nullptr && !name->is_scalar())) {
    problems.add(node.where, path,
                 cat("expected the name of a ", kind_, ", or a map of class_path and init_args; got ",
                     (node.is_list() ? node : *name).describe()));
    return false;
  }
  const std::string chosen = name != nullptr ? name->text() : class_path_;
  std::unique_ptr<AnyOptions> common = component_registry(kind_).make_common_options();
  Fields common_fields;
  if (common) common->fields(common_fields);
  const auto place_of_key = [](const ConfigNode& value) -> const Location& {
    return value.key_where.source.empty() ? value.where : value.key_where;
  };
  if (chosen.empty()) {
    for (const auto& [key, value] : node.entries()) {
      if (key == "class_path" || key == "init_args" || common_fields.find(key) != nullptr) continue;
      std::string hint = class_as_key_hint(component_registry(kind_), key, value);
      if (hint.empty()) hint = near_component_key(key, common_fields);
      if (!hint.empty()) problems.add(place_of_key(value), join_path(path, key), "unknown key" + hint);
    }
    if (problems.items().size() != problems_before) return false;
    const bool given = node.where.source == "command line";
    problems.add(node.where, path,
                 cat("no ", kind_, " is chosen; ",
                     given ? cat("name the class with --", path, " NAME") : "set class_path to its name"));
    return false;
  }
  const ComponentInfo* info = component_registry(kind_).find(chosen);
  if (info == nullptr) {
    const std::string spaced = name != nullptr && !name->quoted() ? detail::missing_space_hint(chosen) : std::string();
    problems.add(name != nullptr ? name->where : node.where, join_path(path, "class_path"),
                 spaced.empty() ? unknown_component(component_registry(kind_), chosen)
                                : cat("unknown ", kind_, " '", chosen.substr(0, 100), "'; ", spaced));
    return false;
  }
  // Without class_path, what the map does not name stays.
  OptionFields made(name == nullptr && options_ ? options_->clone() : info->make_options());
  made.fields.class_name = info->name;
  ConfigNode common_args = ConfigNode::map();
  for (const auto& [key, value] : node.entries()) {
    if (key == "class_path" || key == "init_args") continue;
    const Location& where_key = place_of_key(value);
    if (made.fields.find(key) != nullptr) {
      problems.add(where_key, join_path(path, key), misplaced_option(info->name, key, value, common_fields));
    } else if (common_fields.find(key) != nullptr) {
      common_args.set(key, value);
    } else {
      std::string hint = name == nullptr ? class_as_key_hint(component_registry(kind_), key, value) : std::string();
      if (hint.empty()) hint = near_component_key(key, common_fields);
      problems.add(where_key, join_path(path, key),
                   hint.empty()
                       ? cat("unknown key; a ", kind_, " has class_path, init_args", common_keys(common_fields))
                       : "unknown key" + hint);
    }
  }
  if (common) common_fields.read(common_args, problems, path);
  ConfigNode no_args;
  no_args.where = name != nullptr ? name->where : node.where;
  made.fields.read(init_args != nullptr && !init_args->is_null() ? *init_args : no_args, problems,
                   join_path(path, "init_args"));
  // Keep the options even if they have errors, so that links and other checks see the class.
  class_path_ = info->name;
  options_ = std::move(made.options);
  common_options_ = common_args.entries().empty() ? nullptr : std::move(common);
  where = name != nullptr ? name->where : node.where;
  return problems.items().size() == problems_before;
}

ConfigNode ComponentSpec::write() const {
  if (class_path_.empty()) return ConfigNode::null();
  ConfigNode node = ConfigNode::map();
  node.set("class_path", ConfigNode::string(class_path_));
  if (!options_ && component_registry(kind_).find(class_path_) == nullptr) return node;
  const OptionFields copy(options().clone());
  if (!copy.fields.all().empty()) node.set("init_args", copy.fields.write());
  if (!common_options_) return node;
  const OptionFields common(common_options_->clone());
  for (const Field& field : common.fields.all()) {
    ConfigNode value = field.write();
    if (!value.is_null()) node.set(field.name, std::move(value));
  }
  return node;
}

}  // namespace fulgur
