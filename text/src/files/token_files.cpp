#include "fulgur/text/token_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "files/token_file_names.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/system/unique_fd.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 58;

[[noreturn]] void damaged(const std::filesystem::path& path, std::string_view rule, std::string_view found) {
  throw DataError(cat("[text.TokenFiles] '", escape_controls(path.string()), "' ", rule, "; ", found,
                      ". Write the folder again with `trainer tokenize`."));
}

// A file that is mapped into memory.
class MappedFile {
 public:
  MappedFile(const std::filesystem::path& path, int64_t bytes) : path_(path) {
    const detail::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat about {};
    if (!fd || ::fstat(fd.get(), &about) != 0) damaged(path, "must be a file that can be read", std::strerror(errno));
    if (!S_ISREG(about.st_mode)) damaged(path, "must be a regular file", "it is not one");
    if (about.st_size != bytes)
      damaged(path, cat("must have ", bytes, " bytes, as ", detail::kInfoName, " says"), cat("it has ", about.st_size));
    bytes_ = static_cast<size_t>(bytes);
    void* mapped = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (mapped == MAP_FAILED) damaged(path, "must be mapped into memory", std::strerror(errno));
    data_ = static_cast<const unsigned char*>(mapped);
  }
  ~MappedFile() { ::munmap(const_cast<unsigned char*>(data_), bytes_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }
  void check(uint32_t expected) const {
    const auto found = static_cast<uint32_t>(::crc32_z(0, data_, bytes_));
    if (found != expected)
      damaged(path_, cat("must have the checksum ", expected, ", as ", detail::kInfoName, " says"),
              cat("it has ", found));
  }

 private:
  std::filesystem::path path_;
  const unsigned char* data_ = nullptr;
  size_t bytes_ = 0;
};

TokenFilesInfo read_info(const std::filesystem::path& path) {
  std::optional<std::string> text;
  try {
    std::error_code none;
    if (std::filesystem::file_size(path, none) > (1u << 20) && !none)
      damaged(path, "must be small", "it is above 1 MiB");
    text = read_regular_file(path);
  } catch (const DataError&) {
    throw;
  } catch (const Error& error) {
    damaged(path, "must be a file that can be read", error.what());
  }
  if (!text)
    throw DataError(cat("[text.TokenFiles] path must be a folder of `trainer tokenize`; there is no '",
                        escape_controls(path.string()), "'."));
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  // The text of an entry; empty if it is not a text. Nested values are neither copied nor written, as they may be deep.
  const auto text_of = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (!json.is_object() || text_of("format") != detail::kFormatName)
    damaged(path, cat("must be JSON with the format '", detail::kFormatName, "'"), "it is not");
  const auto whole = [&](const char* key, int64_t least, int64_t most) {
    const auto found = json.find(key);
    const bool good = found != json.end() && found->is_number_integer() &&
                      !(found->is_number_unsigned() && found->get<uint64_t>() > static_cast<uint64_t>(most)) &&
                      found->get<int64_t>() >= least && found->get<int64_t>() <= most;
    if (!good)
      damaged(path, cat("must have '", key, "' in [", least, ", ", most, "]"),
              found == json.end() ? std::string("it is absent")
                                  : cat("it has another value, of type ", found->type_name()));
    return found->get<int64_t>();
  };
  if (whole("version", 0, kMostTokens) != 1)
    damaged(path, "must have version 1", "it has another one, which this Fulgur does not read");
  TokenFilesInfo info;
  info.tokens = whole("tokens", 1, kMostTokens);
  info.documents = whole("documents", 1, info.tokens);
  info.train_tokens = whole("train_tokens", 0, info.tokens);
  info.vocab_size = whole("vocab_size", 1, int64_t{1} << 31);
  info.tokens_checksum = static_cast<uint32_t>(whole("tokens_crc32", 0, 0xffffffff));
  info.documents_checksum = static_cast<uint32_t>(whole("documents_crc32", 0, 0xffffffff));
  info.bytes_per_token = info.vocab_size <= 65536 ? 2 : 4;
  const char* dtype = info.bytes_per_token == 2 ? "uint16" : "uint32";
  if (text_of("dtype") != dtype)
    damaged(path, cat("must have the dtype ", dtype, " for ", info.vocab_size, " tokens of the vocabulary"),
            cat("it has '", escape_controls(text_of("dtype").substr(0, 40)), "'"));
  if (json.contains("separator") && !json["separator"].is_null())
    info.separator = whole("separator", 0, info.vocab_size - 1);
  info.tokenizer = text_of("tokenizer");
  if (info.tokenizer.empty()) damaged(path, "must have the fingerprint of its 'tokenizer'", "it has none");
  return info;
}

}  // namespace

