/* The first process of a User-mode Linux: init PROGRAM ARGUMENT... runs the program and powers off.
 *
 * The program has the policy SCHED_RR, for the kernel parameter preempt_fuzz= (preempt_fuzz.py). Its
 * exit status is printed, as "status 0". */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    struct sched_param parameters = {.sched_priority = 1};
    int status = 0;

    mount("proc", "/proc", "proc", 0, NULL);
    /* The kernel appends the parameters that it does not know. */
    while (count > 1 && strchr(arguments[count - 1], '=') != NULL)
        arguments[--count] = NULL;
    if (count > 1 && fork() == 0) {
        sched_setscheduler(0, SCHED_RR, &parameters);
        execv(arguments[1], arguments + 1);
        _exit(127);
    }
    wait(&status);
    printf("status %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    fflush(stdout);
    sync();
    reboot(RB_POWER_OFF);
    return 1;
}
