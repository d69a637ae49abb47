#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/text/tokenizer.h"
#include "fulgur/text/train_tokenizer.h"

namespace fulgur {

/// What `tokens.json` says about a folder of tokens (docs/text.md describes the files).
struct TokenFilesInfo {
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t train_tokens = 0;  ///< tokens [0, train_tokens) are for training, those after it for validation
  int64_t vocab_size = 0;
  int64_t bytes_per_token = 2;       ///< 2 if vocab_size is at most 65536, else 4
  std::optional<int64_t> separator;  ///< id of the last token of each document
  std::string tokenizer;             ///< its fingerprint
  uint32_t tokens_checksum = 0;      ///< CRC-32 of tokens.bin
  uint32_t documents_checksum = 0;   ///< CRC-32 of documents.bin
};

/// A folder of tokens, mapped into memory: it may be larger than the memory. Reading is thread-safe. The files must not
/// be changed while they are mapped.
class FULGUR_API TokenFiles {
 public:
  /// Throws a DataError for a folder that is incomplete or damaged, such as a truncated file.
  explicit TokenFiles(const std::filesystem::path& folder);
  ~TokenFiles();
  TokenFiles(const TokenFiles&) = delete;
  TokenFiles& operator=(const TokenFiles&) = delete;

  const std::filesystem::path& folder() const;
  const TokenFilesInfo& info() const;
  /// Writes tokens [begin, begin + count) to `to`. Throws a DataError for tokens outside of the file, and for one that
  /// is not below vocab_size.
  void read(int64_t begin, int64_t count, int64_t* to) const;
  /// Where the document begins that follows the one of token `at`; the number of tokens for the last one. Needs
  /// `check_documents`.
  int64_t document_end(int64_t at) const;
  /// Throws a DataError if the index of documents is not in order. Reads the index.
  void check_documents() const;
  /// Throws a DataError if a checksum differs. Reads the files.
  void check_checksums() const;
  /// The tokenizer in the folder. Throws a DataError if it is another one than that of the tokens.
  std::shared_ptr<const Tokenizer> tokenizer() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Texts as documents.
struct DocumentFiles {
  /// Text files, each of them one document or several with the separator between them; with `jsonl_field` files of JSON
  /// lines, each of them one document; with `csv_column` CSV files (RFC 4180) with a header, each row one document.
  std::vector<std::filesystem::path> inputs = {};
  std::optional<std::string> jsonl_field = {};  ///< the field with the text
  std::optional<std::string> csv_column = {};   ///< the column with the text
  std::string separator = {};                   ///< between the documents of a text file; empty: one document
};

struct TokenizeProgress {
  int64_t bytes = 0, all_bytes = 0;  ///< of the inputs
  int64_t documents = 0, tokens = 0;
};
/// Called after each few MiB; what it throws ends the work.
using TokenizeWatch = std::function<void(const TokenizeProgress&)>;

/// Adds the texts to a trainer, in bounded pieces.
FULGUR_API void add_documents(const DocumentFiles& documents, TokenizerTrainer& trainer,
                              const TokenizeWatch& watch = {});

/// Tokenizes documents into a new folder. Each document that is not empty ends with the separator, if there is one. The
/// folder is complete or absent, also after a crash; memory is bounded by the longest stretch of text without white
/// space. The last `val_fraction` of the tokens is for validation: it begins with a document if there are several.
///
/// Throws a ConfigError if the folder exists or the separator is not a token, a DataError for an input that cannot be
/// read or is not UTF-8, with its place, and an Error if the folder cannot be written.
FULGUR_API TokenFilesInfo write_token_files(const DocumentFiles& documents, const Tokenizer& tokenizer,
                                            const std::filesystem::path& folder, double val_fraction = 0,
                                            const TokenizeWatch& watch = {});

}  // namespace fulgur
