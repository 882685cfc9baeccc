# docs/JOBS.md, its part about Slurm, followed by a user (nobody) of the site that operations.sh has set up, which sources this in
# its place. Scripts and commands are read from the page (jobs.md), but for swap space: no memory of this place can be swapped to.
#
# The test's own: the user's input, the program /pfs/me/app, an mpirun that is srun, and numbers of jobs.

wrong() { # WHAT
  echo "JOBS: $1"
  exit 1
}
user() { # COMMAND: as its reader types it on the controller, in a directory of the PFS; what it says is kept in $said
  local code=0
  echo "nobody \$ $1"
  said=$(on ctl "cd /pfs/me; exec setpriv --reuid=65534 --regid=65534 --clear-groups bash -euc $(printf %q "$1")" 2>&1) || code=$?
  echo "$said"
  return "$code"
}
types() { # COMMAND: it ends well
  user "$1" || wrong "this command fails: $1"
}
submits() { # COMMAND: the number of the job is kept in $job
  types "$1"
  job=${said##*Submitted batch job }
  [[ $job =~ ^[0-9]+$ ]] || wrong "this submits no job: $1"
}
over() { # JOB: it has ended well, and nothing of it is left
  until_true "the end of job $1" ctl "scontrol -o show job $1 > /tmp/shown.$1 &&
    grep -q 'JobState=COMPLETED ' /tmp/shown.$1 &&
    { grep -q 'BurstBufferState=complete' /tmp/shown.$1 || ! grep -q 'BurstBufferState=' /tmp/shown.$1; } &&
    [ ! -e /var/lib/forebay/sessions/$1.json ]"
}
says() { # WORD...: what the last command said has them
  local word
  for word in "$@"; do [[ $said == *"$word"* ]] || wrong "it does not say: $word"; done
}
script() { # NAME: a script of the user with these lines
  { echo '#!/bin/bash'; cat; } >"/pfs/me/$1"
}
of_page() { # WORDS: the block of the page after them
  block "$1" jobs.md
}

cat >bin/mpirun <<'END'
#!/bin/bash
exec srun "$@"
END
mkdir -p /pfs/me/input/deep /pfs/project
cat >/pfs/me/app <<'END'
#!/bin/bash
set -eu
[ "$1" = --in ] && [ "$3" = --checkpoint ] && [ "$5" = --out ]
mkdir -p "$4"
cat "$2/a" "$2/deep/b" | tee "$4/$SLURMD_NODENAME" >"$6/$SLURMD_NODENAME"
END
chmod +x bin/mpirun /pfs/me/app
echo alpha >/pfs/me/input/a
echo beta >/pfs/me/input/deep/b
echo theirs >/pfs/project/shared
chown -R 65534:65534 /pfs/me /pfs/project

# The first script of the page, submitted as the page says.
of_page 'no scheduler is needed:' | awk 'NF == 0 { exit } { print }' >/pfs/me/job.sh
submits "$(grep -o '^    \$ sbatch .*' jobs.md | sed 's/^    \$ //')"
over "$job"
[ "$(cat /pfs/me/run17/n*)" = $'alpha\nbeta\nalpha\nbeta' ] || wrong "the results are not on the PFS"

# What is wrong is refused in these words.
echo '#SBATCH -N 2
#DW jobdw type=scratch capacity=200GiB access_mode=stripped' | script wrong.sh
! user 'sbatch wrong.sh' || wrong "a wrong script is not refused"
says "$(grep -o 'sbatch: error: burst_buffer/datawarp: .*' jobs.md)"

# Persistent buffers.
of_page 'They outlive the job that makes them' | grep create_persistent | script make.sh
of_page 'They outlive the job that makes them' | grep destroy_persistent | script end.sh
of_page 'A job uses one with' | script use.sh
for name in make use; do
  submits "sbatch -o $name.out $name.sh"
  over "$job"
done
grep -qx input /pfs/me/use.out || wrong "the persistent buffer does not have what was staged into it"
submits 'sbatch end.sh'
over "$job"
until_true "the end of the persistent buffer" ctl '[ ! -e /var/lib/forebay/sessions/alpha.json ]'

# And a persistent cache.
of_page 'may be a cache, whose contents stay' | script make.sh
of_page 'Jobs use it with' | script use.sh
for name in make use; do
  submits "sbatch -o $name.out $name.sh"
  over "$job"
done
grep -qx shared /pfs/me/use.out || wrong "the persistent cache does not show its directory of the PFS"
sed -i 's/name=alpha/name=warm/' /pfs/me/end.sh
submits 'sbatch end.sh'
over "$job"
until_true "the end of the persistent cache" ctl '[ ! -e /var/lib/forebay/sessions/warm.json ]'

# A stage-out fails: the user copies elsewhere and gives the buffer back, and an administrator does the lines of another job again.
echo '#DW jobdw type=scratch capacity=1GiB access_mode=striped
#DW stage_out type=file source=$DW_JOB_STRIPED/a destination=/pfs/me/a
#DW stage_out type=file source=$DW_JOB_STRIPED/b destination=/pfs/me/gone/b
echo a >${DW_JOB_STRIPED}a; echo b >${DW_JOB_STRIPED}b' | script fails.sh
submits 'sbatch fails.sh'
of_user=$job
over "$of_user"
submits 'sbatch fails.sh'
of_admin=$job
over "$of_admin"
mkdir -p -m 777 /pfs/me/elsewhere
name=none
while IFS= read -r command; do
  command=${command#\$ }
  command=${command//job-17-4f1c09ab/$name}
  types "${command//job 17/job $of_user}"
  case $command in
  'scontrol show job 17'*)
    says 'data_out: stage_out of line 4: ' 'the directory /pfs/me/gone does not exist' '; the data is kept in buffer job-'
    name=$(grep -o "job-$of_user-[0-9a-f]*" <<<"$said" | head -1)
    says "\`forebay rescue $name\` goes on"
    ;;
  'forebay buffer list'*) says "$name" ;;
  'forebay stage out'*) [ "$(cat /pfs/me/elsewhere/b)" = b ] || wrong "the user's copy is not there" ;;
  esac
done < <(of_page 'kept; it belongs to you:' | grep '^\$ ')
left=$(on fs1 'forebay buffer list')
[[ $left != *"$name"* ]] || wrong "the user has not given the buffer back: $left"
kept=$(on ctl 'forebay rescue')
[[ $kept == *"job-$of_admin-"* && $kept != *"$name"* ]] || wrong "the other job is not listed, or the one that is rescued is: $kept"
mkdir -p -m 777 /pfs/me/gone
step ctl "$(grep -o '`forebay rescue 17`' jobs.md | head -1 | tr -d '`' | sed "s/17/$of_admin/")"
[ "$(cat /pfs/me/gone/b)" = b ] || wrong "the administrator has not brought the result to the PFS"
