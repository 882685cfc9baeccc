#!/bin/bash
# A cluster under an unmodified Slurm, as the first process of namespaces of its own (processes, mounts, network, host
# name): what it starts is seen by nobody else, and ends with it.
#
# environment: LET_GO (lines that let the mounts of other tests go), ROOT (an empty directory), NODES (how many), PLUGIN (lua or datawarp), FOREBAY (the executable), LUA
# (burst_buffer.lua as it is installed), SERVERS (how many), CAPACITY (of each), SWAP (a directory on a disk for swap space of
# nodes, or nothing), WIDE_CAPACITY and WIDE_GRANULARITY (of a second pool, `wide`, or nothing), BURST_BUFFER_CONF and
# SITE_CONF (more lines).
#
# Writes $ROOT/up when all is up, or $ROOT/failed. Each node n1, n2, ... is a slurmd and a `forebay agent` with mounts
# and a host name of their own; $ROOT/node.N.pid is a process to enter them by. The PFS is $ROOT/pfs on all of them.
set -euo pipefail
trap 'echo "line $LINENO" >"$ROOT/failed"' ERR

eval "$LET_GO"
cd "$ROOT"
mkdir -p run state spool log pfs bin config site-state at
chmod 777 pfs
# Nodes share /tmp; what PMIx makes there is called by the step, not by the node.
for i in $(seq "$NODES"); do mkdir -p -m 1777 "tmp/n$i"; done
hostname ctl
ip link set lo up
# Addresses that are not loopback: without one no name is looked up.
ip link add net0 type bridge
ip link set net0 up
ip addr add 10.77.0.1/16 dev net0
{
  echo "127.0.0.1 localhost"
  echo "10.77.0.1 ctl"
  for i in $(seq "$NODES"); do
    # A link for each: Open MPI connects from the first address of a link, and refuses peers with other ones than the last.
    ip link add "net$i" type bridge
    ip link set "net$i" up
    ip addr add "10.77.1.$i/32" dev "net$i"
    echo "10.77.1.$i n$i"
  done
} >hosts
mount --bind hosts /etc/hosts
mkdir -p /run/forebay
mount -t tmpfs -o mode=755 tmpfs /run/forebay
# A job's user finds the temporary directory; sockets of munge lie below ROOT.
chmod 755 "$ROOT"

# A step as Slurm calls it. A test makes it stand still before it begins (at/before.STEP) or before it returns
# (at/behind.STEP), where at/is.STEP tells that it does, or fail with what stands in at/fail.STEP. What our program says on standard
# error, which it never uses, is found in hooks.stderr: Slurm would have it in the answer.
cat >bin/dw_wlm_cli <<END
#!/bin/bash
at=$ROOT/at
stand() {
  [ -e "\$at/\$1.\$2" ] || return 0
  : >"\$at/is.\$2"
  while [ -e "\$at/\$1.\$2" ]; do sleep 0.05; done
}
if [ -e "\$at/fail.\$2" ]; then cat "\$at/fail.\$2"; exit 1; fi
stand before "\$2"
[ -e "\$at/behind.\$2" ] || exec -a dw_wlm_cli "$FOREBAY" "\$@" 2>>"$ROOT/hooks.stderr"
(exec -a dw_wlm_cli "$FOREBAY" "\$@" 2>>"$ROOT/hooks.stderr")
code=\$?
stand behind "\$2"
exit \$code
END
cat >bin/dwstat <<END
#!/bin/bash
exec -a dwstat "$FOREBAY" "\$@" 2>>"$ROOT/hooks.stderr"
END
chmod 755 bin/dw_wlm_cli bin/dwstat
ln -s "$FOREBAY" bin/forebay
sed "s|@LIBEXEC@|$ROOT/bin|" "$LUA" >burst_buffer.lua

export FOREBAY_CONFIG_DIR="$ROOT/config" FOREBAY_CONF="$ROOT/forebay.conf" SLURM_CONF="$ROOT/slurm.conf"
unset FOREBAY_SERVER FOREBAY_FLASH

SWAP_CONF=
if [ -n "$SWAP" ]; then SWAP_CONF="swap_dir = \"$SWAP\""; fi
WIDE_CONF=
if [ -n "${WIDE_CAPACITY:-}" ]; then
  WIDE_CONF="[pool.wide]
server = \"10.77.0.1:4342\""
fi
cat >forebay.conf <<END
default_pool = "flash"
state_dir = "$ROOT/site-state"
$SITE_CONF
[pool.flash]
server = "10.77.0.1:4242"
$WIDE_CONF
[agent]
address = "{node}:4243"
umount_limit_s = 5
$SWAP_CONF
END

