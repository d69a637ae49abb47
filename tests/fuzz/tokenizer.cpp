#include "fulgur/text/tokenizer.h"

#include <memory>
#include <string>

#include "fulgur/core/text/errors.h"
#include "targets.h"

namespace fulgur::fuzz {

// A tokenizer.json.
void tokenizer(std::string_view input) {
  std::shared_ptr<const Tokenizer> read;
  try {
    read = tokenizer_from_json(input, "input");
  } catch (const DataError&) {
    return;
  }
  expect(tokenizer_from_json(read->json(), "again")->fingerprint() == read->fingerprint(),
         "what is written is read as the same tokenizer");
  for (const std::string_view text : {"", "ab  a",
                                      "\xc3\x84"
                                      "b\xcc\x81 [x] <s>\tba",
                                      "\xe4\xbd\xa0'll 1.", "\xff"}) {
    try {
      const auto ids = read->encode(text);
      for (const int32_t id : ids) expect(id >= 0 && id < read->vocab_size(), "ids are in the vocabulary");
      const auto all = read->with_special_tokens(ids);
      expect(all.size() == ids.size() + static_cast<size_t>(read->num_special_tokens()), "special tokens are counted");
      static_cast<void>(read->decode(all, false));
      expect(read->last_cut(text) <= text.size(), "a cut is in the text");
    } catch (const DataError&) {
      expect(text == "\xff", "only what is not UTF-8 is refused");
    }
  }
}

}  // namespace fulgur::fuzz
