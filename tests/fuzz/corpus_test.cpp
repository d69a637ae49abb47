// What fuzzing began with, and what it found, through the normal build.
#include <catch2/catch_test_macros.hpp>
#include <filesystem>

#include "support/temporary_folder.h"
#include "targets.h"

namespace corpus_test {

using namespace fulgur::test;
namespace fs = std::filesystem;
namespace fuzz = fulgur::fuzz;

namespace {

void replay(const char* target, void (*run)(std::string_view)) {
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(__FILE__).parent_path() / "corpus" / target)) {
    INFO(entry.path().filename().string());
    const std::string whole = read_text(entry.path());
    CHECK_NOTHROW(run(whole));
    ++files;
    // Near it: cut short, and with single bytes changed.
    for (size_t i = 0; i < whole.size(); i += 1 + whole.size() / 200) {
      CHECK_NOTHROW(run(std::string_view(whole).substr(0, i)));
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ 1 << i % 8);
      CHECK_NOTHROW(run(changed));
    }
  }
  CHECK(files >= 5);
}

}  // namespace

TEST_CASE("the corpus of the safetensors header") { replay("safetensors_header", fuzz::safetensors_header); }
TEST_CASE("the corpus of the pickle of .pt files") { replay("pytorch_pickle", fuzz::pytorch_pickle); }
TEST_CASE("the corpus of .pt files") { replay("pytorch_zip", fuzz::pytorch_zip); }
TEST_CASE("the corpus of the idx reader") { replay("idx", fuzz::idx); }
TEST_CASE("the corpus of the image readers") { replay("images", fuzz::images); }
TEST_CASE("the corpus of the config loader") { replay("config", fuzz::config); }
TEST_CASE("the corpus of the logs of runs") { replay("run_log", fuzz::run_log); }
TEST_CASE("the corpus of indexes of shards") { replay("shard_index", fuzz::shard_index); }
TEST_CASE("the corpus of sweeps") { replay("sweep", fuzz::sweep); }
TEST_CASE("the corpus of tokenizers") { replay("tokenizer", fuzz::tokenizer); }
TEST_CASE("the corpus of CSV tables") { replay("csv_table", fuzz::csv_table); }
TEST_CASE("the corpus of arrays of NumPy") { replay("npy_header", fuzz::npy_header); }

}  // namespace corpus_test
