#!/usr/bin/env bash
# Prepares a release: checks the repository, writes the version and the date, commits and tags. It pushes nothing.
# docs/releasing.md is the checklist.
#
#   scripts/release.sh --check 0.2.0     only says what is missing
#   scripts/release.sh 0.2.0
#
# The commit changes the version in CMakeLists.txt and the recipe of vcpkg, and turns [Unreleased] of CHANGELOG.md into a section
# of the version.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case " $* " in *" -h "* | *" --help "*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
cd "$(repository_root)"

check_only=0
if [ "${1:-}" = --check ]; then check_only=1; shift; fi
version="${1:-}"
[[ $version =~ ^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$ ]] && [ $# = 1 ] ||
  die 2 "release.sh: needs a version such as 0.2.0; got '$*'"

present="$(sed -n 's/^project(fulgur VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)"
[ -n "$present" ] || die 1 "release.sh: CMakeLists.txt has no line 'project(fulgur VERSION …'"

missing=()
[ -z "$(git status --porcelain)" ] || missing+=("the working tree has changes; commit or remove them")
! git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null || missing+=("the tag v$version exists")
# The version of the first release is already there.
if [ "$version" != "$present" ] && [ "$(printf '%s\n%s\n' "$present" "$version" | sort -V | tail -n 1)" = "$present" ]; then
  missing+=("$version is not newer than $present")
fi
# What stands between [Unreleased] and the next section.
unreleased="$(sed -n '/^## \[Unreleased\]/,/^## \[[0-9]/{/^## /d;p;}' CHANGELOG.md | grep -c '^- ' || true)"
[ "$unreleased" -gt 0 ] || missing+=("CHANGELOG.md has nothing under [Unreleased]")
! grep -q "^## \[$version\]" CHANGELOG.md || missing+=("CHANGELOG.md already has a section [$version]")
if [ ${#missing[@]} -gt 0 ]; then
  printf 'release.sh: %s\n' "${missing[@]}" >&2
  exit 1
fi
say "$present → $version, with $unreleased changes"
[ $check_only = 0 ] || exit 0

sed -i "s/^project(fulgur VERSION [0-9.]*/project(fulgur VERSION $version/" CMakeLists.txt
sed -i "s/^## \[Unreleased\]$/## [Unreleased]\n\n## [$version] - $(date -u +%Y-%m-%d)/" CHANGELOG.md
recipe=packaging/vcpkg/fulgur/vcpkg.json
sed -i "s/\"version-semver\": \"[0-9.]*\"/\"version-semver\": \"$version\"/" "$recipe"
git commit --quiet -m "Release $version" -- CMakeLists.txt CHANGELOG.md "$recipe"
git tag --annotate "v$version" -m "Fulgur $version"
say "committed and tagged v$version; continue with docs/releasing.md, then: git push --follow-tags"
