#!/usr/bin/env bash
# Configures a project that contains Fulgur, by add_subdirectory and by FetchContent. Its own file is compiled as the project
# says, and nothing of Fulgur's tests is built.
#   subproject_test.sh CMAKE SOURCE_DIR FOLDER COMPILER
set -euo pipefail
cmake="$1" source="$2" folder="$3" compiler="$4"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

fail() { echo "FAILED: $*" >&2; exit 1; }

rm -rf "$folder"
for fetch in OFF ON; do
  build="$folder/$fetch"
  "$cmake" -S "$here/subproject" -B "$build" -G Ninja "-DCMAKE_CXX_COMPILER=$compiler" "-DFULGUR=$source" -DFETCH=$fetch -DCMAKE_BUILD_TYPE=Release \
    >"$folder.log" 2>&1 || { cat "$folder.log"; fail "configure with FETCH=$fetch"; }
  "$cmake" --build "$build" --target help >"$folder.targets"
  grep -q "trainer" "$folder.targets" || fail "there is no target trainer"
  # The command of the project's file has Fulgur's headers, and none of Fulgur's own warnings and options.
  command="$(tr -d '\n' <"$build/compile_commands.json" | grep -o '"command": "[^"]*my_module.cpp"' | tail -n 1)"
  [ -n "$command" ] || fail "no command for my_module.cpp"
  case "$command" in *-Werror* | *-Wshadow* | *ggc-min-heapsize*) fail "options of Fulgur's own code: $command" ;; esac
  case "$command" in *core/include*) ;; *) fail "no headers of Fulgur: $command" ;; esac
done
rm -rf "$folder"
