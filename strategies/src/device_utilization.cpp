#include "device_utilization.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "fulgur/core/device/accelerator.h"
#include "fulgur/core/system/start_thread.h"

namespace fulgur::detail {
namespace {

const Accelerator* accelerator_of(const at::Device& device) {
  return find_accelerator(c10::DeviceTypeName(device.type(), /*lower_case=*/true));
}

}  // namespace

DeviceUtilization::DeviceUtilization(std::vector<at::Device> devices)
    : devices_(std::move(devices)), began_(std::chrono::steady_clock::now()), seen_busy_(devices_.size()) {
  for (const at::Device& device : devices_) {
    const Accelerator* accelerator = accelerator_of(device);
    const auto busy = accelerator ? accelerator->busy_s(device.index()) : std::nullopt;
    if (busy) counted_.push_back(*busy);
  }
  if (counted_.size() == devices_.size()) return;
  counted_.clear();
  sampler_ = start_thread("strategies.device_utilization", "Use fewer threads.", [this] { sample(); });
}

DeviceUtilization::~DeviceUtilization() {
  ends_ = true;
  if (sampler_.joinable()) sampler_.join();
}

void DeviceUtilization::sample() {
  // A device that has failed ends the run on its own thread.
  try {
    const c10::impl::VirtualGuardImpl guard(devices_.front().type());
    while (!ends_) {
      for (size_t i = 0; i < devices_.size(); ++i)
        if (!guard.queryStream(guard.getDefaultStream(devices_[i]))) ++seen_busy_[i];
      ++looks_;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  } catch (const std::exception&) {
    // The shares are those until now.
  }
}

double DeviceUtilization::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

std::vector<double> DeviceUtilization::shares() const {
  std::vector<double> all;
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (!counted_.empty())
      all.push_back((*accelerator_of(devices_[i])->busy_s(devices_[i].index()) - counted_[i]) /
                    std::max(seconds(), 1e-9));
    else
      all.push_back(static_cast<double>(seen_busy_[i]) / static_cast<double>(std::max<int64_t>(looks_, 1)));
  }
  return all;
}

}  // namespace fulgur::detail
