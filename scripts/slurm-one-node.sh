#!/usr/bin/env bash
# Runs COMMAND beside a Slurm cluster of one node: its own munged, slurmctld and slurmd, in a temporary folder, on the
# loopback interface only. srun, sbatch and scontrol in COMMAND talk to it (SLURM_CONF). Everything that was started is
# stopped at the end. Returns the code of COMMAND, or 77 with a reason on stderr if such a cluster cannot start here.
#
#   scripts/slurm-one-node.sh srun -n 2 env
#
# FULGUR_SLURM_CPUS=N     processors that the node claims to have (default 8): tasks are allowed to share real ones
# FULGUR_SLURM_KEEP=1     keeps the folder with the logs
set -euo pipefail

[ $# -gt 0 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
skip() { echo "slurm-one-node.sh: skipped: $*" >&2; exit 77; }

PATH="$PATH:/usr/sbin:/sbin"
for tool in munged munge slurmctld slurmd srun sinfo; do
  command -v "$tool" >/dev/null || skip "$tool is missing (packages munge slurmctld slurmd slurm-client)"
done
[ "$(id -u)" = 0 ] || skip "slurmd must run as root"

# munged requires folders that no other user can write, all the way up to /.
dir="$(mktemp -d "${TMPDIR:-/tmp}/fulgur-slurm.XXXXXX")"
chmod 755 "$dir"
started=()

# shellcheck disable=SC2317  # called by the trap
stop_all() {
  local pid i
  for ((i = ${#started[@]} - 1; i >= 0; --i)); do
    pid="${started[i]}"
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  # Daemons of steps outlive slurmd; this folder in their environment distinguishes them from others.
  for proc in /proc/[0-9]*; do
    if tr '\0' '\n' 2>/dev/null <"$proc/environ" | grep -qxF "SLURM_CONF=$dir/slurm.conf" &&
      [ "${proc#/proc/}" != $$ ]; then kill -KILL "${proc#/proc/}" 2>/dev/null || true; fi
  done
  if [ -n "${FULGUR_SLURM_KEEP:-}" ]; then echo "slurm-one-node.sh: kept $dir" >&2; else rm -rf "$dir"; fi
}
trap stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

give_up() {  # REASON LOG: skips, after printing the last lines of a log
  echo "slurm-one-node.sh: the end of $(basename "$2"):" >&2
  tail -n 5 "$2" >&2 || true
  skip "$1"
}

free_ports() {
  python3 - "$1" <<'PY'
import socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in held:
    s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in held))
PY
}
read -r ctld_port slurmd_port <<<"$(free_ports 2)"
name="$(hostname -s)"

mkdir -m 700 "$dir/munge"
mkdir "$dir/state" "$dir/spool"
dd if=/dev/urandom of="$dir/munge/key" bs=128 count=1 status=none
chmod 400 "$dir/munge/key"
chmod 755 "$dir/munge"
munged --foreground --force --num-threads=2 --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
  --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" >"$dir/munged.out" 2>&1 &
started+=($!)
for _ in $(seq 50); do [ -S "$dir/munge/socket" ] && break; sleep 0.1; done
munge --socket="$dir/munge/socket" --no-input >/dev/null 2>&1 || give_up "munged does not answer" "$dir/munged.out"

# No cgroups and no accounting, since a container may lack them.
cat >"$dir/slurm.conf" <<CONF
ClusterName=fulgur
SlurmctldHost=$name(127.0.0.1)
SlurmctldPort=$ctld_port
SlurmdPort=$slurmd_port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=sched_interval=1
KillWait=5
NodeName=$name NodeAddr=127.0.0.1 CPUs=${FULGUR_SLURM_CPUS:-8} State=UNKNOWN
PartitionName=all Nodes=$name Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
CONF
printf 'CgroupAutomount=no\n' >"$dir/cgroup.conf"
export SLURM_CONF="$dir/slurm.conf"

slurmctld -D -f "$SLURM_CONF" >"$dir/slurmctld.out" 2>&1 &
started+=($!)
slurmd -D -f "$SLURM_CONF" -N "$name" >"$dir/slurmd.out" 2>&1 &
started+=($!)
ready=0
for _ in $(seq 150); do
  [ "$(sinfo -h -o %t 2>/dev/null)" = idle ] && { ready=1; break; }
  kill -0 "${started[1]}" 2>/dev/null || give_up "slurmctld has ended" "$dir/slurmctld.out"
  kill -0 "${started[2]}" 2>/dev/null || give_up "slurmd has ended" "$dir/slurmd.out"
  sleep 0.2
done
[ $ready = 1 ] || give_up "the node is not ready after 30 s ($(sinfo -h -o %t 2>&1))" "$dir/slurmd.out"
timeout 30 srun -n 1 true >"$dir/srun.out" 2>&1 || give_up "a first srun fails" "$dir/srun.out"

"$@" && code=0 || code=$?
exit "$code"
