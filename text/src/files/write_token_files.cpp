#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "files/document_reader.h"
#include "files/new_folder.h"
#include "files/token_file_names.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/text/token_files.h"
#include "unicode/characters.h"

namespace fulgur {
namespace {

constexpr int64_t kWatchEvery = int64_t{4} << 20;

class TokenSink {
 public:
  TokenSink(const std::filesystem::path& folder, const Tokenizer& tokenizer, std::optional<int64_t> separator)
      : tokenizer_(tokenizer),
        tokens_(folder / detail::kTokensName),
        documents_(folder / detail::kDocumentsName),
        documents_path_(folder / detail::kDocumentsName) {
    info_.vocab_size = tokenizer.vocab_size();
    info_.bytes_per_token = info_.vocab_size <= 65536 ? 2 : 4;
    info_.separator = separator;
    info_.tokenizer = tokenizer.fingerprint();
  }

  void add(std::string_view text, bool is_last) {
    const std::vector<int32_t> ids = tokenizer_.encode(text);
    // Of white space alone WordPiece makes no token: such a document is left out, as an empty one is.
    if (!ids.empty() && !in_document_) {
      documents_.write(&info_.tokens, sizeof info_.tokens);
      ++info_.documents;
      in_document_ = true;
    }
    write(ids);
    if (!is_last) return;
    if (in_document_ && info_.separator) write({static_cast<int32_t>(*info_.separator)});
    in_document_ = false;
  }

  TokenFilesInfo commit(double val_fraction) {
    if (info_.tokens == 0) throw DataError("[text.tokenize] the inputs must have a token; they are empty.");
    documents_.write(&info_.tokens, sizeof info_.tokens);
    tokens_.commit();
    documents_.commit();
    info_.tokens_checksum = tokens_.checksum();
    info_.documents_checksum = documents_.checksum();
    info_.train_tokens =
        info_.tokens - static_cast<int64_t>(std::llround(val_fraction * static_cast<double>(info_.tokens)));
    if (info_.train_tokens < info_.tokens)
      if (const int64_t begin = last_document_before(info_.train_tokens); begin > 0) info_.train_tokens = begin;
    return info_;
  }

  const TokenFilesInfo& info() const { return info_; }

 private:
  void write(const std::vector<int32_t>& ids) {
    info_.tokens += static_cast<int64_t>(ids.size());
    if (info_.bytes_per_token == 4) return tokens_.write(ids.data(), ids.size() * sizeof(int32_t));
    const std::vector<uint16_t> narrow(ids.begin(), ids.end());
    tokens_.write(narrow.data(), narrow.size() * sizeof(uint16_t));
  }

  // The last document that begins at or before `at`. The index may be larger than the memory.
  int64_t last_document_before(int64_t at) const {
    const detail::UniqueFd file(::open(documents_path_.c_str(), O_RDONLY | O_CLOEXEC));
    const auto begin_of = [&](int64_t document) {
      int64_t begin = 0;
      if (!file || ::pread(file.get(), &begin, sizeof begin, document * static_cast<int64_t>(sizeof begin)) !=
                       static_cast<ssize_t>(sizeof begin))
        throw Error("[text.tokenize] the index of documents must be readable after it was written; it is not.");
      return begin;
    };
    int64_t low = 0, high = info_.documents;  // the document `low` begins at or before `at`, and `high` after it
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (begin_of(middle) <= at ? low : high) = middle;
    }
    return begin_of(low);
  }

