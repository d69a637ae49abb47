#!/usr/bin/env bash
# What a newcomer does on the first day, on a bare Debian 12 (as root, or with sudo), with the minutes of each stage:
#
#   scripts/first_day.sh              all parts, in this order
#   scripts/first_day.sh readme       the two commands of README.md: quickstart.sh and test.sh
#   scripts/first_day.sh packages     makes the wheel and the Debian packages, installs them, and trains with both
#   scripts/first_day.sh project      from the wheel: `trainer new`, build, train, resume after a kill, report; with the
#                                     Debian packages too, if `packages` has installed them in the same call
#   scripts/first_day.sh readme packages -- -R format    arguments after -- go to test.sh, and so to ctest
#
# The first part that needs a build makes it by scripts/setup.sh and the preset release. That stays, as do the packages of the
# system; Fulgur's own packages are removed at the end, and so is the temporary folder (in TMPDIR). Needs the network, and
# about 10 GB of disk with all parts. Exits with 1 if a stage fails, and with 2 for wrong arguments.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case " $* " in *" -h "* | *" --help "*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
root="$(repository_root)"
cd "$root"

parts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case "$1" in
    readme | packages | project) parts+=("$1") ;;
    *) die 2 "first_day.sh: unknown argument '$1' (known: readme, packages, project, -- ARGUMENTS OF test.sh)" ;;
  esac
  shift
done
[ $# = 0 ] || shift
test_arguments=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(readme packages project)
has_part() { case " ${parts[*]} " in *" $1 "*) ;; *) return 1 ;; esac; }

own_packages=(libfulgur libfulgur-dev fulgur-tools)
deb_is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
as_root=()
if has_part packages; then
  command -v apt-get >/dev/null || die 2 "first_day.sh: the part packages installs Debian packages, and this system has no apt-get"
  for package in "${own_packages[@]}"; do
    if deb_is_installed "$package"; then die 2 "first_day.sh: $package is installed, and would be replaced. Remove it first: apt-get remove $package"; fi
  done
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die 2 "first_day.sh: installing Debian packages needs root or sudo"
    as_root=(sudo)
  fi
fi
# What another environment has set must not decide which Fulgur and which LibTorch are found.
unset VIRTUAL_ENV CONDA_PREFIX LD_LIBRARY_PATH FULGUR_TORCH fulgur_DIR fulgur_ROOT

