#!/usr/bin/env bash
# site_test.sh TRAINER FOLDER: the site is built, complete, and free of links that lead nowhere. Exits with 4 (skipped) if the
# Python packages of the site or doxygen are missing; with FULGUR_REQUIRE_SITE=1 the packages are installed, and all must work.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
if [ -z "${FULGUR_REQUIRE_SITE:-}" ]; then
  export FULGUR_SITE_NO_INSTALL=1
  command -v doxygen >/dev/null || { echo "doxygen is missing"; exit 4; }
fi
rm -rf "$2"
"$root/scripts/site.sh" --output "$2" --trainer "$1"
fail() { echo "site_test.sh: $1"; exit 1; }
for page in index get_started coming_from_libtorch reference/trainer reference/callback/ModelCheckpoint api/core/contracts/module; do
  [ -s "$2/$page.html" ] || fail "there is no page $page"
done
grep -q 'save_<wbr>top_<wbr>k' "$2/reference/callback/ModelCheckpoint.html" || fail "the options of ModelCheckpoint are missing"
grep -q 'training_step' "$2/api/core/contracts/module.html" || fail "the functions of LightningModule are missing"
grep -q 'api/core/contracts/module.html' "$2/search/search_index.js" || fail "the search does not know the API"
# A folder that is no site is not replaced.
mkdir -p "$2.other" && touch "$2.other/file"
if "$root/scripts/site.sh" --output "$2.other" --trainer "$1" 2>"$2.other/said"; then fail "a folder of others was replaced"; fi
grep -q 'is no site' "$2.other/said" || fail "the message is another one: $(cat "$2.other/said")"
