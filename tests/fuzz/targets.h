#pragma once

// Free of LibTorch: scripts/fuzz.sh builds these with clang's libFuzzer.
#include <stdexcept>
#include <string_view>

namespace fulgur::fuzz {

/// Each reads `input` as its format. A refusal (a fulgur::Error) is as good as success; anything else that comes out is
/// a finding, also what does not come back as it was written.
void safetensors_header(std::string_view input);
void pytorch_pickle(std::string_view input);
void pytorch_zip(std::string_view input);
void idx(std::string_view input);
void images(std::string_view input);
void config(std::string_view input);
void run_log(std::string_view input);
void shard_index(std::string_view input);
void sweep(std::string_view input);
void tokenizer(std::string_view input);
void csv_table(std::string_view input);
void npy_header(std::string_view input);

/// What must hold of all inputs.
inline void expect(bool holds, const char* rule) {
  if (!holds) throw std::logic_error(rule);
}

}  // namespace fulgur::fuzz
