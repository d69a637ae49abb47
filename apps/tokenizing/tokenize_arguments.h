#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fulgur::cli {

/// The options of `tokenize`.
struct TokenizeArguments {
  std::optional<std::string> tokenizer;  ///< a file or a folder
  std::optional<std::string> train;      ///< bpe or wordpiece: makes a tokenizer of the inputs
  std::optional<int64_t> vocab_size;     ///< with train
  std::vector<std::string> inputs;       ///< files or patterns such as `data/*.txt`
  std::optional<std::string> jsonl;      ///< the field with the text, in files of JSON lines
  std::optional<std::string> csv;        ///< the column with the text, in CSV files with a header
  std::optional<std::string> separator;  ///< empty: none
  double val_fraction = 0;
};

}  // namespace fulgur::cli
