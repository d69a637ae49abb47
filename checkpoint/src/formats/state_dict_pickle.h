#pragma once

// Independent of LibTorch, so that it can be fuzzed on its own.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fulgur::detail {

/// A dtype as Python's torch names it: `torch.float32`, `torch.FloatStorage`.
struct TorchDtype {
  std::string_view name;
  std::string_view storage;  ///< empty if torch.save writes an UntypedStorage and names the dtype instead
  uint64_t bytes = 0;        ///< of one element
};

inline constexpr std::array<TorchDtype, 17> kTorchDtypes{{{"bool", "BoolStorage", 1},
                                                          {"uint8", "ByteStorage", 1},
                                                          {"int8", "CharStorage", 1},
                                                          {"int16", "ShortStorage", 2},
                                                          {"int32", "IntStorage", 4},
                                                          {"int64", "LongStorage", 8},
                                                          {"float16", "HalfStorage", 2},
                                                          {"bfloat16", "BFloat16Storage", 2},
                                                          {"float32", "FloatStorage", 4},
                                                          {"float64", "DoubleStorage", 8},
                                                          {"complex64", "ComplexFloatStorage", 8},
                                                          {"complex128", "ComplexDoubleStorage", 16},
                                                          {"uint16", "", 2},
                                                          {"uint32", "", 4},
                                                          {"uint64", "", 8},
                                                          {"float8_e4m3fn", "", 1},
                                                          {"float8_e5m2", "", 1}}};

/// Storage of tensors in a pickle; the bytes themselves are outside the pickle, under `key`.
struct PickledStorage {
  std::string key;
  const TorchDtype* dtype = nullptr;  ///< null for an UntypedStorage
  uint64_t bytes = 0;
};

/// A tensor of a pickle: a view of a storage, which others may share.
struct PickledTensor {
  std::string name;
  const TorchDtype* dtype = nullptr;
  size_t storage = 0;  ///< index
  int64_t offset = 0;  ///< elements
  std::vector<int64_t> sizes, strides;
  bool conjugated = false, negated = false;  ///< its values are those of the storage, conjugated or negated
};

/// What torch.save pickles for a state dict.
struct PickledStateDict {
  std::vector<PickledStorage> storages;
  std::vector<PickledTensor> tensors;
  std::vector<std::string> left_out;  ///< other contents of the file, the first of them: `'epoch' (a number)`
};

/// Limits for reading and writing, besides those of safetensors_header.h for names, tensors and dimensions.
inline constexpr uint64_t kMaxPickleBytes = 64u << 20;
inline constexpr size_t kMaxPickleValues = 1u << 22;
inline constexpr size_t kMaxPickleDepth = 1000;
inline constexpr size_t kMaxLeftOut = 100;

/// Reads the pickle of a state dict: a mapping of names to tensors, or a mapping with one at `state_dict`, as in
/// Lightning's checkpoints. Only what torch.save writes for these is recognised; nothing is called, and every other
/// class or function is refused. Tensors are within their storages, but may be larger than these (strides of 0). Throws
/// a CheckpointError.
PickledStateDict read_state_dict_pickle(std::string_view pickle);

/// The pickle that torch.load(weights_only=True) reads as an OrderedDict of the tensors.
std::string write_state_dict_pickle(const PickledStateDict& content);

}  // namespace fulgur::detail
