#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <unordered_map>

#include "fulgur/core/options/form_hints.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur {

namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxNodes = 100'000;
/// Aliases of one long text would otherwise multiply it by the number of nodes.
constexpr size_t kMaxTextBytes = size_t{16} << 20;

/// Ends the parse: nothing after this can be read sensibly.
struct Stop {
  Location where;
  std::string path;
  std::string message;
};

/// Builds nodes from the parser's events, in one pass and without a graph: limits are enforced while reading.
class Builder final : public YAML::EventHandler {
 public:
  Builder(std::string source, Problems& problems) : source_(std::move(source)), problems_(problems) {}

  bool seen_document() const { return documents_ > 0; }
  ConfigNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0)
      stop(mark, "a config is one document; a second one begins here. Put it in a separate --config file");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (wants_key()) stop(mark, "a key must be text; got null");
    leaf(mark, ConfigNode::null(), anchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_tag(mark, tag);
    const bool quoted = tag == "!";
    if (wants_key()) return key(mark, value, quoted);
    const bool is_null =
        !quoted && (value.empty() || value == "~" || value == "null" || value == "Null" || value == "NULL");
    text_bytes_ += value.size();
    leaf(mark, is_null ? ConfigNode::null() : ConfigNode::scalar(value, quoted), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (wants_key()) stop(mark, "a key must be text; got an alias");
    for (size_t i = 0; i < frames_.size(); ++i) {
      if (frames_[i].anchor != anchor) continue;
      stop(mark, cat("an alias may not be inside the node that it names: ", path_to(i), " → ", path()));
    }
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) stop(mark, "unknown alias");
    const Anchored& anchored = found->second;
    count(mark, anchored.nodes);
    text_bytes_ += anchored.text_bytes;
    check_text(mark);
    if (frames_.size() + anchored.depth > kMaxDepth) stop(mark, depth_message());
    depth_here_ = anchored.depth;
    ConfigNode copy = anchored.node;
    copy.where = at(mark);
    add(std::move(copy));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, ConfigNode::list());
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, ConfigNode::map());
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    ConfigNode node;
    YAML::anchor_t anchor = YAML::NullAnchor;
    size_t nodes_before = 0, text_before = 0;
    size_t depth_below = 0;
    bool has_key = false;
    bool drop_value = false;  // of a rejected key
    std::string key;
    Location key_where;
    std::unordered_map<std::string, Location> keys;
  };
  struct Anchored {
    ConfigNode node;
    size_t nodes = 1, text_bytes = 0, depth = 0;
  };

  Location at(const YAML::Mark& mark) const { return {source_, mark.line + 1, mark.column + 1}; }
  [[noreturn]] void stop(const YAML::Mark& mark, std::string message) const {
    throw Stop{at(mark), path(), std::move(message)};
  }
  static std::string depth_message() { return cat("nested deeper than ", kMaxDepth, " levels"); }

  /// Path of the frame `index`.
  std::string path_to(size_t index) const {
    std::string out;
    for (size_t i = 0; i < index && i < frames_.size(); ++i) {
      const Frame& frame = frames_[i];
      out = join_path(out, frame.node.is_list() ? std::to_string(frame.node.items().size()) : frame.key);
    }
    return out;
  }
  std::string path() const { return path_to(frames_.size()); }

  bool wants_key() const { return !frames_.empty() && frames_.back().node.is_map() && !frames_.back().has_key; }

  void check_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?" && tag != "!")
      stop(mark, cat("tags are not supported; got ", tag, ". Quote a value to make it text"));
  }
  void count(const YAML::Mark& mark, size_t nodes) {
    nodes_ += nodes;
    if (nodes_ > kMaxNodes) stop(mark, cat("more than ", kMaxNodes, " values, those of aliases included"));
  }
  void check_text(const YAML::Mark& mark) const {
    if (text_bytes_ > kMaxTextBytes)
      stop(mark, cat("more than ", kMaxTextBytes, " bytes of text, those of aliases included"));
  }

  void key(const YAML::Mark& mark, const std::string& name, bool quoted) {
    Frame& frame = frames_.back();
    frame.has_key = true;
    frame.drop_value = false;
    frame.key = name;
    frame.key_where = at(mark);
    count(mark, 1);
    text_bytes_ += name.size();
    if (name == "<<" && !quoted) {
      problems_.add(
          frame.key_where, path(),
          "merge keys are not supported; write the keys out, or give the shared part in a separate --config file");
      frame.drop_value = true;
      return;
    }
    const auto [known, fresh] = frame.keys.emplace(name, frame.key_where);
    if (!fresh) {
      problems_.add(frame.key_where, path(), "duplicate key; it was first set at " + known->second.text());
      frame.drop_value = true;
    }
  }

  void leaf(const YAML::Mark& mark, ConfigNode node, YAML::anchor_t anchor) {
    count(mark, 1);
    check_text(mark);
    node.where = at(mark);
    if (anchor != YAML::NullAnchor) anchors_[anchor] = {node, 1, node.text().size(), 0};
    depth_here_ = 0;
    add(std::move(node));
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, ConfigNode node) {
    check_tag(mark, tag);
    if (wants_key()) stop(mark, "a key must be text; got a list or map. Is a bracket left open?");
    if (frames_.size() >= kMaxDepth) stop(mark, depth_message());
    count(mark, 1);
    Frame frame;
    frame.node = std::move(node);
    frame.node.where = at(mark);
    frame.anchor = anchor;
    frame.nodes_before = nodes_ - 1;
    frame.text_before = text_bytes_;
    frames_.push_back(std::move(frame));
  }

  void close() {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    depth_here_ = frame.depth_below + 1;
    if (frame.anchor != YAML::NullAnchor) {
      anchors_[frame.anchor] = {frame.node, nodes_ - frame.nodes_before, text_bytes_ - frame.text_before, depth_here_};
    }
    add(std::move(frame.node));
  }

  void add(ConfigNode node) {
    if (frames_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = frames_.back();
    frame.depth_below = std::max(frame.depth_below, depth_here_);
    if (frame.node.is_list()) {
      frame.node.items().push_back(std::move(node));
      return;
    }
    frame.has_key = false;
    node.key_where = frame.key_where;
    if (!frame.drop_value) frame.node.entries().emplace_back(frame.key, std::move(node));
  }

  std::string source_;
  Problems& problems_;
  ConfigNode root_;
  std::vector<Frame> frames_;
  std::map<YAML::anchor_t, Anchored> anchors_;
  size_t documents_ = 0, nodes_ = 0, text_bytes_ = 0;
  size_t depth_here_ = 0;  // levels inside the node to be added next
};

