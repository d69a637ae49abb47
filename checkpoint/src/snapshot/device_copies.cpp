#include "snapshot/device_copies.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace fulgur::detail {
namespace {

// One more copy costs the host and the bus about as much as this many bytes.
constexpr int64_t kSmall = int64_t{256} << 10;

// Dtypes that a single kernel copies together.
bool copied_together(at::ScalarType dtype) {
  constexpr std::array kDtypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                               at::kLong,  at::kInt,    at::kBool, at::kByte};
  return std::ranges::find(kDtypes, dtype) != kDtypes.end();
}

Tensor part_of(const Tensor& bytes, int64_t offset, const Tensor& like) {
  return bytes.narrow(0, offset, static_cast<int64_t>(like.nbytes())).view(like.scalar_type()).view(like.sizes());
}

}  // namespace

void DeviceCopies::Item::replace(Tensor copy) const {
  if (tensor)
    *tensor = std::move(copy);
  else
    *leaf = StateTree(std::move(copy));
}

int64_t DeviceCopies::Device::packed_bytes() const {
  int64_t bytes = 0;
  for (const Item* item : small) bytes += align_up(item->bytes());
  return bytes;
}

void DeviceCopies::clear() {
  items_.clear();
  held_.clear();
  under_way_ = false;
  for (Device& device : devices_) {
    device.used = device.has_late = false;
    device.small.clear();
    device.late.clear();
    device.urgent.clear();
  }
}

bool DeviceCopies::add(Tensor& tensor) { return add(tensor, &tensor, nullptr); }
bool DeviceCopies::add(StateTree& leaf) { return add(leaf.tensor(), nullptr, &leaf); }

bool DeviceCopies::add(const Tensor& source, Tensor* tensor, StateTree* leaf) {
  if (!source.defined() || !source.is_cuda() || source.layout() != at::kStrided) return false;
  items_.push_back({source, tensor, leaf});
  return true;
}

DeviceCopies::Device& DeviceCopies::device_of(const Tensor& tensor) {
  const c10::Device where = tensor.device();
  const auto found =
      std::ranges::find_if(devices_, [&](const Device& device) { return device.side.device() == where; });
  if (found != devices_.end()) return *found;
  const c10::impl::VirtualGuardImpl streams(where.type());
  return devices_.emplace_back(streams.getStreamFromGlobalPool(where, /*isHighPriority=*/false));
}

// Packs on the current stream, so that its later work may change the tensors.
Tensor DeviceCopies::pack(Device& device) const {
  Tensor bytes;
  try {
    bytes = at::empty({device.packed_bytes()}, at::TensorOptions().device(device.side.device()).dtype(at::kByte));
  } catch (const c10::OutOfMemoryError&) {
    // There is no memory for packing them.
    device.urgent.insert(device.urgent.end(), device.small.begin(), device.small.end());
    device.small.clear();
    return at::empty({0}, at::TensorOptions().device(device.side.device()).dtype(at::kByte));
  }
  std::map<at::ScalarType, std::pair<std::vector<Tensor>, std::vector<Tensor>>> together;
  int64_t offset = 0;
  for (const Item* item : device.small) {
    Tensor part = part_of(bytes, offset, item->source);
    offset += align_up(item->bytes());
    if (copied_together(item->source.scalar_type())) {
      auto& [to, from] = together[item->source.scalar_type()];
      to.push_back(std::move(part));
      from.push_back(item->source);
    } else {
      part.copy_(item->source);
    }
  }
  for (auto& [dtype, lists] : together) at::_foreach_copy_(lists.first, lists.second);
  return bytes;
}

void DeviceCopies::copy_large(const Item& item, const PinnedSlabs::Place& place) {
  const Tensor copy = place.as(item.source.sizes(), item.source.scalar_type());
  copy.copy_(item.source, /*non_blocking=*/true);
  held_.push_back(item.source);
  item.replace(copy);
}

void DeviceCopies::start(const IsLate& is_late) {
  for (const Item& item : items_) {
    Device& device = device_of(item.source);
    device.used = true;
    if (item.bytes() <= kSmall)
      device.small.push_back(&item);
    else if (is_late && is_late(item.source))
      device.late.push_back(&item);
    else
      device.urgent.push_back(&item);
  }
  // In the order in which they are copied below.
  std::vector<int64_t> sizes;
  std::vector<Tensor> packs;
  for (Device& device : devices_) {
    if (!device.used) continue;
    packs.push_back(pack(device));
    sizes.push_back(packs.back().numel());
    for (const auto* list : {&device.urgent, &device.late})
      for (const Item* item : *list) sizes.push_back(item->bytes());
  }
  const std::vector<PinnedSlabs::Place> places = slabs_.place(sizes);
  auto place = places.begin();
  auto next_pack = packs.begin();
  for (Device& device : devices_) {
    if (!device.used) continue;
    const c10::impl::VirtualGuardImpl streams(device.side.device_type());
    const c10::Stream current = streams.getStream(device.side.device());
    const Tensor& packed = *next_pack++;
    // The copies wait for the current stream's pending work.
    device.copied.record(current);
    device.copied.block(device.side);
    const c10::StreamGuard guard(device.side);
    const Tensor small = (place++)->as(packed.sizes(), at::kByte);
    int64_t offset = 0;
    for (const Item* item : device.small) {
      item->replace(part_of(small, offset, item->source));
      offset += align_up(item->bytes());
    }
    for (const Item* item : device.urgent) copy_large(*item, *place++);
    if (!device.urgent.empty()) {
      device.copied.record(device.side);
      device.copied.block(current);
    }
    small.copy_(packed, /*non_blocking=*/true);
    held_.push_back(packed);
    for (const Item* item : device.late) copy_large(*item, *place++);
    device.copied.record(device.side);
    device.has_late = !device.late.empty();
    device.small.clear();
    device.urgent.clear();
    device.late.clear();
  }
  under_way_ = !items_.empty();
  waited_ = false;
  items_.clear();
}

void DeviceCopies::before_writes() {
  if (!under_way_) return;
  under_way_ = false;
  // The first stream is usually the only one; others may follow.
  const bool asks = std::exchange(waited_, true);
  for (Device& device : devices_) {
    if (!device.has_late || (asks && device.copied.query())) continue;
    device.copied.block(c10::impl::VirtualGuardImpl(device.side.device_type()).getStream(device.side.device()));
    under_way_ = true;
  }
}

void DeviceCopies::finish() {
  for (const Device& device : devices_)
    if (device.used) device.copied.synchronize();
  held_.clear();
}

}  // namespace fulgur::detail