# SlurmctldTimeout: an srun whose step cannot begin yet, and that misses word of the end of another step, asks again after so many
# seconds and up to nine more (Slurm 22.05.8; no less than 60). With the default, 120, that is longer than a test waits.
cat >slurm.conf <<END
ClusterName=t
SlurmctldHost=ctl
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$ROOT/run/munge.sock
SlurmctldPort=6817
SlurmdPort=6818
StateSaveLocation=$ROOT/state
SlurmdSpoolDir=$ROOT/spool/%n
TmpFS=$ROOT/tmp/%n
SlurmctldPidFile=$ROOT/run/slurmctld.pid
SlurmdPidFile=$ROOT/run/slurmd-%n.pid
SlurmctldLogFile=$ROOT/log/slurmctld.log
SlurmdLogFile=$ROOT/log/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
SlurmdParameters=config_overrides
MinJobAge=300
KillWait=2
DebugFlags=BurstBuffer,Steps
SlurmctldTimeout=60
BurstBufferType=burst_buffer/$PLUGIN
END
for i in $(seq "$NODES"); do
  echo "NodeName=n$i NodeHostname=n$i NodeAddr=n$i Port=$((6818 + i)) CPUs=4 RealMemory=1000 State=UNKNOWN"
done >>slurm.conf
echo "PartitionName=p Nodes=ALL Default=YES MaxTime=60 State=UP" >>slurm.conf

{
  echo "Flags=TeardownFailure"
  echo "StageInTimeout=60"
  echo "StageOutTimeout=60"
  echo "OtherTimeout=60"
  echo "ValidateTimeout=5"
  if [ "$PLUGIN" = lua ]; then
    echo "Directive=DW"
  else
    echo "GetSysState=$ROOT/bin/dw_wlm_cli"
    echo "GetSysStatus=$ROOT/bin/dwstat"
    echo "DefaultPool=flash"
  fi
  echo "$BURST_BUFFER_CONF"
} >burst_buffer.conf

# Starts server N, also again.
cat >bin/server <<END
mkdir -p "$ROOT/flash\$1"
join=
if [ "\$1" -gt 1 ]; then join="--join 10.77.0.1:4242"; fi
exec "$FOREBAY" serve --background --flash "$ROOT/flash\$1" --capacity "$CAPACITY" --granularity 16MiB \
  --listen "10.77.0.1:\$((4241 + \$1))" \$join --log-file "$ROOT/log/serve\$1.log"
END
# Starts the agent of node N, on that node.
cat >bin/agent <<END
exec "$FOREBAY" agent --background --listen "n\$1:4243" --log-file "$ROOT/log/agent-n\$1.log" ${SWAP:+--swap-dir "$SWAP/n\$1"}
END
for i in $(seq "$SERVERS"); do bash bin/server "$i"; done
# A server that joins nobody is a pool of its own; it has the same key.
if [ -n "${WIDE_CAPACITY:-}" ]; then
  mkdir flash.wide
  "$FOREBAY" serve --background --flash "$ROOT/flash.wide" --capacity "$WIDE_CAPACITY" \
    --granularity "$WIDE_GRANULARITY" --listen 10.77.0.1:4342 --log-file "$ROOT/log/serve-wide.log"
fi

for i in $(seq "$NODES"); do
  unshare --mount --uts bash -euc '
    hostname n'"$i"'
    mount -t tmpfs -o mode=755 tmpfs /run/forebay
    bash "$ROOT/bin/agent" '"$i"'
    echo $$ >"$ROOT/node.'"$i"'.pid.new"
    mv "$ROOT/node.'"$i"'.pid.new" "$ROOT/node.'"$i"'.pid"
    exec sleep infinity' &
done

head -c 1024 /dev/urandom >munge.key
chmod 400 munge.key
munged --force --key-file="$ROOT/munge.key" --socket="$ROOT/run/munge.sock" --pid-file="$ROOT/run/munged.pid" \
  --log-file="$ROOT/log/munged.log" --seed-file="$ROOT/run/munge.seed"
slurmctld
until timeout 5 scontrol ping 2>/dev/null | grep -q "is UP"; do sleep 0.05; done
for i in $(seq "$NODES"); do
  until [ -e "node.$i.pid" ]; do sleep 0.02; done
  nsenter -t "$(cat "node.$i.pid")" --mount --uts slurmd -N "n$i"
done
# Each slurmd is registered, and answers: of one that does not Slurm says `idle*`.
until [ "$(sinfo -h -o %T -p p -N | grep -cx idle)" -eq "$NODES" ]; do sleep 0.05; done
echo up >up.new
mv up.new up
# Takes the exit codes of all that loses its parent.
while :; do
  sleep 1000 &
  wait
done