Location place_of(std::string_view text, size_t offset, const std::string& source) {
  Location where{source, 1, 1};
  for (size_t i = 0; i < offset; ++i) {
    if (text[i] == '\n')
      ++where.line, where.column = 1;
    else
      ++where.column;
  }
  return where;
}

/// Removes a byte order mark and converts line ends to `\n`; false if the bytes are not text.
bool normalise(std::string& text, const std::string& source, Problems& problems) {
  const auto refuse = [&](const Location& where, const std::string& message) {
    problems.add(where, "", message);
    return false;
  };
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    return refuse({source, 1, 1}, "is UTF-16; save it as UTF-8");
  if (!is_utf8(text)) {
    int line = 1;
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1, ++line) {
      end = std::min(text.find('\n', begin), text.size());
      if (!is_utf8(std::string_view(text).substr(begin, end - begin))) break;
    }
    return refuse({source, line, 1}, "this line is not valid UTF-8; save the file as UTF-8");
  }
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F)
      return refuse(place_of(text, i, source),
                    cat("control character '", escape_controls(text.substr(i, 1)), "' in the text"));
    out += text[i];
  }
  text = std::move(out);
  return true;
}

/// A tab before the first other character of a line, at or before line `line`; 0 if there is none.
int tab_indented_line(std::string_view text, int line) {
  int found = 0, current = 1;
  for (size_t begin = 0; begin < text.size() && current <= line; ++current) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view content = text.substr(begin, end - begin);
    const size_t first = content.find_first_not_of(" \t");
    if (first != std::string_view::npos && content.substr(0, first).find('\t') != std::string_view::npos)
      found = current;
    begin = end + 1;
  }
  return found;
}

