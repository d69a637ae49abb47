#include "fulgur/core/state/state_bytes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstring>

#include "fulgur/core/text/errors.h"

namespace fulgur {
namespace {

enum class StateKind : char { null, tensor, boolean, integer, natural, real, text, list, map };

class Writer {
 public:
  std::string bytes;

  void write(const StateTree& state) {
    std::visit([&](const auto& value) { write_value(value); }, state.variant());
  }

 private:
  void raw(const void* data, size_t size) { bytes.append(static_cast<const char*>(data), size); }
  template <class T>
  void number(T value) {
    raw(&value, sizeof value);
  }
  void kind(StateKind value) { number(value); }
  void text(const std::string& value) {
    number<uint64_t>(value.size());
    bytes += value;
  }

  void write_value(std::nullptr_t) { kind(StateKind::null); }
  void write_value(bool value) { kind(StateKind::boolean), number(value); }
  void write_value(int64_t value) { kind(StateKind::integer), number(value); }
  void write_value(uint64_t value) { kind(StateKind::natural), number(value); }
  void write_value(double value) { kind(StateKind::real), number(value); }
  void write_value(const std::string& value) { kind(StateKind::text), text(value); }
  void write_value(const StateTree::List& list) {
    kind(StateKind::list);
    number<uint64_t>(list.size());
    for (const StateTree& item : list) write(item);
  }
  void write_value(const StateTree::Map& map) {
    kind(StateKind::map);
    number<uint64_t>(map.size());
    for (const auto& [key, value] : map) text(key), write(value);
  }
  void write_value(const Tensor& tensor) {
    kind(StateKind::tensor);
    number(tensor.defined());
    if (!tensor.defined()) return;
    const at::NoGradGuard no_grad;
    const Tensor plain = tensor.detach().to(at::kCPU).contiguous();
    number(plain.scalar_type());
    number<uint64_t>(static_cast<uint64_t>(plain.dim()));
    for (const int64_t size : plain.sizes()) number(size);
    raw(plain.const_data_ptr(), plain.nbytes());
  }
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  StateTree read() {
    switch (number<StateKind>()) {
      case StateKind::null:
        return nullptr;
      case StateKind::boolean:
        return number<bool>();
      case StateKind::integer:
        return number<int64_t>();
      case StateKind::natural:
        return number<uint64_t>();
      case StateKind::real:
        return number<double>();
      case StateKind::text:
        return text();
      case StateKind::tensor:
        return tensor();
      case StateKind::list: {
        StateTree::List list;
        for (auto count = number<uint64_t>(); count > 0; --count) list.push_back(read());
        return list;
      }
      case StateKind::map: {
        StateTree::Map map;
        for (auto count = number<uint64_t>(); count > 0; --count) {
          std::string key = text();
          map.emplace(std::move(key), read());
        }
        return map;
      }
    }
    throw CheckpointError("[core.unpack_state] the bytes are not a packed state.");
  }
  bool at_end() const { return left_.empty(); }

 private:
  std::string_view take(uint64_t size) {
    if (size > left_.size()) throw CheckpointError("[core.unpack_state] the packed state is truncated.");
    const std::string_view part = left_.substr(0, size);
    left_.remove_prefix(size);
    return part;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(take(number<uint64_t>())); }
  Tensor tensor() {
    if (!number<bool>()) return {};
    const auto dtype = number<at::ScalarType>();
    std::vector<int64_t> sizes(number<uint64_t>());
    for (int64_t& size : sizes) size = number<int64_t>();
    Tensor value = at::empty(sizes, at::TensorOptions().dtype(dtype));
    if (value.nbytes() > 0) std::memcpy(value.mutable_data_ptr(), take(value.nbytes()).data(), value.nbytes());
    return value;
  }

  std::string_view left_;
};

}  // namespace

std::string pack_state(const StateTree& state) {
  Writer writer;
  writer.write(state);
  return std::move(writer.bytes);
}

StateTree unpack_state(std::string_view bytes) {
  Reader reader(bytes);
  StateTree state = reader.read();
  if (!reader.at_end()) throw CheckpointError("[core.unpack_state] there are bytes after the packed state.");
  return state;
}

}  // namespace fulgur
