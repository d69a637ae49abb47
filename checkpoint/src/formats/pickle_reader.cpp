#include <deque>
#include <map>
#include <set>
#include <unordered_map>

#include "formats/safetensors_header.h"
#include "formats/shown_name.h"
#include "formats/state_dict_pickle.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

[[noreturn]] void bad_pickle(const std::string& what) {
  throw CheckpointError("[checkpoint.pytorch] damaged pickle: " + what + ".");
}

enum class Kind : uint8_t {
  none,
  boolean,
  integer,
  real,
  text,
  tuple,
  list,
  dict,
  object,
  function,
  storage_class,
  dtype,
  storage,
  tensor
};

// Classes and functions that a state dict needs, or the values that Lightning keeps besides it (`plain`: a schedule's
// Counter, a Size). They are recognised by name; nothing is executed.
enum class Function : int64_t { ordered_dict, rebuild_tensor_v2, rebuild_tensor_v3, rebuild_parameter, plain };

constexpr const char* kind_text(Kind kind) {
  constexpr const char* kTexts[] = {"None",    "a bool",  "a number",  "a number",  "a text",
                                    "a tuple", "a list",  "a mapping", "an object", "a class",
                                    "a class", "a dtype", "a storage", "a tensor"};
  return kTexts[static_cast<size_t>(kind)];
}

using Id = uint32_t;

// Values refer to each other by index: a pickle may share values and contain cycles.
struct Value {
  Kind kind = Kind::none;
  int64_t number = 0;     // of integers and booleans; for functions, storages, dtypes and tensors: which one
  std::string_view text;  // in the pickle
  std::vector<Id> items;  // of a mapping: key, value, key, value, …
};

constexpr size_t kMaxArguments = 8;

class Machine {
 public:
  explicit Machine(std::string_view pickle) : rest_(pickle) {}

  PickledStateDict run() {
    if (rest_.size() < 2 || rest_[0] != '\x80') bad_pickle("it does not begin like a pickle");
    rest_.remove_prefix(1);
    if (const unsigned protocol = byte(); protocol < 2 || protocol > 5)
      throw CheckpointError(cat("[checkpoint.pytorch] pickles of protocols 2 to 5 can be read; the file has protocol ",
                                protocol, ". Save it with torch.save(…, pickle_protocol=2)."));
    while (step()) {
    }
    if (!rest_.empty()) bad_pickle(cat(rest_.size(), " bytes follow its end"));
    if (stack_.size() != 1 || !marks_.empty()) bad_pickle("it does not leave exactly one value at its end");
    return state_dict(stack_.back());
  }

