#!/usr/bin/env bash
# Fuzzes the readers of foreign files with clang's libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer. They do
# not use LibTorch, so a build takes a minute.
#
#   scripts/fuzz.sh                          each target for 60 seconds
#   scripts/fuzz.sh --seconds 600 idx config these, for longer
#
# Starts from tests/fuzz/corpus, which ctest also replays in the normal build, and keeps new inputs in build/fuzz/corpus.
# After a finding it exits with 1, and the input is in build/fuzz: add it to tests/fuzz/corpus together with the fix.
# Needs clang and its run-time library (Debian: clang, and libclang-rt-14-dev or the version for that clang).
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$(repository_root)"

all=(config csv_table idx images npy_header pytorch_pickle pytorch_zip run_log safetensors_header shard_index sweep tokenizer)
seconds=60
targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds) seconds="${2:?--seconds needs a number}"; shift 2 ;;
    -*) die 2 "fuzz.sh: unknown argument '$1' (--seconds N, or targets: ${all[*]})" ;;
    *)
      case " ${all[*]} " in *" $1 "*) targets+=("$1") ;; *) die 2 "fuzz.sh: unknown target '$1' (${all[*]})" ;; esac
      shift ;;
  esac
done
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")

cxx="${FUZZ_CXX:-clang++}"
command -v "$cxx" >/dev/null || die 2 "fuzz.sh: needs clang with libFuzzer; install clang, or name one with FUZZ_CXX"

core=(core/src/text/errors.cpp core/src/text/text.cpp)
sources_of() {
  case "$1" in
    safetensors_header) echo tests/fuzz/safetensors_header.cpp checkpoint/src/formats/safetensors_header.cpp checkpoint/src/io/element_bytes.cpp ;;
    pytorch_*) echo tests/fuzz/pytorch.cpp checkpoint/src/formats/{pickle_reader,pickle_writer,pytorch_archive,zip_reader}.cpp core/src/system/{durable_file,system_calls}.cpp ;;
    images) echo tests/fuzz/images.cpp images/src/decoding/{exif,image_reader,jpeg_reader,pixel_rows,png_reader,webp_reader}.cpp ;;
    idx) echo tests/fuzz/idx.cpp data/src/datasets/idx.cpp ;;
    config) echo tests/fuzz/config.cpp core/src/options/{config_node,field_traits,interval,options,scalar_text,yaml_writer}.cpp trainer/src/config/{interpolate,merge,yaml}.cpp ;;
    run_log) echo tests/fuzz/run_log.cpp history/src/reading/{json_row,row_reader}.cpp core/src/text/csv_format.cpp ;;
    shard_index) echo tests/fuzz/shard_index.cpp checkpoint/src/formats/shard_index.cpp ;;
    csv_table) echo tests/fuzz/csv_table.cpp tables/src/reading/csv_file.cpp tables/src/columns/cell_text.cpp core/src/text/csv_format.cpp ;;
    npy_header) echo tests/fuzz/npy_header.cpp tables/src/arrays/npy_header.cpp ;;
    sweep) echo tests/fuzz/sweep.cpp history/src/sweep/{points,sweep_schedule,sweep_spec,sweep_state,sweep_trials}.cpp history/src/reading/config_keys.cpp core/src/options/{config_node,field_traits,interval,options,scalar_text,yaml_writer}.cpp core/src/system/regular_file.cpp trainer/src/config/yaml.cpp ;;
    tokenizer) echo tests/fuzz/tokenizer.cpp text/src/read_tokenizer.cpp text/src/{tokenizers/added_tokens,tokenizers/byte_bpe,tokenizers/byte_characters,tokenizers/composed_tokenizer,tokenizers/parts_json,tokenizers/word_piece,unicode/characters,words/bert_words,words/gpt2_words,words/gpt4_words}.cpp core/src/system/regular_file.cpp ;;
  esac
}

# shellcheck disable=SC2054
flags=(-std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Wall -Wextra
  -Icore/include -Icore/internal -Icore/src -Ihistory/include -Ihistory/internal -Ihistory/src -Itests -Icheckpoint/include -Icheckpoint/internal -Icheckpoint/src -Idata/src -Itables/include -Itables/src -Iimages/src -Itrainer/include -Itrainer/src -Itests/fuzz -Itext/include -Itext/src)
mkdir -p build/fuzz
failed=()
for target in "${targets[@]}"; do
  say "building $target"
  # shellcheck disable=SC2046
  "$cxx" "${flags[@]}" -DFULGUR_FUZZ_TARGET="$target" tests/fuzz/libfuzzer_main.cpp $(sources_of "$target") "${core[@]}" \
    -lzip -lz -lyaml-cpp -lutf8proc -ljpeg -lpng -lwebp -o "build/fuzz/$target"
  mkdir -p "build/fuzz/corpus/$target"
  dictionary=()
  [ ! -e "tests/fuzz/$target.dict" ] || dictionary=(-dict="tests/fuzz/$target.dict")
  say "fuzzing $target for $seconds s"
  if ! "build/fuzz/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 -verbosity=1 \
    "${dictionary[@]}" -artifact_prefix="build/fuzz/$target-" "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target" >"build/fuzz/$target.log" 2>&1; then
    failed+=("$target")
    tail -n 40 "build/fuzz/$target.log"
  fi
  grep -hE '^(stat::number_of_executed_units|stat::peak_rss_mb)' "build/fuzz/$target.log" || true
done
[ ${#failed[@]} -eq 0 ] || die 1 "fuzz.sh: findings in ${failed[*]}; the inputs are in build/fuzz"
say "no findings"