/// The line `line`, and the last one before it that has more than a comment; with their numbers, without indentation.
std::vector<std::pair<int, std::string_view>> lines_up_to(std::string_view text, int line) {
  std::vector<std::pair<int, std::string_view>> found;
  int current = 1;
  for (size_t begin = 0; begin < text.size() && current <= line; ++current) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view content = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    if (content.empty() || content.front() == '#') continue;
    if (found.size() == 2) found.erase(found.begin());
    found.emplace_back(current, content);
  }
  return found;
}

/// What was probably meant where a text was written as one line and `key: value` as the next, which is no YAML.
std::string hint_for_text_line(std::string_view text, int line) {
  for (auto [number, content] : lines_up_to(text, line)) {
    const bool is_item = content.starts_with("- ");
    if (is_item) content = trimmed(content.substr(2));
    if (const std::string hint = detail::missing_space_hint(content); !hint.empty())
      return cat(". In line ", number, ", ", hint);
    if (is_item && number < line && detail::looks_like_class(content))
      return cat(". In line ", number, ", write '- class_path: ", content,
                 "'; the options of the class stand under init_args");
  }
  return {};
}

}  // namespace

ConfigNode parse_yaml(const std::string& original, const std::string& source, Problems& problems) {
  const auto refuse = [&](const Location& where, const std::string& message) {
    problems.add(where, "", message);
    return ConfigNode();
  };
  if (original.size() > kMaxBytes)
    return refuse({source, 0, 0},
                  cat("is larger than a config may be (", kMaxBytes, " bytes); got ", original.size(), " bytes"));
  std::string text = original;
  problems.keep_text(source, text);
  if (!normalise(text, source, problems)) return {};
  problems.keep_text(source, text);
  Builder builder(source, problems);
  try {
    // yaml-cpp treats a quote still open after the last line end as closed, but not if another line follows.
    std::istringstream stream(text + "\n#");
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Stop& stop) {
    problems.add(stop.where, stop.path, stop.message);
    return {};
  } catch (const YAML::Exception& error) {
    const Location where{source, error.mark.line + 1, error.mark.column + 1};
    const int tabbed = tab_indented_line(text, where.line);
    const std::string text_line = hint_for_text_line(text, where.line);
    return refuse(where, cat("is not valid YAML: ", error.msg,
                             !text_line.empty() ? text_line
                             : tabbed > 0       ? cat(". Line ", tabbed, " is indented with a tab; use spaces")
                             : error.msg.ends_with("map not found") || error.msg.ends_with("sequence not found")
                                 ? ". The keys of a map, and the items of a list, must have the same indentation"
                             : error.msg == "illegal map value"
                                 ? ". Is the line indented more than the one above it, or does it have a second ': '? "
                                   "A text with ': ' needs quotes"
                                 : ""));
  }
  ConfigNode root = builder.take();
  if (!builder.seen_document() || root.is_null()) return refuse({source, 0, 0}, "is empty, or has only comments");
  return root;
}

ConfigNode load_yaml_file(const std::filesystem::path& path, Problems& problems) {
  const auto refuse = [&](const std::string& message) {
    problems.add({path.string(), 0, 0}, "", message);
    return ConfigNode();
  };
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return refuse("is a folder; expected a YAML file");
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const std::string reason = std::strerror(errno), name = path.string();
    const bool is_option = name.find('=') != std::string::npos && !name.starts_with('-');
    return refuse(cat("cannot be opened: ", reason, is_option ? cat("; did you mean --", name, "?") : ""));
  }
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return refuse(cat("cannot be read: ", std::strerror(errno)));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxBytes) return refuse(cat("is larger than a config may be (", kMaxBytes, " bytes)"));
  return parse_yaml(text, path.string(), problems);
}

}  // namespace fulgur
