#pragma once

namespace fulgur::virtual_devices {

/// Registers GRU and LSTM cells: on unknown devices, LibTorch uses those that it has only for GPUs.
void register_recurrent();

}  // namespace fulgur::virtual_devices
