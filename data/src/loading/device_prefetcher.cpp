#include "fulgur/data/device_prefetcher.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "fulgur/core/state/let_go.h"
#include "fulgur/core/text/errors.h"
#include "loading/look_ahead.h"

namespace fulgur {
namespace {

/// Copies on a side stream, through c10's interface for any device: no CUDA headers needed.
class SideStream {
 public:
  explicit SideStream(at::Device device)
      : impl_(device.type()),
        device_(device),
        side_(impl_.getStreamFromGlobalPool(device, /*isHighPriority=*/false)),
        copied_(device.type()) {}

  Batch copy(const Batch& batch) {
    const c10::StreamGuard guard(side_);
    std::optional<Batch> copy = sets_ ? sets_->write(batch, device_) : std::nullopt;
    if (!copy) copy = batch.to(device_, /*non_blocking=*/true);
    copied_.record(side_);
    return std::move(*copy);
  }

  /// Later work on the current stream may use the batch; the host does not wait.
  void flush_to_run(const Batch& batch) {
    const c10::Stream current = impl_.getStream(device_);
    copied_.block(current);
    if (sets_) sets_->begin(batch, device_);
    for (const auto& [name, value] : batch) {
      if (const auto* tensor = std::get_if<Tensor>(&value))
        used_by(current, *tensor);
      else if (const auto* list = std::get_if<std::vector<Tensor>>(&value))
        for (const Tensor& item : *list) used_by(current, item);
    }
  }

  void write_into(std::shared_ptr<InputSets> sets) {
    sets_ = std::move(sets);
    // Uses of the last batches end before they are overwritten.
    if (sets_) sets_->begin({}, device_);
  }

 private:
  // The memory belongs to the side stream: without this it could be reallocated while the current stream reads it.
  void used_by(const c10::Stream& stream, const Tensor& tensor) const {
    if (tensor.defined() && tensor.device().type() == device_.type())
      impl_.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  }

  c10::impl::VirtualGuardImpl impl_;
  at::Device device_;
  c10::Stream side_;
  c10::Event copied_;
  std::shared_ptr<InputSets> sets_;
};

}  // namespace

struct DevicePrefetcher::Device {
  Device(std::shared_ptr<Loader> loader, at::Device device)
      : stream(device), ahead(std::move(loader), [this](const Batch& batch) { return stream.copy(batch); }) {}
  SideStream stream;
  LookAhead ahead;
};

DevicePrefetcher::DevicePrefetcher(std::shared_ptr<Loader> loader, at::Device device) : loader_(std::move(loader)) {
  if (!loader_) throw ConfigError("[data.DevicePrefetcher] a loader is needed; got none.");
  if (!device.is_cpu()) device_ = std::make_unique<Device>(loader_, device);
}

DevicePrefetcher::~DevicePrefetcher() = default;

template <class Use>
decltype(auto) DevicePrefetcher::with_source(Use&& use) const {
  return device_ ? use(device_->ahead) : use(*loader_);
}

void DevicePrefetcher::start_epoch(int64_t epoch) {
  with_source([&](auto& source) { source.start_epoch(epoch); });
}

void DevicePrefetcher::restart_epoch(int64_t epoch) {
  with_source([&](auto& source) { source.restart_epoch(epoch); });
}

bool DevicePrefetcher::next(Batch& out) {
  if (!device_) return loader_->next(out);
  let_go(out);
  if (!device_->ahead.next(out)) return false;
  device_->stream.flush_to_run(out);
  return true;
}

void DevicePrefetcher::read_ahead() {
  if (device_) device_->ahead.read_ahead();
}

void DevicePrefetcher::write_into(std::shared_ptr<InputSets> sets) {
  if (device_) device_->stream.write_into(std::move(sets));
}

void DevicePrefetcher::unread() {
  with_source([](auto& source) { source.unread(); });
}

StateTree DevicePrefetcher::state() const {
  return with_source([](auto& source) { return source.state(); });
}

void DevicePrefetcher::load_state(const StateTree& state) {
  with_source([&](auto& source) { source.load_state(state); });
}

}  // namespace fulgur
