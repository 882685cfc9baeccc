#!/bin/bash
# docs/OPERATIONS.md, followed word by word on a clean site: a controller `ctl`, a server `fs1` and compute nodes `n1` to
# `n4`, each with a network, mounts and a host name of its own. The files and commands are read from the page; what is
# not there is not done, but for the list below. Run as the first process of namespaces (processes, mounts, network).
#
# environment: BASE (an empty directory), PAGE (OPERATIONS.md), TREE (the repository), FOREBAY (the executable), LET_GO, JOBS (JOBS.md:
# a user follows it there, by jobs_page.sh, after the first job; or nothing), SITE_USER (not empty: Slurm has a user of its own, `slurm`,
# and the administrator follows what the page says of that). Prints THE END if all of it works.
#
# The test's own: MUNGE is started as the distribution does; `systemctl` starts what the units say, because no systemd
# runs here; `scp` copies from a node; the nodes have the processors of this machine; Slurm schedules every second.
set -euo pipefail
eval "$LET_GO"

root=$BASE/root
mkdir "$root"
mount -t tmpfs -o mode=755 root "$root"
mkdir -p "$root/old" "$root/place/bin"
for entry in /*; do
  name=${entry#/}
  case $name in proc | run | tmp | mnt | pfs | nvme | dev | etc | var | place | old) continue ;; esac
  if [ -L "$entry" ]; then cp -P "$entry" "$root/"
  elif [ -d "$entry" ]; then mkdir "$root/$name"; mount --rbind "$entry" "$root/$name"
  fi
done
mkdir -p "$root"/{proc,run,tmp,dev,etc,nvme,pfs,var}
chmod 1777 "$root/tmp" "$root/pfs"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
cp -a /etc/. "$root/etc/"
rm -rf "$root/etc/forebay" "$root/etc/slurm"
mkdir "$root/etc/slurm"
{
  echo "127.0.0.1 localhost"
  echo "10.78.0.1 ctl"
  echo "10.78.0.2 fs1"
  for i in 1 2 3 4; do echo "10.78.1.$i n$i"; done
} >"$root/etc/hosts"
cp "$PAGE" "$root/place/page.md"
cp "$0" "$root/place/script"
if [ -n "${JOBS:-}" ]; then
  cp "$JOBS" "$root/place/jobs.md"
  cp "${0%/*}/jobs_page.sh" "$root/place/jobs.sh"
fi
mount -t tmpfs local "$root/usr/local"
# Installed as the page says, from what was built.
make -s -C "$TREE" install FOREBAY="$FOREBAY" DESTDIR="$root" SBINDIR=/usr/local/sbin >/dev/null
cd "$root"
pivot_root . old
exec chroot . /bin/bash -c "$(sed '1,/^# ---- inside$/d' place/script)" place
# ---- inside
set -euo pipefail
umount -l /old
cd /place
export PATH=/place/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
unset FOREBAY_FLASH FOREBAY_SERVER FOREBAY_CONF FOREBAY_CONFIG_DIR SLURM_CONF TMPDIR

# The block of the page after the line that holds these words, without its indentation.
block() { # WORDS [PAGE]
  awk -v words="$1" '
    !found && index($0, words) { found = 1; next }
    found && /^    / { inside = 1; printf "%s%s\n", gap, substr($0, 5); gap = ""; next }
    inside && /^$/ { gap = "\n"; next }
    inside { exit }' "${2:-page.md}" >block.new
  [ -s block.new ] || { echo "OPERATIONS: there is no block after \"$1\""; exit 1; }
  cat block.new
}

cat >bin/systemctl <<'END'
#!/bin/bash
# Starts what a unit says, as systemd would: its EnvironmentFile, then its ExecStart, in the background.
set -euo pipefail
case "$*" in
"enable --now "*) unit=$3 ;;
"restart slurmctld")
  pkill -x slurmctld || true
  while pgrep -x slurmctld >/dev/null; do sleep 0.05; done
  exec slurmctld
  ;;
*) echo "systemctl: not known here: $*" >&2; exit 1 ;;
esac
file=/usr/local/lib/systemd/system/$unit
[ -e "$file" ] || file=$file.service
case $file in *.timer) file=${file%.timer}.service ;; esac
set -a
eval "$(sed -n 's/^Environment=//p' "$file")"
env=$(sed -n 's/^EnvironmentFile=-\?//p' "$file")
# A value goes to the end of its line.
if [ -n "$env" ] && [ -e "$env" ]; then eval "$(sed 's/=\(.*\)$/="\1"/' "$env")"; fi
set +a
# A variable that is not set is nothing to systemd.
set +u
eval "command=\"$(sed -n 's/^ExecStart=//p' "$file")\""
case $unit in
*.timer) exec $command ;;
*) $command </dev/null >"/run/${unit%.service}.log" 2>&1 & ;;
esac
END
cat >bin/scp <<'END'
#!/bin/bash
set -euo pipefail
[ "$1" = -p ]
cp -p "/proc/$(cat "/place/${2%%:*}.pid")/root/${2#*:}" "$3"
END
chmod +x bin/systemctl bin/scp

# The site: what is of one node only is its own.
ip link set lo up
ip link add switch type bridge
ip link set switch up
node() { # NAME ADDRESS
  unshare --mount --uts --net --propagation private bash -ec "
    hostname $1; ip link set lo up
    mount -t tmpfs -o size=4t nvme /nvme; mount -t tmpfs run /run; mount -t tmpfs var /var
    mkdir -p /var/spool /var/log/munge /var/lib/munge /run/munge /etc.$1; cp -a /etc/. /etc.$1; mount --bind /etc.$1 /etc
    echo \$\$ > /place/$1.pid.new; mv /place/$1.pid.new /place/$1.pid; exec sleep 3600" &
  while [ ! -s "$1.pid" ]; do sleep 0.02; done
  ip link add "$1" type veth peer name eth0 netns "$(cat "$1.pid")"
  ip link set "$1" master switch up
  on "$1" "ip addr add $2/16 dev eth0; ip link set eth0 up"
  on "$1" "munged --force --socket=/run/munge/munge.socket.2 --pid-file=/run/munge/munged.pid \
    --key-file=/place/munge.key --log-file=/run/munge/log --seed-file=/run/munge/seed"
}
on() { # NODE COMMAND
  nsenter -t "$(cat "$1.pid")" -m -u -n --wdns=/ bash -euc "$2" </dev/null
}
step() { # NODE COMMAND: as the administrator types it
  echo "$1 # $2"
  on "$1" "$2" || { echo "OPERATIONS: this command fails on $1: $2"; exit 1; }
}
put() { # NODE PATH: writes what it gets
  on "$1" "mkdir -p $(dirname "$2")"
  cat >"/proc/$(cat "$1.pid")/root$2"
}
until_true() { # WHAT NODE COMMAND
  local tries=0
  until on "$2" "$3" >/dev/null 2>&1; do
    if [ $((tries += 1)) -gt 600 ]; then
      echo "OPERATIONS: waited for: $1"
      on ctl 'timeout 5 scontrol show job; timeout 5 sinfo; tail -n 30 /var/lib/forebay/hooks.log' || true
      tail -n 5 /pfs/me/log "/proc/$(cat n1.pid)"/root/run/*.log || true
      exit 1
    fi
    sleep 0.1
  done
}
head -c 1024 /dev/urandom >munge.key
chmod 400 munge.key
node ctl 10.78.0.1
node fs1 10.78.0.2
compute="n1 n2 n3 n4"
for i in 1 2 3 4; do node "n$i" "10.78.1.$i"; done

# 1. Servers.
block '`/etc/forebay/serve.conf` on each server node' | awk 'NF == 0 { exit } { print }' | put fs1 /etc/forebay/serve.conf
commands=$(block '`/etc/forebay/serve.conf` on each server node' | awk 'seen { print } NF == 0 { seen = 1 }')
while IFS= read -r command; do
  case $command in
  *"# on the first, fs1"*) step fs1 "$command"; until_true "the server" fs1 'forebay pool status --server fs1:4242' ;;
  *"# on each other server and compute node, and on the controller"*) for name in ctl $compute; do step "$name" "$command"; done ;;
  *) echo "OPERATIONS: it is not said where this command runs: $command"; exit 1 ;;
  esac
done <<<"$commands"

# 2. The site's configuration.
for name in ctl fs1 $compute; do
  block '`/etc/forebay/forebay.conf`, the same file' | put "$name" /etc/forebay/forebay.conf
done
# Commands find their server there.
on n1 'forebay pool status' | grep -q fs1 || { echo "OPERATIONS: no server is found by the site's configuration"; exit 1; }

# 3. Agents.
for name in $compute; do step "$name" "$(block '### 3. Agents')"; done

# 4. Slurm, by each of its plugins.
block 'A minimal `slurm.conf` of four nodes' | sed 's/CPUs=16 RealMemory=64000/CPUs=2 RealMemory=1000/' >slurm.conf
echo "SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0" >>slurm.conf
if [ -n "${SITE_USER:-}" ]; then
  sed -i 's/^SlurmUser=root$/SlurmUser=slurm/' slurm.conf
  # As the distribution makes it.
  on ctl 'install -o slurm -g slurm -d /var/spool/slurmctld'
  while IFS= read -r command; do step ctl "$command"; done <<<"$(block "**Slurm's user.**")"
  line=$(grep -o 'secret_file = "/etc/forebay/slurm.key"' page.md)
  for name in ctl fs1 $compute; do on "$name" "sed -i '/^state_dir/a $line' /etc/forebay/forebay.conf"; done
  # Root is the first who uses the record.
  step ctl 'forebay rescue'
fi
slurm() { # PLUGIN WORDS-BEFORE-ITS-CONF
  for name in ctl $compute; do
    sed "s|^BurstBufferType=.*|$(block 'In `slurm.conf`, with one of the two plugins' | grep -o "BurstBufferType=burst_buffer/$1")|" slurm.conf |
      put "$name" /etc/slurm/slurm.conf
  done
  block "$2" | put ctl /etc/slurm/burst_buffer.conf
}
job() { # PLUGIN POOL
  mkdir -p -m 777 /pfs/me
  cat >/tmp/job.sh <<END
#!/bin/bash
#DW jobdw type=scratch capacity=1GiB access_mode=striped$2
#DW stage_in type=file source=/pfs/me/in destination=\$DW_JOB_STRIPED/in
#DW stage_out type=file source=\$DW_JOB_STRIPED/out destination=/pfs/me/out.$1
srun -N2 cat \${DW_JOB_STRIPED}in > \${DW_JOB_STRIPED}out
END
  echo input >/pfs/me/in
  chmod -R a+rwX /pfs/me
  local id
  id=$(on ctl 'sbatch --parsable --uid=65534 --gid=65534 -D /pfs/me -o /pfs/me/log -N2 /tmp/job.sh')
  until_true "the job under $1" ctl "scontrol -o show job $id | tr -s '[:space:]' ' ' | grep -q 'JobState=COMPLETED.*BurstBufferState=complete'"
  [ "$(cat "/pfs/me/out.$1")" = $'input\ninput' ] || { echo "OPERATIONS: the job's result is not there"; exit 1; }
}
slurm datawarp '`burst_buffer.conf` beside it, for `burst_buffer/datawarp`'
on ctl slurmctld
until_true "the controller" ctl "timeout 5 scontrol ping | grep -q 'is UP'"
for name in $compute; do on "$name" "slurmd"; done
until_true "the nodes" ctl "[ \$(sinfo -h -N -o %T | grep -c idle) = 4 ]"
shown=$(block '`scontrol show burst` shows the pool')
said=$(on ctl 'scontrol show burst' | head -1)
[ "$said" = "$shown" ] || { echo "OPERATIONS: scontrol show burst says: $said"; exit 1; }
job datawarp ""
if [ -n "${SITE_USER:-}" ]; then
  # Hooks write all of it again.
  others=$(on ctl 'find /var/lib/forebay ! -user slurm')
  [ -z "$others" ] || { echo "OPERATIONS: not of Slurm's user: $others"; exit 1; }
fi
if [ -e jobs.sh ]; then
  . ./jobs.sh
  echo THE END
  exit 0
fi
step ctl "$(grep -o 'systemctl enable --now forebay-reconcile.timer' page.md)"
slurm lua 'and for `burst_buffer/lua`, with'
step ctl "$(grep -o 'cp /usr/local/share/forebay/slurm/burst_buffer.lua /etc/slurm/' page.md)"
step ctl "$(grep -o 'systemctl restart slurmctld' page.md | head -1)"
until_true "the controller" ctl "timeout 5 scontrol ping | grep -q 'is UP'"
until_true "the pool" ctl "scontrol show burst | grep -q PoolName"
job lua " pool=flash"
echo THE END
