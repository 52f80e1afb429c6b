"""Let a kernel preempt its tasks at random: preempt_fuzz.py FOLDER patches the sources of Linux.

User-mode Linux preempts code of the kernel only where it gives back a lock, and with one processor
hardly ever. With the kernel parameter preempt_fuzz=N, a task of the policy SCHED_RR yields to
another one of its priority at one of N such places, on average.
"""

import sys
from pathlib import Path

HEADER = "include/asm-generic/preempt.h"
FUNCTION = "static __always_inline bool __preempt_count_dec_and_test(void)"
TEST = "return !--*preempt_count_ptr() && tif_need_resched();"
NEW_TEST = "return !--*preempt_count_ptr() && (tif_need_resched() || preempt_fuzz());"

SCHEDULER = "kernel/sched/core.c"
CODE = r"""
static unsigned int preempt_fuzz_every;
static atomic_t preempt_fuzz_state = ATOMIC_INIT(1);

static int __init preempt_fuzz_setup(char *s)
{
	return kstrtouint(s, 0, &preempt_fuzz_every) == 0;
}
__setup("preempt_fuzz=", preempt_fuzz_setup);

bool preempt_fuzz(void)
{
	struct rq_flags rf;
	struct rq *rq;
	unsigned int state;
	bool others;

	if (!preempt_fuzz_every || current->policy != SCHED_RR || !preemptible())
		return false;
	state = atomic_read(&preempt_fuzz_state) * 1103515245u + 12345u;
	atomic_set(&preempt_fuzz_state, state);
	if ((state >> 8) % preempt_fuzz_every)
		return false;
	preempt_disable();
	rq = this_rq_lock_irq(&rf);
	others = rq->rt.rt_nr_running > 1;
	if (others) {
		current->sched_class->yield_task(rq);
		resched_curr(rq);
	}
	rq_unlock_irq(rq, &rf);
	preempt_enable_no_resched();
	return others;
}
EXPORT_SYMBOL(preempt_fuzz);
"""


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if text.count(old) != 1:
        raise SystemExit(f"{path} is not as expected: {old!r}")
    path.write_text(text.replace(old, new))


def main() -> None:
    root = Path(sys.argv[1])
    replace(root / HEADER, FUNCTION, f"extern bool preempt_fuzz(void);\n\n{FUNCTION}")
    replace(root / HEADER, TEST, NEW_TEST)
    path = root / SCHEDULER
    path.write_text(path.read_text() + CODE)


main()
