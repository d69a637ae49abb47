#!/usr/bin/env bash
# Builds the site of the documentation, which needs no server and no network to be read: open build/site/index.html.
#
#   scripts/site.sh [--output FOLDER] [--trainer PROGRAM] [--no-api]
#
# --output    where the site goes; default: build/site. The folder is replaced.
# --trainer   the program whose components the pages of options describe; default: build/release/bin/trainer
# --no-api    without the pages of the API, which need doxygen (Debian's package)
#
# Warnings of MkDocs, links that lead nowhere and resources on other machines are errors. The Python packages
# (docs/site/requirements.txt) go to the cache folder of scripts/setup.sh; with FULGUR_SITE_NO_INSTALL=1 they are not
# installed, and the script exits with 4 if they are missing.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
root="$(repository_root)"
output="$root/build/site"
trainer="$root/build/release/bin/trainer"
api=1
while [ $# -gt 0 ]; do
  case "$1" in
    --output | --trainer)
      [ $# -ge 2 ] || die 2 "site.sh: $1 needs a value"
      if [ "$1" = --output ]; then output="$(realpath -m "$2")"; else trainer="$2"; fi
      shift 2 ;;
    --no-api) api=0; shift ;;
    *) die 2 "site.sh: unknown argument '$1' (known: --output FOLDER, --trainer PROGRAM, --no-api)" ;;
  esac
done
trainer="$(command -v "$trainer")" || die 2 "site.sh: there is no program $trainer, whose components the pages describe. Build it (scripts/quickstart.sh), or name one with --trainer."
trainer="$(realpath "$trainer")"
cd "$root"
[ $api = 0 ] || command -v doxygen >/dev/null || die 2 "site.sh: doxygen is missing, which reads the comments of the headers: install Debian's package doxygen, or leave the API out with --no-api."
if [ -e "$output" ] && [ -n "$(ls -A "$output")" ] && ! grep -qs '<meta name="description" content="Trains LibTorch models' "$output/index.html"; then
  die 2 "site.sh: $output is no site that this script has made, and would be replaced. Name another folder with --output."
fi

cached_environment site docs/site/requirements.txt "${FULGUR_SITE_NO_INSTALL:-}" MkDocs \
  "site.sh: the Python packages of docs/site/requirements.txt are not installed" \
  "site.sh: a Python from 3.10 to 3.14 with venv is missing: install Debian's packages python3 and python3-venv"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
xml=()
if [ $api = 1 ]; then
  say "reading the headers"
  { cat docs/Doxyfile
    echo "INPUT = $(printf '%s ' */include)"
    printf '%s\n' 'FILE_PATTERNS = *.h' 'GENERATE_HTML = NO' 'GENERATE_XML = YES' 'XML_PROGRAMLISTING = NO' 'WARNINGS = NO' "OUTPUT_DIRECTORY = $work"
  } | doxygen - >/dev/null
  xml=("$work/xml")
fi
say "writing the pages"
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=docs/site NO_MKDOCS_2_WARNING=1
"$environment/bin/python" docs/site/stage_pages.py . "$work/stage" "$work/site" "$trainer" "${xml[@]}"
"$environment/bin/mkdocs" build --strict --quiet -f "$work/stage/mkdocs.yml"
"$environment/bin/python" docs/site/check_site.py "$work/site"
rm -rf "$output"
mkdir -p "$(dirname "$output")"
mv "$work/site" "$output"
say "the site: $output/index.html"