 private:
  // Bytes -------------------------------------------------------------------------------------------------------------
  std::string_view take(uint64_t bytes) {
    if (bytes > rest_.size())
      bad_pickle(cat("it is truncated: ", bytes, " bytes should follow, but only ", rest_.size(), " do"));
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  unsigned byte() { return static_cast<unsigned char>(take(1)[0]); }
  uint64_t number(size_t bytes) {
    const std::string_view taken = take(bytes);
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(taken[i]);
    return value;
  }
  std::string_view line() {
    const size_t end = rest_.substr(0, kMaxNameBytes).find('\n');
    if (end == std::string_view::npos) bad_pickle("the name of a class or function has no end");
    const std::string_view text = take(end);
    take(1);
    return text;
  }

  // Stack -------------------------------------------------------------------------------------------------------------
  Id make(Value value) {
    if (values_.size() >= kMaxPickleValues) bad_pickle(cat("it has more than ", kMaxPickleValues, " values"));
    values_.push_back(std::move(value));
    return static_cast<Id>(values_.size() - 1);
  }
  void push(Id id) {
    // A value from the memo is not a new value.
    if (stack_.size() >= kMaxPickleValues) bad_pickle(cat("it has more than ", kMaxPickleValues, " values"));
    stack_.push_back(id);
  }
  void push(Kind kind, int64_t number_of = 0, std::string_view text = {}) { push(make({kind, number_of, text, {}})); }
  // Each constant exists only once, so that its one-byte instruction uses little more than a byte of memory.
  void push_constant(Kind kind, int64_t number_of = 0) {
    const auto [found, is_new] = constants_.emplace(std::pair(kind, number_of), 0);
    if (is_new) found->second = make({kind, number_of, {}, {}});
    push(found->second);
  }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Id pop() {
    if (stack_.size() <= floor()) bad_pickle("a value is missing");
    const Id id = stack_.back();
    stack_.pop_back();
    return id;
  }
  Id top() const {
    if (stack_.size() <= floor()) bad_pickle("a value is missing");
    return stack_.back();
  }
  std::vector<Id> pop_to_mark() {
    if (marks_.empty()) bad_pickle("a mark is missing");
    std::vector<Id> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  void push_tuple(std::vector<Id> items) { push(make({Kind::tuple, 0, {}, std::move(items)})); }
  void push_tuple(size_t count) {
    std::vector<Id> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    push_tuple(std::move(items));
  }
  void append(Kind kind, const std::vector<Id>& items) {
    Value& target = values_[top()];
    if (target.kind != kind || (kind == Kind::dict && items.size() % 2 != 0))
      bad_pickle(cat("values are added to ", kind_text(target.kind)));
    // A list may be added to itself repeatedly through the memo.
    if ((added_ += items.size()) > 2 * kMaxPickleValues)
      bad_pickle(cat("it has more than ", kMaxPickleValues, " values"));
    target.items.insert(target.items.end(), items.begin(), items.end());
  }
  void remember(uint64_t index) {
    if (index >= kMaxPickleValues)
      bad_pickle(cat("it remembers a value as number ", index, "; at most ", kMaxPickleValues, " are allowed"));
    memo_[static_cast<Id>(index)] = top();
  }
  void recall(uint64_t index) {
    const auto found = index < kMaxPickleValues ? memo_.find(static_cast<Id>(index)) : memo_.end();
    if (found == memo_.end()) bad_pickle(cat("it recalls value ", index, ", which it never stored"));
    push(found->second);
  }

  // Instructions ------------------------------------------------------------------------------------------------------
  // Each group of instructions has a function, which returns false for an instruction of another group.
  bool step() {
    const unsigned code = byte();
    if (code == '.') return false;
    if (push_value(code) || collect(code) || use_memo(code) || use_class(code)) return true;
    static constexpr char kDigits[] = "0123456789abcdef";
    bad_pickle(cat("instruction 0x", kDigits[code >> 4], kDigits[code & 15],
                   " is not one that torch.save writes for a state dict"));
  }

  bool push_value(unsigned code) {
    switch (code) {
      case 'N':
        return push_constant(Kind::none), true;
      case 0x88:
        return push_constant(Kind::boolean, 1), true;
      case 0x89:
        return push_constant(Kind::boolean, 0), true;
      case 'K':
        return push_constant(Kind::integer, static_cast<int64_t>(number(1))), true;
      case 'M':
        return push(Kind::integer, static_cast<int64_t>(number(2))), true;
      case 'J':
        return push(Kind::integer, static_cast<int32_t>(static_cast<uint32_t>(number(4)))), true;
      case 0x8a:
        return long_integer(), true;
      case 'G':
        return take(8), push_constant(Kind::real), true;
      case 'X':
        return text(number(4)), true;
      case 0x8c:
        return text(number(1)), true;
      case 0x8d:
        return text(number(8)), true;
      default:
        return false;
    }
  }

  bool collect(unsigned code) {
    switch (code) {
      case '(':
        return mark(), true;
      case '}':
        return push(Kind::dict), true;
      case ']':
        return push(Kind::list), true;
      case ')':
        return push_constant(Kind::tuple), true;
      case 't':
        return push_tuple(pop_to_mark()), true;
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple(code - 0x84), true;
      case 'a':
        return append(Kind::list, {pop()}), true;
      case 'e':
        return append(Kind::list, pop_to_mark()), true;
      case 's': {
        const Id value = pop(), key = pop();
        return append(Kind::dict, {key, value}), true;
      }
      case 'u':
        return append(Kind::dict, pop_to_mark()), true;
      default:
        return false;
    }
  }

  bool use_memo(unsigned code) {
    switch (code) {
      case 'q':
        return remember(number(1)), true;
      case 'r':
        return remember(number(4)), true;
      case 0x94:
        return remember(memo_.size()), true;
      case 'h':
        return recall(number(1)), true;
      case 'j':
        return recall(number(4)), true;
      default:
        return false;
    }
  }

  bool use_class(unsigned code) {
    switch (code) {
      case 'c': {
        const std::string_view module = line(), name = line();
        return global(module, name), true;
      }
      case 0x93:
        return named_global(), true;
      case 'Q':
        return persistent(), true;
      case 'R':
        return reduce(), true;
      case 'b':
        return build(), true;
      case 0x95:
        return frame(), true;
      default:
        return false;
    }
  }

  void mark() {
    if (marks_.size() >= kMaxPickleDepth) bad_pickle(cat("it is nested deeper than ", kMaxPickleDepth, " levels"));
    marks_.push_back(stack_.size());
  }

  // A frame says how many bytes belong together, which matters only when reading a stream.
  void frame() {
    if (const uint64_t bytes = number(8); bytes > rest_.size())
      bad_pickle(cat("it is truncated: a frame of ", bytes, " bytes should follow, but only ", rest_.size(), " do"));
  }

  void named_global() {
    const Value &name = values_[pop()], &module = values_[pop()];
    if (name.kind != Kind::text || module.kind != Kind::text ||
        std::max(name.text.size(), module.text.size()) > kMaxNameBytes)
      bad_pickle("the name of a class or function is not text");
    global(module.text, name.text);
  }

  void long_integer() {
    const size_t bytes = number(1);
    if (bytes > 8) {
      take(bytes);  // larger than any size; as a value itself it is left out
      return push(Kind::real);
    }
    const bool negative =
        bytes > 0 && bytes <= rest_.size() && (static_cast<unsigned char>(rest_[bytes - 1]) & 0x80) != 0;
    uint64_t value = number(bytes);
    if (negative && bytes < 8) value |= ~uint64_t{0} << (8 * bytes);
    push(Kind::integer, static_cast<int64_t>(value));
  }

  void text(uint64_t bytes) {
    const std::string_view text = take(bytes);
    if (!is_utf8(text)) bad_pickle("a text is not UTF-8");
    push(Kind::text, 0, text);
  }

  void global(std::string_view module, std::string_view name) {
    static const std::map<std::pair<std::string_view, std::string_view>, Function> kFunctions{
        {{"collections", "OrderedDict"}, Function::ordered_dict},
        {{"torch._utils", "_rebuild_tensor_v2"}, Function::rebuild_tensor_v2},
        {{"torch._utils", "_rebuild_tensor_v3"}, Function::rebuild_tensor_v3},
        {{"torch._utils", "_rebuild_parameter"}, Function::rebuild_parameter},
        {{"collections", "Counter"}, Function::plain},
        {{"torch", "Size"}, Function::plain},
        {{"torch", "device"}, Function::plain}};
    if (const auto found = kFunctions.find({module, name}); found != kFunctions.end())
      return push_constant(Kind::function, static_cast<int64_t>(found->second));
    if (module == "torch.storage" && name == "UntypedStorage") return push(Kind::storage_class, -1);
    for (size_t i = 0; module == "torch" && i < kTorchDtypes.size(); ++i) {
      if (name == kTorchDtypes[i].name) return push(Kind::dtype, static_cast<int64_t>(i));
      if (!name.empty() && name == kTorchDtypes[i].storage) return push(Kind::storage_class, static_cast<int64_t>(i));
    }
    throw CheckpointError(cat("[checkpoint.pytorch] the file names ", shown_name(cat(module, ".", name)),
                              "; a state dict of plain tensors does not need it, and code in a file is never run. Save "
                              "only the state dict: torch.save(model.state_dict(), FILE)."));
  }

  void persistent() {
    const Value& id = values_[pop()];
    const auto is = [&](size_t i, Kind kind) { return values_[id.items[i]].kind == kind; };
    if (id.kind != Kind::tuple || id.items.size() != 5 || !is(0, Kind::text) ||
        values_[id.items[0]].text != "storage" || !is(1, Kind::storage_class) || !is(2, Kind::text) ||
        !is(3, Kind::text) || !is(4, Kind::integer))
      bad_pickle("a storage is not described as torch.save would describe it");
    const int64_t dtype = values_[id.items[1]].number, count = values_[id.items[4]].number;
    PickledStorage storage{std::string(values_[id.items[2]].text),
                           dtype < 0 ? nullptr : &kTorchDtypes[static_cast<size_t>(dtype)], 0};
    if (storage.key.size() > 100) bad_pickle("the name of a storage is longer than 100 bytes");
    if (count < 0 ||
        __builtin_mul_overflow(static_cast<uint64_t>(count), dtype < 0 ? 1 : storage.dtype->bytes, &storage.bytes))
      bad_pickle(cat("storage ", shown_name(storage.key), " has ", count, " elements"));
    const auto [found, is_new] = storages_.emplace(storage.key, out_.storages.size());
    if (is_new) {
      out_.storages.push_back(std::move(storage));
    } else if (const PickledStorage& known = out_.storages[found->second];
               known.dtype != storage.dtype || known.bytes != storage.bytes) {
      bad_pickle(cat("storage ", shown_name(storage.key), " is described in two ways"));
    }
    push(Kind::storage, static_cast<int64_t>(found->second));
  }

  void reduce() {
    const Id arguments = pop(), function = pop();
    if (values_[function].kind != Kind::function || values_[arguments].kind != Kind::tuple)
      bad_pickle(cat(kind_text(values_[function].kind), " is called, which is not a function that a state dict needs"));
    const auto called = static_cast<Function>(values_[function].number);
    if (called == Function::plain) return push(Kind::object);
    if (values_[arguments].items.size() > kMaxArguments)
      bad_pickle("a function has more arguments than torch.save ever passes");
    // A copy: creating values from them moves the vector.
    const std::vector<Id> items = values_[arguments].items;
    switch (called) {
      case Function::ordered_dict:
        if (!items.empty()) bad_pickle("an OrderedDict is created with arguments");
        return push(Kind::dict);
      case Function::rebuild_tensor_v2:
        return rebuild_tensor(items, false);
      case Function::rebuild_tensor_v3:
        return rebuild_tensor(items, true);
      case Function::rebuild_parameter:
        if (items.size() != 3 || values_[items[0]].kind != Kind::tensor)
          bad_pickle("a parameter is not described as torch.save would describe it");
        return push(items[0]);
      case Function::plain:
        break;
    }
  }

  std::vector<int64_t> sizes(Id id) {
    const Value& tuple = values_[id];
    std::vector<int64_t> out;
    if (tuple.kind != Kind::tuple || tuple.items.size() > kMaxDimensions)
      bad_pickle("a tensor's shape is not a tuple of at most 64 sizes");
    for (const Id item : tuple.items) {
      if (values_[item].kind != Kind::integer || values_[item].number < 0)
        bad_pickle("a tensor's shape or strides contain something that is not a size");
      out.push_back(values_[item].number);
    }
    return out;
  }

  // (storage, offset, sizes, strides, requires_grad, hooks[, dtype][, metadata])
  void rebuild_tensor(const std::vector<Id>& items, bool with_dtype) {
    const size_t count = with_dtype ? 7 : 6;
    const auto is = [&](size_t i, Kind kind) { return values_[items[i]].kind == kind; };
    if ((items.size() != count && items.size() != count + 1) || !is(0, Kind::storage) || !is(1, Kind::integer) ||
        !is(4, Kind::boolean) || !is(5, Kind::dict) || !values_[items[5]].items.empty() ||
        (with_dtype && !is(6, Kind::dtype)))
      bad_pickle("a tensor is not described as torch.save would describe it");
    PickledTensor tensor;
    if (items.size() > count) read_metadata(items[count], tensor);
    tensor.storage = static_cast<size_t>(values_[items[0]].number);
    const PickledStorage& storage = out_.storages[tensor.storage];
    tensor.dtype = with_dtype ? &kTorchDtypes[static_cast<size_t>(values_[items[6]].number)] : storage.dtype;
    if (tensor.dtype == nullptr || (storage.dtype != nullptr && storage.dtype != tensor.dtype))
      bad_pickle("a tensor's dtype is not that of its storage");
    tensor.offset = values_[items[1]].number;
    tensor.sizes = sizes(items[2]);
    tensor.strides = sizes(items[3]);
    check_bounds(tensor, storage);
    if (tensors_.size() >= kMaxTensors) bad_pickle(cat("more than ", kMaxTensors, " tensors"));
    tensors_.push_back(std::move(tensor));
    push(Kind::tensor, static_cast<int64_t>(tensors_.size() - 1));
  }

  // Torch's flags for a conjugated or negated view: {'conj': True}, {'neg': True}.
  void read_metadata(Id id, PickledTensor& tensor) {
    const Value& metadata = values_[id];
    if (metadata.kind != Kind::dict) bad_pickle("a tensor is not described as torch.save would describe it");
    for (size_t i = 0; i < metadata.items.size(); i += 2) {
      const Value &key = values_[metadata.items[i]], &value = values_[metadata.items[i + 1]];
      const bool known =
          key.kind == Kind::text && value.kind == Kind::boolean && (key.text == "conj" || key.text == "neg");
      if (!known)
        bad_pickle(cat("a tensor has the property ", shown_name(key_text(metadata.items[i])), ", which is unknown"));
      (key.text == "conj" ? tensor.conjugated : tensor.negated) = value.number != 0;
    }
  }

  static void check_bounds(const PickledTensor& tensor, const PickledStorage& storage) {
    const auto elements = static_cast<int64_t>(storage.bytes / tensor.dtype->bytes);
    if (tensor.sizes.size() != tensor.strides.size()) bad_pickle("a tensor has more or fewer strides than sizes");
    int64_t product = static_cast<int64_t>(tensor.dtype->bytes), last = tensor.offset;
    bool overflow = tensor.offset < 0, empty = false;
    for (size_t i = 0; i < tensor.sizes.size(); ++i) {
      const int64_t size = tensor.sizes[i];
      int64_t step = 0;
      // A size of 0 counts as 1 in strides.
      overflow |= __builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product);
      overflow |= __builtin_mul_overflow(std::max<int64_t>(size - 1, 0), tensor.strides[i], &step);
      overflow |= __builtin_add_overflow(last, step, &last);
      empty |= size == 0;
    }
    if (overflow || (empty ? tensor.offset > elements : last >= elements))
      bad_pickle(
          cat("a tensor extends beyond storage ", shown_name(storage.key), ", which has ", elements, " elements"));
  }

  // The attribute _metadata of a state dict: module versions, not needed here.
  void build() {
    const Id state = pop();
    if (values_[top()].kind != Kind::dict || values_[state].kind != Kind::dict)
      bad_pickle(cat("attributes are set on ", kind_text(values_[top()].kind)));
  }

  // Result ------------------------------------------------------------------------------------------------------------
  void leave_out(std::string_view name, Id value) {
    if (out_.left_out.size() < kMaxLeftOut)
      out_.left_out.push_back(cat(shown_name(name), " (", kind_text(values_[value].kind), ")"));
  }

  std::string_view key_text(Id key) const {
    return values_[key].kind == Kind::text ? values_[key].text : kind_text(values_[key].kind);
  }

  Id find_state_dict(Id id) {
    const std::vector<Id>& items = values_[id].items;
    for (size_t i = 0; i < items.size(); i += 2) {
      if (key_text(items[i]) != "state_dict" || values_[items[i + 1]].kind != Kind::dict) continue;
      for (size_t j = 0; j < items.size(); j += 2)
        if (j != i) leave_out(key_text(items[j]), items[j + 1]);
      return items[i + 1];
    }
    return id;
  }

  PickledStateDict state_dict(Id id) {
    if (values_[id].kind != Kind::dict)
      throw CheckpointError(cat("[checkpoint.pytorch] the file must hold a mapping of names to tensors; it holds ",
                                kind_text(values_[id].kind),
                                ". Save a state dict: torch.save(model.state_dict(), FILE)."));
    const std::vector<Id>& items = values_[find_state_dict(id)].items;
    std::set<std::string_view> names;
    for (size_t i = 0; i < items.size(); i += 2) {
      const Value &key = values_[items[i]], &value = values_[items[i + 1]];
      if (value.kind != Kind::tensor) {
        leave_out(key_text(items[i]), items[i + 1]);
        continue;
      }
      if (key.kind != Kind::text || key.text.size() > kMaxNameBytes)
        bad_pickle(cat("a tensor's name is ", kind_text(key.kind), ", or longer than ", kMaxNameBytes, " bytes"));
      if (!names.insert(key.text).second) bad_pickle(cat(shown_name(key.text), " occurs twice"));
      if (out_.tensors.size() >= kMaxTensors) bad_pickle(cat("more than ", kMaxTensors, " tensors"));
      out_.tensors.push_back(tensors_[static_cast<size_t>(value.number)]);
      out_.tensors.back().name = key.text;
    }
    if (out_.tensors.empty() && !out_.left_out.empty())
      throw CheckpointError(cat(
          "[checkpoint.pytorch] the file must hold a mapping of names to tensors, or one under 'state_dict'; it has ",
          out_.left_out.front(), out_.left_out.size() > 1 ? " and more" : "",
          ". Save only the state dict: torch.save(model.state_dict(), FILE)."));
    return std::move(out_);
  }

  std::string_view rest_;
  std::deque<Value> values_;  // grows without copying everything
  std::map<std::pair<Kind, int64_t>, Id> constants_;
  std::vector<Id> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<Id, Id> memo_;
  std::map<std::string, size_t> storages_;
  std::vector<PickledTensor> tensors_;
  PickledStateDict out_;
  size_t added_ = 0;
};

}  // namespace

PickledStateDict read_state_dict_pickle(std::string_view pickle) {
  if (pickle.size() > kMaxPickleBytes)
    bad_pickle(cat("it has ", pickle.size(), " bytes; at most ", kMaxPickleBytes, " are allowed"));
  return Machine(pickle).run();
}

}  // namespace fulgur::detail
