#pragma once

// Independent of LibTorch.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace fulgur::detail {

/// 64-bit XXH3, fed incrementally.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void update(const void* data, size_t bytes);
  /// The hash of everything since the start or the last reset.
  uint64_t digest() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

uint64_t hash_of(std::string_view bytes);

/// 16 hexadecimal digits, as `xxhsum -H3` prints them.
std::string hash_text(uint64_t hash);
/// The reverse; nullopt if `text` is not a valid hash.
std::optional<uint64_t> hash_from_text(std::string_view text);

}  // namespace fulgur::detail
