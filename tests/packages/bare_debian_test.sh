#!/usr/bin/env bash
# Installs the packages on a bare Debian 12, a folder that debootstrap makes, and trains with each.
#   bare_debian_test.sh BUILD_DIR WORK_DIR
# Runs only with FULGUR_REQUIRE_PACKAGES=1, since it downloads a system and mounts /proc in it; otherwise it exits with 4 (skipped). Needs
# root's rights, debootstrap, dpkg-dev and the network.
set -euo pipefail
build="$1" work="$2"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
fail() { echo "FAILED: $*" >&2; exit 1; }
[ -n "${FULGUR_REQUIRE_PACKAGES:-}" ] || { echo "skipped: FULGUR_REQUIRE_PACKAGES is not set"; exit 4; }
[ "$(id -u)" = 0 ] || fail "debootstrap needs root's rights"
PATH="$PATH:/usr/sbin:/sbin"
command -v debootstrap >/dev/null || fail "debootstrap is missing"
[ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" = bookworm ] || fail "the packages of this build are not those of Debian 12"

torch="$(sed -n 's/^FULGUR_TORCH_ROOT:[A-Z]*=//p' "$build/CMakeCache.txt")"
site="$(dirname "$torch")"
bare="$work/bare"
rm -rf "$work"
mkdir -p "$bare"
for kind in tarball deb wheel; do
  "$root/scripts/package.sh" "$kind" --build "$build" --output "$work/packages" || { code=$?; [ $code != 4 ] || fail "a tool of scripts/package.sh is missing"; exit $code; }
done
timeout 300 debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$bare" >"$work/debootstrap.log" 2>&1 ||
  { tail -n 5 "$work/debootstrap.log"; fail "debootstrap cannot make a Debian 12 here"; }
cp /etc/resolv.conf "$bare/etc/resolv.conf"
cp /etc/apt/apt.conf.d/*proxy* "$bare/etc/apt/apt.conf.d/" 2>/dev/null || true
mv "$work/packages" "$bare/packages"
mkdir -p "$bare/opt/torch" "$bare/runs"
# Links, since LibTorch has gigabytes; a copy on another file system.
cp -al "$site/." "$bare/opt/torch/" 2>/dev/null || cp -a "$site/." "$bare/opt/torch/"
mounted=0
if mount -t proc proc "$bare/proc" 2>/dev/null || mount --rbind /proc "$bare/proc" 2>/dev/null; then mounted=1; fi
# With /proc in it, the folder must not be removed.
finish() { { [ $mounted = 0 ] || umount -l "$bare/proc"; } && rm -rf "$work"; }
trap finish EXIT

# A command in the bare system, without the variables of this one.
inside() { env -i HOME=/runs PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 OMP_NUM_THREADS=1 ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} chroot "$bare" "$@"; }
trains() {
  local fit=(fit --model MlpClassifier --model.in_features 4 --model.num_classes 3 --data SyntheticDataModule --data.num_classes 3 --data.shape '[4]'
    --optimizer SGD --seed_everything 1 --trainer.max_steps 20 --trainer.accelerator cpu --trainer.default_root_dir "/runs/$1")
  shift
  inside "$@" "${fit[@]}" || fail "the training failed: $*"
  inside "$@" "${fit[@]}" --resume --trainer.max_steps 30 || fail "the resumed training failed: $*"
  # Ranks are started through /proc.
  [ $mounted = 0 ] || inside "$@" "${fit[@]}" --trainer.strategy ddp --trainer.devices 2 --data.batch_size 4 || fail "two ranks failed: $*"
}

# The tarball and the wheel need no packages of the system.
inside tar -xzf "/packages/$(basename "$bare"/packages/*.tar.gz)" -C /opt
tarball="/opt/$(basename "$bare"/packages/*.tar.gz .tar.gz)"
code=0
inside "$tarball/bin/trainer" --version 2>"$work/said" || code=$?
{ [ $code = 2 ] && grep -q "pip install" "$work/said"; } || fail "without LibTorch, the program ends with $code: $(cat "$work/said")"
trains tarball env FULGUR_TORCH=/opt/torch/torch "$tarball/bin/trainer"
inside python3 -m venv /opt/env
echo /opt/torch >"$bare/opt/env/lib/python3.11/site-packages/torch_of_the_build.pth"
inside /opt/env/bin/pip install --no-index "/packages/$(basename "$bare"/packages/*.whl)"
trains wheel /opt/env/bin/trainer
inside apt-get update -qq
inside env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(cd "$bare" && ls packages/*.deb | sed 's#^#/#')
trains deb env FULGUR_TORCH=/opt/torch/torch trainer
inside env FULGUR_TORCH=/opt/torch/torch trainer doctor || [ $? = 1 ] || fail "trainer doctor"
echo "installed and trained with on a bare Debian 12: tarball, wheel, Debian packages"
