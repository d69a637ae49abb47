#include "tokenizing/tokenize_verb.h"

#include <glob.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string_view>
#include <system_error>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/text/token_files.h"
#include "print.h"

namespace fulgur::cli {
namespace fs = std::filesystem;

namespace {

constexpr const char* kDefaultSeparator = "<|endoftext|>";
constexpr double kProgressEvery_s = 5;

volatile std::sig_atomic_t received_signal = 0;

void on_tokenize_signal(int signal) {
  // A second one ends the process at once.
  if (received_signal != 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  received_signal = signal;
}

// SIGINT, SIGTERM and SIGHUP are remembered, so that what is incomplete is removed.
class RememberSignals {
 public:
  RememberSignals() {
    received_signal = 0;
    for (size_t i = 0; i < 3; ++i) before_[i] = std::signal(kSignals[i], on_tokenize_signal);
    // What was ignored, as nohup ignores SIGHUP, stays so.
    for (size_t i = 0; i < 3; ++i)
      if (before_[i] == SIG_IGN) std::signal(kSignals[i], SIG_IGN);
  }
  ~RememberSignals() {
    for (size_t i = 0; i < 3; ++i)
      if (before_[i] != SIG_ERR) std::signal(kSignals[i], before_[i]);
  }
  RememberSignals(const RememberSignals&) = delete;
  RememberSignals& operator=(const RememberSignals&) = delete;
  static void throw_if_any() {
    if (const int signal = received_signal; signal != 0) throw Interrupted(signal);
  }

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  void (*before_[3])(int) = {};
};

std::vector<fs::path> matching_files(const std::vector<std::string>& patterns) {
  std::vector<fs::path> files;
  for (const std::string& pattern : patterns) {
    std::error_code none;
    if (pattern.find_first_of("*?[") == std::string::npos || fs::exists(pattern, none)) {
      files.emplace_back(pattern);
      continue;
    }
    glob_t found{};
    const int failure = ::glob(pattern.c_str(), 0, nullptr, &found);
    for (size_t i = 0; failure == 0 && i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
    ::globfree(&found);
    if (failure != 0)
      throw DataError(cat("[cli.tokenize] --input must name files; no file matches '", escape_controls(pattern), "'."));
  }
  return files;
}

// Logs how far the work is, every few seconds.
class TokenizeProgressLog {
 public:
  TokenizeProgressLog(std::string_view what, bool quiet) : what_(what), quiet_(quiet) {}
  void tell(const TokenizeProgress& progress) {
    const Clock::time_point now = Clock::now();
    if (quiet_ || seconds(last_, now) < kProgressEvery_s) return;
    last_ = now;
    const double megabytes = static_cast<double>(progress.bytes) / 1e6;
    log::info(cat(what_, ": ", format_fixed(megabytes, 0), " of ",
                  format_fixed(static_cast<double>(progress.all_bytes) / 1e6, 0), " MB, ",
                  counted(progress.documents, "document"), ", ", format_count(progress.tokens), " tokens, ",
                  format_fixed(megabytes / seconds(start_, now), 1), " MB/s"));
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }
  std::string what_;
  bool quiet_;
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

std::shared_ptr<const Tokenizer> trained(const TokenizeArguments& arguments, DocumentFiles documents, bool quiet) {
  TokenizerTrainer::Options options;
  options.model = *arguments.train == "bpe" ? TokenizerTrainer::Model::bpe : TokenizerTrainer::Model::wordpiece;
  if (arguments.vocab_size) options.vocab_size = *arguments.vocab_size;
  const bool bpe = options.model == TokenizerTrainer::Model::bpe;
  if (!bpe) options.special_tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  if (bpe && !arguments.separator) documents.separator = kDefaultSeparator;
  if (!documents.separator.empty() &&
      std::ranges::find(options.special_tokens, documents.separator) == options.special_tokens.end())
    options.special_tokens.push_back(documents.separator);
  TokenizerTrainer trainer(std::move(options));
  TokenizeProgressLog progress("train", quiet);
  add_documents(documents, trainer, [&](const TokenizeProgress& now) { progress.tell(now); });
  return trainer.train();
}

void check_arguments(const CommandLine& command) {
  const TokenizeArguments& arguments = command.tokenize;
  if (!command.sources.overrides.empty() || !command.sources.files.empty())
    throw ConfigError("[cli.tokenize] tokenize reads no config; leave out --config and keys of the config.");
  if (arguments.tokenizer.has_value() == arguments.train.has_value())
    throw ConfigError(cat("[cli.tokenize] either --tokenizer or --train must be given; ",
                          arguments.train ? "both are" : "neither is", "."));
  if (arguments.vocab_size && !arguments.train)
    throw ConfigError("[cli.tokenize] --vocab_size is for --train; a tokenizer that is read has its own size.");
  if (!(arguments.val_fraction >= 0 && arguments.val_fraction < 1))
    throw ConfigError(cat("[cli.tokenize] --val_fraction must be in [0, 1); it is ", arguments.val_fraction, "."));
  std::error_code none;
  if (fs::exists(fs::symlink_status(*command.output, none)))
    throw ConfigError(cat("[cli.tokenize] --output must be a new folder; '", escape_controls(command.output->string()),
                          "' exists. Remove it, or name another one."));
}

// The part for validation begins with a document, so that it may be far longer than asked for.
void warn_of_long_validation(const TokenFilesInfo& info, double asked) {
  const auto all = static_cast<double>(info.tokens), val = static_cast<double>(info.tokens - info.train_tokens);
  if (!(asked > 0) || val <= 2 * asked * all) return;
  log::warn(
      "cli.long_validation_part",
      cat("the part for validation has ", format_fixed(100 * val / all, 1), " % of the tokens, and --val_fraction ",
          asked, " asks for ", format_fixed(100 * asked, 1),
          " %: the part begins with a document, and a document at the end is long. To divide the texts exactly, join "
          "them to one file, without separators; or divide long texts into documents by separators."));
}

}  // namespace

ExitCode tokenize(const CommandLine& command) {
  check_arguments(command);
  const TokenizeArguments& arguments = command.tokenize;
  DocumentFiles documents{.inputs = matching_files(arguments.inputs),
                          .jsonl_field = arguments.jsonl,
                          .csv_column = arguments.csv,
                          .separator = arguments.separator.value_or("")};
  const std::shared_ptr<const Tokenizer> tokenizer =
      arguments.train ? trained(arguments, documents, command.quiet) : read_tokenizer(*arguments.tokenizer);
  if (!arguments.separator && tokenizer->id_of(kDefaultSeparator)) documents.separator = kDefaultSeparator;
  const RememberSignals signals;
  TokenizeProgressLog progress("tokenize", command.quiet);
  const TokenFilesInfo info = write_token_files(documents, *tokenizer, *command.output, arguments.val_fraction,
                                                [&](const TokenizeProgress& now) {
                                                  RememberSignals::throw_if_any();
                                                  progress.tell(now);
                                                });
  if (!command.quiet)
    log::info(cat("tokenize: ", counted(info.documents, "document"), ", ", info.tokens, " tokens of ",
                  8 * info.bytes_per_token, " bits, a vocabulary of ", info.vocab_size, "; ",
                  info.tokens - info.train_tokens, " tokens are for validation"));
  warn_of_long_validation(info, arguments.val_fraction);
  print(escape_controls(command.output->string()) + "\n");
  return ExitCode::ok;
}

}  // namespace fulgur::cli
