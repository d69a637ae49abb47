#include "fulgur/core/state/batch.h"

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

std::string list_entries(const std::vector<Batch::Entry>& entries) {
  std::vector<std::string> names;
  for (size_t i = 0; i < entries.size(); ++i) names.push_back(cat(i, " '", entries[i].first, "'"));
  return names.empty() ? "none" : join(names);
}

template <class Value>
const Value& value_of(size_t index, const Batch::Entry& entry, std::string_view wanted) {
  if (const auto* value = std::get_if<Value>(&entry.second)) return *value;
  static constexpr std::array<std::pair<const char*, const char*>, 3> kKinds{
      {{"a tensor", "batch[…]"}, {"a list of tensors", "batch.list(…)"}, {"a list of strings", "batch.strings(…)"}}};
  const auto& [kind, how] = kKinds[entry.second.index()];
  throw Error(cat("[core.Batch] entry ", index, " '", entry.first, "' is ", kind, ", not ", wanted, "; read it with ",
                  how, "."));
}

template <class Function>
Batch map_tensors(const Batch& batch, Function function) {
  Batch out;
  for (const auto& [name, value] : batch) {
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      out.add(name, function(*tensor));
    } else if (const auto* list = std::get_if<std::vector<Tensor>>(&value)) {
      std::vector<Tensor> moved;
      for (const Tensor& t : *list) moved.push_back(function(t));
      out.add(name, std::move(moved));
    } else {
      out.add(name, value);
    }
  }
  return out;
}

}  // namespace

std::string shape_text(at::IntArrayRef shape) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) sizes.push_back(std::to_string(size));
  return cat("[", join(sizes), "]");
}

Batch::Batch(std::initializer_list<Tensor> tensors) {
  for (const Tensor& tensor : tensors) entries_.emplace_back(std::to_string(entries_.size()), tensor);
}

Batch::Batch(std::initializer_list<Entry> entries) {
  for (const Entry& entry : entries) add(entry.first, entry.second);
}

void Batch::add(std::string name, Value value) {
  if (contains(name)) throw Error(cat("[core.Batch] entry names must differ; there already is an entry '", name, "'."));
  entries_.emplace_back(std::move(name), std::move(value));
}

void Batch::set(size_t index, Tensor value) { entry(index).second = std::move(value); }

const Batch::Entry& Batch::entry(size_t index) const {
  if (index >= entries_.size())
    throw Error(cat("[core.Batch] there is no entry ", index, "; the batch has: ", list_entries(entries_), "."));
  return entries_[index];
}

Batch::Entry& Batch::entry(size_t index) { return const_cast<Entry&>(std::as_const(*this).entry(index)); }

bool Batch::contains(std::string_view name) const {
  for (const auto& [key, value] : entries_)
    if (key == name) return true;
  return false;
}

size_t Batch::index_of(std::string_view name) const {
  for (size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].first == name) return i;
  throw Error(cat("[core.Batch] there is no entry named '", name, "'; the batch has: ", list_entries(entries_), "."));
}

const Tensor& Batch::operator[](std::string_view name) const { return tensor_at(index_of(name)); }
const std::vector<Tensor>& Batch::list(std::string_view name) const { return list(index_of(name)); }
const std::vector<std::string>& Batch::strings(std::string_view name) const { return strings(index_of(name)); }

const Tensor& Batch::tensor_at(size_t index) const { return value_of<Tensor>(index, entry(index), "a tensor"); }

const std::vector<Tensor>& Batch::list(size_t index) const {
  return value_of<std::vector<Tensor>>(index, entry(index), "a list of tensors");
}

const std::vector<std::string>& Batch::strings(size_t index) const {
  return value_of<std::vector<std::string>>(index, entry(index), "a list of strings");
}

int64_t Batch::size() const {
  for (const auto& [name, value] : entries_) {
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      if (tensor->dim() > 0) return tensor->size(0);
    } else if (const auto* tensors = std::get_if<std::vector<Tensor>>(&value)) {
      return static_cast<int64_t>(tensors->size());
    } else {
      return static_cast<int64_t>(std::get<std::vector<std::string>>(value).size());
    }
  }
  return 0;
}

bool Batch::is_on(const at::Device& device) const {
  for (const auto& [name, value] : entries_) {
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      if (tensor->device() != device) return false;
    } else if (const auto* list = std::get_if<std::vector<Tensor>>(&value)) {
      for (const Tensor& t : *list)
        if (t.device() != device) return false;
    }
  }
  return true;
}

Batch Batch::to(const at::Device& device, bool non_blocking) const {
  return map_tensors(*this, [&](const Tensor& t) {
    return t.device() == device ? t : t.to(t.options().device(device), non_blocking);
  });
}

Batch Batch::pin_memory() const {
  return map_tensors(*this, [](const Tensor& t) { return t.is_cpu() && !t.is_pinned() ? t.pin_memory() : t; });
}

Batch Batch::narrow(int64_t start, int64_t length) const {
  Batch out;
  const int64_t samples = size();
  for (const auto& [name, value] : entries_) {
    const auto require_samples = [&, &entry = name](int64_t count) {
      if (count != samples)
        throw DataError(
            cat("[core.Batch] the entry '", entry, "' has ", count, " samples, but the batch has ", samples,
                ": a batch can be split (by dp or micro_batches) only if all its entries have the same number of "
                "samples. Combined loaders then need batches of one size: drop_last and the same batch_size."));
    };
    const auto first = static_cast<std::ptrdiff_t>(start), count = static_cast<std::ptrdiff_t>(length);
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      if (tensor->dim() > 0) require_samples(tensor->size(0));
      out.add(name, tensor->dim() > 0 ? tensor->narrow(0, start, length) : *tensor);
    } else if (const auto* tensors = std::get_if<std::vector<Tensor>>(&value)) {
      require_samples(static_cast<int64_t>(tensors->size()));
      out.add(name, std::vector<Tensor>(tensors->begin() + first, tensors->begin() + first + count));
    } else {
      const auto& texts = std::get<std::vector<std::string>>(value);
      require_samples(static_cast<int64_t>(texts.size()));
      out.add(name, std::vector<std::string>(texts.begin() + first, texts.begin() + first + count));
    }
  }
  return out;
}

void convert_floating(Batch& batch, at::ScalarType dtype) {
  for (auto& [name, value] : batch)
    if (auto* tensor = std::get_if<Tensor>(&value);
        tensor && tensor->is_floating_point() && tensor->scalar_type() != dtype)
      *tensor = tensor->to(dtype);
}

}  // namespace fulgur
