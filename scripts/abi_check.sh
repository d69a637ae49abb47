#!/usr/bin/env bash
# Compares the ABI of two versions of a library: may programs and plug-ins that were built with OLD run with NEW?
#
#   scripts/abi_check.sh OLD NEW            files libfulgur.so, or folders in which one is (unpacked packages, prefixes)
#   scripts/abi_check.sh --symbols OLD NEW  compares only the names of exported functions and data
#
# Exits with 0 if they may, or if the SONAMEs differ, so that what was built with OLD does not start with NEW; with 1 if
# something that OLD exports is missing or differs in NEW, which it lists. Uses abidiff of libabigail (Debian's package
# abigail-tools), which also compares types if the libraries have debug information (preset dev); without abidiff it
# compares the names, as with --symbols, and says so.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case " $* " in *" -h "* | *" --help "*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
only_symbols=0
if [ "${1:-}" = --symbols ]; then only_symbols=1; shift; fi
[ $# = 2 ] || die 2 "abi_check.sh: needs two libraries, OLD and NEW; got $# arguments. See scripts/abi_check.sh --help"

# The library that $1 names, in `library`.
find_library() {
  library="$1"
  if [ -d "$1" ]; then
    library="$(find "$1" -name 'libfulgur.so.*.*.*' -type f -o -name 'libfulgur.so.*.*' -type f | sort | head -n 1)"
    [ -n "$library" ] || die 2 "abi_check.sh: there is no libfulgur.so.X.Y in the folder $1"
  fi
  [ "$(head -c 4 "$library" 2>/dev/null | tail -c 3)" = ELF ] || die 2 "abi_check.sh: $library is no shared library"
}
soname_of() { readelf -d "$1" | sed -n 's/.*(SONAME).*\[\(.*\)\]$/\1/p'; }
# What programs may refer to: functions and data, and the tables of classes. Other weak symbols are inline functions, of
# which each program has its own copy.
exported() { nm -D --defined-only --format=posix "$1" | awk '$2 ~ /^[TDBRiu]$/ || $1 ~ /^_ZT[IV]/ {sub(/@.*/, "", $1); print $1}' | LC_ALL=C sort -u; }

find_library "$1"; old="$library"
find_library "$2"; new="$library"
old_soname="$(soname_of "$old")"
new_soname="$(soname_of "$new")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

compatible=1
if [ $only_symbols = 0 ] && command -v abidiff >/dev/null; then
  status=0
  abidiff --no-added-syms "$old" "$new" >"$work/report" || status=$?
  # Bits: 1 and 2 are errors, 4 is a change, 8 an incompatible change (of types, a human must judge a 4).
  [ $((status & 3)) = 0 ] || { cat "$work/report" >&2; die 2 "abi_check.sh: abidiff failed"; }
  [ $status = 0 ] || { compatible=0; cat "$work/report"; }
else
  [ $only_symbols = 1 ] || say "abidiff is missing (Debian's package abigail-tools): only names are compared, not types"
  exported "$old" >"$work/old"
  exported "$new" >"$work/new"
  LC_ALL=C comm -23 "$work/old" "$work/new" >"$work/removed"
  say "$(wc -l <"$work/old") exported before, $(wc -l <"$work/removed") of them missing now, $(LC_ALL=C comm -13 "$work/old" "$work/new" | wc -l) new"
  if [ -s "$work/removed" ]; then
    compatible=0
    c++filt <"$work/removed" | sed 's/^/  missing: /'
  fi
fi

if [ $compatible = 1 ]; then
  say "compatible: what was built with $old runs with $new"
elif [ "$old_soname" != "$new_soname" ]; then
  say "the ABI differs, and so does the SONAME ($old_soname, $new_soname): what was built with one does not start with the other"
else
  die 1 "abi_check.sh: the ABI differs with the same SONAME, $new_soname. Keep what is missing, or raise the minor version."
fi
