#include <algorithm>
#include <cstdlib>
#include <unordered_set>

#include "config/config_tree.h"
#include "fulgur/core/text/text.h"

namespace fulgur::config {

namespace {

constexpr size_t kMaxNodes = 100'000;
constexpr size_t kMaxTextBytes = size_t{16} << 20;

struct Size {
  size_t nodes = 0, bytes = 0;
};

Size size_of(const ConfigNode& node) {
  Size size{1, node.text().size()};
  const auto add = [&](const ConfigNode& below) {
    const Size other = size_of(below);
    size.nodes += other.nodes;
    size.bytes += other.bytes;
  };
  for (const ConfigNode& item : node.items()) add(item);
  for (const auto& [key, value] : node.entries()) add(value);
  return size;
}

/// The entry, item or option of a component that `key` names.
ConfigNode* child_of(ConfigNode& node, std::string_view key) {
  if (ConfigNode* found = node.find(key)) return found;
  if (ConfigNode* args = node.find("init_args")) return args->find(key);
  const auto index = parse_whole<size_t>(key);
  return index && *index < node.items().size() ? &node.items()[*index] : nullptr;
}

class Interpolator {
 public:
  Interpolator(ConfigNode& root, Problems& problems) : root_(root), problems_(problems) {}

  void visit(ConfigNode& node, const std::string& path) {
    if (done_.contains(&node)) return;
    if (node.is_scalar() && node.text().find("${") == std::string::npos) return;
    open_.push_back({&node, path});
    if (node.is_scalar())
      fill(node, path);
    else {
      for (size_t i = 0; i < node.items().size(); ++i) visit(node.items()[i], join_path(path, std::to_string(i)));
      for (auto& [key, value] : node.entries()) visit(value, join_path(path, key));
    }
    open_.pop_back();
    done_.insert(&node);
  }

 private:
  struct Open {
    const ConfigNode* node;
    std::string path;
  };

  std::string chain(const std::string& last) const {
    std::vector<std::string> parts;
    for (const Open& open : open_) {
      if (open.node->is_scalar()) parts.push_back(open.path);
    }
    parts.push_back(last);
    return join(parts, " → ");
  }

  void fill(ConfigNode& node, const std::string& path) {
    const std::string text = node.text();
    std::string out;
    for (size_t i = 0; i < text.size();) {
      if (text.compare(i, 3, "$${") == 0) {
        out += "${";
        i += 3;
        continue;
      }
      if (text.compare(i, 2, "${") != 0) {
        out += text[i++];
        continue;
      }
      const size_t end = text.find('}', i);
      if (end == std::string::npos)
        return fail(node, path, "'${' without '}'; write $${ for the characters themselves");
      ConfigNode value;
      if (!resolve(node, path, text.substr(i + 2, end - i - 2), value)) return;
      if (i == 0 && end + 1 == text.size()) {
        // The referenced value is taken as it is, with its own type.
        value.where = node.where;
        value.key_where = node.key_where;
        node = std::move(value);
        mark_done(node);
        return;
      }
      if (!value.is_scalar()) {
        return fail(
            node, path,
            cat("${", text.substr(i + 2, end - i - 2), "} inside a text must be one value; it is ", value.describe()));
      }
      out += value.text();
      i = end + 1;
    }
    replace_text(node, std::move(out));
  }

  bool resolve(ConfigNode& node, const std::string& path, const std::string& name, ConfigNode& value) {
    constexpr std::string_view kEnv = "env:";
    if (name.starts_with(kEnv)) {
      const char* found = std::getenv(name.c_str() + kEnv.size());
      if (found == nullptr)
        return fail(node, path, cat("environment variable is not set: ", chain("${" + name + "}"))), false;
      if (!is_utf8(found))
        return fail(node, path, cat("environment variable is not valid UTF-8: ", name.substr(kEnv.size()))), false;
      value = ConfigNode::scalar(found, *found == '\0');
    } else {
      ConfigNode* target = walk_to(node, path, name);
      if (target == nullptr) return false;
      value = *target;
    }
    const Size size = size_of(value);
    nodes_ += size.nodes;
    bytes_ += size.bytes;
    if (nodes_ > kMaxNodes || bytes_ > kMaxTextBytes) {
      return fail(node, path,
                  cat("references expand to more than ", kMaxNodes, " values or ", kMaxTextBytes, " bytes")),
             false;
    }
    return true;
  }

  /// The node at `name`, resolved, and all nodes on the way; nullptr on error.
  ConfigNode* walk_to(ConfigNode& from, const std::string& path, const std::string& name) {
    ConfigNode* node = &root_;
    for (size_t begin = 0; begin <= name.size();) {
      const size_t end = std::min(name.find('.', begin), name.size());
      node = child_of(*node, std::string_view(name).substr(begin, end - begin));
      if (node == nullptr)
        return fail(from, path, cat("no such key in the config: ", chain("${" + name + "}"))), nullptr;
      const bool last = end == name.size();
      if (last || node->is_scalar()) {
        for (const Open& open : open_) {
          if (open.node == node) return fail(from, path, "refers to itself: " + chain(name)), nullptr;
        }
        if (open_.size() > kMaxOpen)
          return fail(from, path, cat("a chain of more than ", kMaxOpen, " references")), nullptr;
        const size_t problems_before = problems_.items().size();
        visit(*node, name.substr(0, end));
        if (problems_.items().size() != problems_before) return nullptr;
      }
      begin = end + 1;
    }
    return node;
  }

  /// A value that came through a reference is not resolved again: each `${` in it is literal.
  void mark_done(const ConfigNode& node) {
    done_.insert(&node);
    for (const ConfigNode& item : node.items()) mark_done(item);
    for (const auto& [key, value] : node.entries()) mark_done(value);
  }

  void fail(ConfigNode& node, const std::string& path, std::string message) {
    problems_.add(node.where, path, std::move(message));
  }

  static void replace_text(ConfigNode& node, std::string text) {
    ConfigNode filled = ConfigNode::scalar(std::move(text), node.quoted());
    filled.where = node.where;
    filled.key_where = node.key_where;
    node = std::move(filled);
  }

  static constexpr size_t kMaxOpen = 200;
  ConfigNode& root_;
  Problems& problems_;
  std::vector<Open> open_;
  std::unordered_set<const ConfigNode*> done_;
  size_t nodes_ = 0, bytes_ = 0;
};

}  // namespace

void interpolate(ConfigNode& root, Problems& problems) { Interpolator(root, problems).visit(root, ""); }

void escape_references(ConfigNode& root) {
  for (ConfigNode& item : root.items()) escape_references(item);
  for (auto& [key, value] : root.entries()) escape_references(value);
  if (!root.is_scalar() || root.text().find("${") == std::string::npos) return;
  std::string text;
  for (size_t i = 0; i < root.text().size(); ++i) {
    if (root.text().compare(i, 2, "${") == 0) text += '$';
    text += root.text()[i];
  }
  ConfigNode escaped = ConfigNode::scalar(std::move(text), root.quoted());
  escaped.where = root.where;
  escaped.comment = root.comment;
  root = std::move(escaped);
}

}  // namespace fulgur::config