work="$(mktemp -d)"
chmod 755 "$work"  # apt reads the packages as another user
installs_debs=0
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=600 "$@" </dev/null; }
finish() {
  [ $installs_debs = 0 ] || apt remove -y "${own_packages[@]}" >/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

# Bytes that this machine has received.
received() { awk -F'[: ]+' '{sub(/^ +/, "")} /:/ && $1 != "lo" {sum += $2} END {printf "%.0f", sum}' /proc/net/dev; }
# KiB of the system's packages, of the build, of LibTorch and the compiler's cache, and of the temporary folder.
occupied() {
  local packages
  packages="$(dpkg-query -W -f '${Installed-Size}\n' 2>/dev/null | awk '{sum += $1} END {printf "%.0f", sum}' || echo 0)"
  local cache="${XDG_CACHE_HOME:-$HOME/.cache}"
  { echo "${packages:-0}"; du -sk "$root/build" "$cache/fulgur" "$cache/ccache" "$work" 2>/dev/null || true; } | awk '{sum += $1} END {printf "%.0f", sum}'
}

rows=()
table() {
  printf '\n%-58s %8s %12s %9s\n' stage minutes "network, MB" "disk, MB"
  [ ${#rows[@]} = 0 ] || printf '%s\n' "${rows[@]}"
}
# stage NAME COMMAND…: runs the command in a subshell, with its output in a file, which is shown if it fails.
stage() {
  local name="$1" code=0 begin bytes kib
  shift
  say "$name"
  begin="$(date +%s)"
  bytes="$(received)"
  kib="$(occupied)"
  set +e
  (set -euo pipefail; "$@") >"$work/log" 2>&1
  code=$?
  set -e
  rows+=("$(printf '%-58s %8s %12s %9s' "$name" "$(awk "BEGIN {printf \"%.2f\", ($(date +%s) - $begin) / 60}")" \
    $((($(received) - bytes) / 1000000)) $((($(occupied) - kib) * 1024 / 1000000)))")
  [ $code = 0 ] && return
  tail -n 60 "$work/log" >&2
  table >&2
  die 1 "first_day.sh: this stage failed with $code: $name"
}

environment="$work/environment"
torch_of_environment() { echo "$environment"/lib/python3*/site-packages/torch; }
made() { find "$work/packages" -name "$1" | sort; }

make_debs() {
  # scripts/package.sh names this package, and does not install it.
  if ! command -v dpkg-shlibdeps >/dev/null; then apt install -y --no-install-recommends dpkg-dev; fi
  scripts/package.sh deb --output "$work/packages"
}
install_wheel() {
  "$(python_for_wheel)" -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check --no-input --no-cache-dir "$(made '*.whl')"
}
# The command of docs/packages.md, interrupted by a kill, and a report. Arguments: how the program is started.
trains() {
  rm -rf "$work/runs"
  mkdir "$work/runs"
  cd "$work/runs"
  "$@" fit --model MlpClassifier --data SyntheticDataModule --optimizer AdamW --trainer.max_epochs 2
  bash "$root/tests/package/kill_and_resume.sh" "$@" fit --model MlpClassifier --data SyntheticDataModule --optimizer AdamW --trainer.max_epochs 30 \
    --seed_everything 1 --trainer.accelerator cpu --trainer.enable_progress_bar false
  "$@" report fulgur_logs --output report.html
  [ -s report.html ]
}
install_debs() {
  # shellcheck disable=SC2046
  apt install -y --no-install-recommends $(made '*.deb')
}

# The commands that `trainer new` printed for the project $1, as they are.
build_project() {
  local commands
  commands="$(sed -n '/^  cd /,/^  build\//{/^  build\//d;p}' "$work/$1.said")"
  cd "$work"
  env -u Torch_DIR -u CMAKE_PREFIX_PATH bash -euc "$commands"
}
new_project() { # NAME PROGRAM…
  local name="$1"
  shift
  cd "$work"
  "$@" new "$name" | tee "$work/$name.said"
}
in_project() { cd "$work/rings" && "$@"; }
rebuild() {
  echo "// A change." >>"$work/rings/src/point_classifier.cpp"
  in_project cmake --build --preset local
}
report_of_project() {
  in_project build/rings report fulgur_logs --output report.html
  [ -s "$work/rings/report.html" ]
}

wheel_from_nothing() {
  if [ -e "$environment/bin/trainer" ]; then return; fi
  stage "make the wheel$([ -e build/release/bin/trainer ] || echo ', after setup.sh and the build')" scripts/package.sh wheel --output "$work/packages"
  stage "wheel: pip install in an environment, with torch" install_wheel
}

if has_part readme; then
  stage "README: scripts/quickstart.sh" scripts/quickstart.sh
  stage "README: scripts/test.sh${test_arguments[*]:+ ${test_arguments[*]}}" scripts/test.sh "${test_arguments[@]}"
fi
if has_part packages; then
  wheel_from_nothing
  stage "wheel: train, resume after a kill, report" trains "$environment/bin/trainer"
  stage "make the Debian packages" make_debs
  installs_debs=1
  stage "deb: apt-get install" install_debs
  stage "deb: train, resume after a kill, report" trains env FULGUR_TORCH="$(torch_of_environment)" trainer
fi
if has_part project; then
  wheel_from_nothing
  stage "project: trainer new" new_project rings "$environment/bin/trainer"
  stage "project: configure and build" build_project rings
  stage "project: its tests" in_project ctest --preset local
  stage "project: build after a change of one file" rebuild
  stage "project: train" in_project build/rings fit --config configs/train.yaml
  stage "project: resume after a kill, as uninterrupted" in_project bash "$root/tests/package/kill_and_resume.sh" build/rings fit \
    --config configs/train.yaml --trainer.max_epochs 200 --trainer.enable_progress_bar false
  stage "project: report" report_of_project
  if [ $installs_debs = 1 ]; then
    stage "deb: trainer new" new_project rings_of_deb env FULGUR_TORCH="$(torch_of_environment)" trainer
    stage "deb: configure and build the project" build_project rings_of_deb
    stage "deb: train" "$work/rings_of_deb/build/rings_of_deb" fit --config "$work/rings_of_deb/configs/train.yaml" --trainer.default_root_dir "$work/runs_of_deb"
  fi
fi
table
