#include "modules/checkpoint_tokenizer.h"

#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

void CheckpointTokenizer::set_own(std::string fingerprint, const std::filesystem::path& where) {
  check(fingerprint, where, loaded_);
  own_ = std::move(fingerprint);
  where_ = where;
}

void CheckpointTokenizer::load(std::string fingerprint) {
  check(own_, where_, fingerprint);
  loaded_ = std::move(fingerprint);
}

void CheckpointTokenizer::check(const std::string& own, const std::filesystem::path& where,
                                const std::string& loaded) const {
  if (own.empty() || loaded.empty() || own == loaded) return;
  throw CheckpointError(cat("[", module_, "] the tokenizer must be that of the checkpoint, ", loaded, "; that of '",
                            escape_controls(where.string()), "' is ", own,
                            ". Use the checkpoint's tokenizer, also for token files."));
}

}  // namespace fulgur::detail
