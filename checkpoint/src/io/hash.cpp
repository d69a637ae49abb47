#include "io/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace fulgur::detail {

struct Hasher::State {
  XXH3_state_t xxh3;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { reset(); }
Hasher::~Hasher() = default;
void Hasher::update(const void* data, size_t bytes) { XXH3_64bits_update(&state_->xxh3, data, bytes); }
uint64_t Hasher::digest() const { return XXH3_64bits_digest(&state_->xxh3); }
void Hasher::reset() { XXH3_64bits_reset(&state_->xxh3); }

uint64_t hash_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hash_text(uint64_t hash) {
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, hash >>= 4) text[static_cast<size_t>(i)] = "0123456789abcdef"[hash & 15];
  return text;
}

std::optional<uint64_t> hash_from_text(std::string_view text) {
  if (text.size() != 16) return std::nullopt;
  uint64_t hash = 0;
  for (const char c : text) {
    const size_t digit = std::string_view("0123456789abcdef").find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    hash = hash << 4 | digit;
  }
  return hash;
}

}  // namespace fulgur::detail
