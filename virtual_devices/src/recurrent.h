#pragma once

namespace fulgur::virtual_devices {

/// GRU and LSTM, for which LibTorch takes cells that only GPUs have on every device that it does not know.
void register_recurrent();

}  // namespace fulgur::virtual_devices