struct TokenFiles::Impl {
  explicit Impl(const std::filesystem::path& from)
      : folder(from),
        info(read_info(from / detail::kInfoName)),
        tokens(from / detail::kTokensName, info.tokens * info.bytes_per_token),
        documents(from / detail::kDocumentsName, (info.documents + 1) * static_cast<int64_t>(sizeof(uint64_t))) {}

  template <class T>
  void copy(int64_t begin, int64_t count, int64_t* to) const {
    const T* from = tokens.as<T>() + begin;
    T most = 0;
    for (int64_t i = 0; i < count; ++i) {
      most = std::max(most, from[i]);
      to[i] = static_cast<int64_t>(from[i]);
    }
    if (static_cast<int64_t>(most) >= info.vocab_size)
      damaged(folder / detail::kTokensName, cat("must have tokens below vocab_size, ", info.vocab_size),
              cat("of tokens ", begin, " to ", begin + count - 1, " one is ", most));
  }

  std::filesystem::path folder;
  TokenFilesInfo info;
  MappedFile tokens, documents;
};

TokenFiles::TokenFiles(const std::filesystem::path& folder) : impl_(std::make_unique<Impl>(folder)) {}
TokenFiles::~TokenFiles() = default;

const std::filesystem::path& TokenFiles::folder() const { return impl_->folder; }
const TokenFilesInfo& TokenFiles::info() const { return impl_->info; }

void TokenFiles::read(int64_t begin, int64_t count, int64_t* to) const {
  if (begin < 0 || count < 0 || begin > impl_->info.tokens || count > impl_->info.tokens - begin)
    throw DataError(cat("[text.TokenFiles] tokens to read must be in [0, ", impl_->info.tokens, "); got ", count,
                        " from ", begin, " on."));
  if (impl_->info.bytes_per_token == 2)
    impl_->copy<uint16_t>(begin, count, to);
  else
    impl_->copy<uint32_t>(begin, count, to);
}

int64_t TokenFiles::document_end(int64_t at) const {
  const auto* begins = impl_->documents.as<uint64_t>();
  const auto* end = begins + impl_->info.documents;
  const auto* next = std::upper_bound(begins, end, static_cast<uint64_t>(at));
  return next == end ? impl_->info.tokens : static_cast<int64_t>(*next);
}

void TokenFiles::check_documents() const {
  const auto* begins = impl_->documents.as<uint64_t>();
  const auto count = static_cast<size_t>(impl_->info.documents);
  const auto fail = [&](std::string_view found) {
    damaged(impl_->folder / detail::kDocumentsName, "must have the beginnings of documents in order", found);
  };
  if (begins[0] != 0) fail(cat("the first document begins at ", begins[0]));
  for (size_t i = 0; i < count; ++i)
    if (begins[i] >= begins[i + 1])
      fail(cat("document ", i, " begins at ", begins[i], ", and ends at ", begins[i + 1]));
  if (begins[count] != static_cast<uint64_t>(impl_->info.tokens)) fail(cat("the last one ends at ", begins[count]));
}

void TokenFiles::check_checksums() const {
  impl_->tokens.check(impl_->info.tokens_checksum);
  impl_->documents.check(impl_->info.documents_checksum);
}

std::shared_ptr<const Tokenizer> TokenFiles::tokenizer() const {
  auto tokenizer = read_tokenizer(impl_->folder / detail::kTokenizerName);
  if (tokenizer->fingerprint() != impl_->info.tokenizer)
    damaged(impl_->folder / detail::kTokenizerName,
            cat("must be the tokenizer of the tokens, with the fingerprint ", impl_->info.tokenizer),
            "it has " + tokenizer->fingerprint());
  return tokenizer;
}

}  // namespace fulgur
