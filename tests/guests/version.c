/* Prints cuDriverGetVersion: before cuInit, after it, and in children forked before and after. */
#include "guest.h"

#include <sys/wait.h>

static int tell(const char *when) {
    int version = 0;
    CUresult result = cuDriverGetVersion(&version);
    printf("%s %d\n", when, result ? -result : version);
    fflush(stdout);
    return result;
}

static int child(const char *when) {
    pid_t pid = fork();
    int status = 0;
    if (pid == 0)
        _exit(tell(when));
    return pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
}

int main(void) {
    int wrong = child("child-before");
    wrong |= tell("before");
    wrong |= cuInit(0);
    wrong |= tell("after");
    wrong |= child("child-after");
    return wrong;
}
