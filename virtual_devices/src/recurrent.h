#pragma once

namespace fulgur::virtual_devices {

/// GRU and LSTM, for which LibTorch uses GPU-only cells on every unknown device.
void register_recurrent();

}  // namespace fulgur::virtual_devices