  const Tokenizer& tokenizer_;
  detail::NewDataFile tokens_, documents_;
  std::filesystem::path documents_path_;
  TokenFilesInfo info_;
  bool in_document_ = false;  // the current one has a token
};

std::string info_json(const TokenFilesInfo& info) {
  nlohmann::json json = {{"format", detail::kFormatName},
                         {"version", 1},
                         {"dtype", info.bytes_per_token == 2 ? "uint16" : "uint32"},
                         {"tokens", info.tokens},
                         {"documents", info.documents},
                         {"train_tokens", info.train_tokens},
                         {"vocab_size", info.vocab_size},
                         {"tokenizer", info.tokenizer},
                         {"tokens_crc32", info.tokens_checksum},
                         {"documents_crc32", info.documents_checksum}};
  json["separator"] = info.separator ? nlohmann::json(*info.separator) : nlohmann::json(nullptr);
  return json.dump(2) + "\n";
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  detail::NewDataFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

// Counts what is read, and calls the watch after each few MiB.
class WatchedBytes {
 public:
  WatchedBytes(const DocumentFiles& documents, const TokenizeWatch& watch)
      : watch_(watch), all_(detail::bytes_of_inputs(documents)) {}
  void read(int64_t bytes) { read_ += bytes; }
  void tell(int64_t documents, int64_t tokens) {
    if (!watch_ || read_ - told_ < kWatchEvery) return;
    told_ = read_;
    watch_({.bytes = read_, .all_bytes = all_, .documents = documents, .tokens = tokens});
  }

 private:
  const TokenizeWatch& watch_;
  int64_t all_, read_ = 0, told_ = 0;
};

void check_inputs(const DocumentFiles& documents) {
  if (documents.inputs.empty())
    throw ConfigError("[text.tokenize] there must be an input; there is none. Name files with --input.");
}

}  // namespace

void add_documents(const DocumentFiles& documents, TokenizerTrainer& trainer, const TokenizeWatch& watch) {
  check_inputs(documents);
  WatchedBytes watched(documents, watch);
  int64_t count = 0;
  const bool can_cut = documents.separator.find_first_of(" \t\r\n") == std::string::npos;
  detail::read_documents(
      documents, [&](std::string_view text) { return can_cut ? detail::last_word_border(text, " \n") : size_t{0}; },
      [&](std::string_view text, bool is_last) {
        trainer.add(text);
        count += is_last ? 1 : 0;
        watched.tell(count, 0);
      },
      [&](int64_t bytes) { watched.read(bytes); });
}

TokenFilesInfo write_token_files(const DocumentFiles& documents, const Tokenizer& tokenizer,
                                 const std::filesystem::path& folder, double val_fraction, const TokenizeWatch& watch) {
  check_inputs(documents);
  if (!(val_fraction >= 0 && val_fraction < 1))
    throw ConfigError(cat("[text.tokenize] val_fraction must be in [0, 1); it is ", val_fraction, "."));
  std::optional<int64_t> separator;
  if (!documents.separator.empty()) {
    const auto id = tokenizer.id_of(documents.separator);
    if (!id)
      throw ConfigError(cat("[text.tokenize] the separator must be a token of the tokenizer; '",
                            escape_controls(documents.separator),
                            "' is not one. Its special tokens: ", join(tokenizer.special_tokens()), "."));
    separator = *id;
  }
  try {
    WatchedBytes watched(documents, watch);
    detail::NewFolder output(folder);
    TokenSink sink(output.hidden(), tokenizer, separator);
    detail::read_documents(
        documents, [&](std::string_view text) { return tokenizer.last_cut(text); },
        [&](std::string_view text, bool is_last) {
          sink.add(text, is_last);
          watched.tell(sink.info().documents, sink.info().tokens);
        },
        [&](int64_t bytes) { watched.read(bytes); });
    const TokenFilesInfo info = sink.commit(val_fraction);
    write_text_file(output.hidden() / detail::kTokenizerName, tokenizer.json());
    write_text_file(output.hidden() / detail::kInfoName, info_json(info));
    output.publish();
    return info;
  } catch (const detail::FileError& error) {
    throw Error(cat("[text.tokenize] the output must be written: ", error.what(),
                    " Nothing was kept; free space or name another folder with --output."));
  }
}

}  // namespace fulgur
