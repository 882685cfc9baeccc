"""CPU time that the machine spends on others while a run of the demo goes on.

Used by demo.py, which must not blame other load for a slow run without having seen any.
"""

import os
import resource

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields of the first line of /proc/stat (proc(5)) that are time a processor was taken:
# user, nice, system, irq, softirq, steal. Not idle and iowait; guest time is in user already.
TAKEN_FIELDS = (0, 1, 2, 5, 6, 7)


def taken_s():
    """Seconds that all processors were taken since boot, stolen ones included."""
    with open("/proc/stat") as file:
        fields = file.readline().split()[1:]
    return sum(int(fields[i]) for i in TAKEN_FIELDS if i < len(fields)) / TICKS_PER_S


def own_s():
    """Seconds of this process and of its children that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Others:
    """Counts from its making to taken(), which is called when the run's processes are waited for."""

    def __init__(self):
        self._taken, self._own = taken_s(), own_s()

    def taken(self):
        """Seconds of CPU that went to processes which are not of the run."""
        return max(taken_s() - self._taken - (own_s() - self._own), 0.0)


def note(runs):
    """What to say about two runs that compute the same, if one took 10 % longer for it.

    `runs` are pairs of seconds of computing and CPU seconds of others.
    """
    (slow, slow_others), (fast, fast_others) = sorted(runs, reverse=True)
    longer = slow - fast
    if longer <= 0.1 * fast:
        return ""
    seen = slow_others - fast_others
    lines = [
        f"note: the two runs compute the same, and one took {longer:.1f} s longer for it.",
        f"Other processes (the servers of PFS and buffer too) had {slow_others:.1f} s of CPU during",
        f"the slower one, {fast_others:.1f} s during the other" + (
            ": enough to explain it." if seen >= 0.5 * longer else ": not enough to explain it."
        ),
        "Compare the seconds stalled, or run again.",
    ]
    return "\n".join(lines)
