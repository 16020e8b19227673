/* A program that never calls CUDA. It prints everything that a preloaded library could change:
 * descriptors, threads, children, signals, timers, writable and executable mappings, and the end of
 * its children and of itself. */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void entries(const char *what, const char *path) {
    DIR *dir = opendir(path);
    struct dirent *entry;
    int count = 0;
    if (!dir) exit(2);
    while ((entry = readdir(dir))) count += entry->d_name[0] != '.';
    closedir(dir);
    printf("%s %d\n", what, count);
}

static void signals(void) {
    struct sigaction action;
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    for (int signal = 1; signal < NSIG; signal++) {
        if (!sigaction(signal, NULL, &action) && action.sa_handler != SIG_DFL) printf("handled %d\n", signal);
        if (sigismember(&blocked, signal) == 1) printf("blocked %d\n", signal);
    }
}

static void timers(void) {
    for (int which = ITIMER_REAL; which <= ITIMER_PROF; which++) {
        struct itimerval timer;
        if (!getitimer(which, &timer)) printf("timer %ld %ld\n", (long)timer.it_value.tv_sec, (long)timer.it_value.tv_usec);
    }
}

static void environment(void) {
    for (char **variable = environ; *variable; variable++)
        if (strncmp(*variable, "LD_", 3)) printf("%s\n", *variable);
}

static void limits(void) {
    struct rlimit limit;
    mode_t mask = umask(0);
    umask(mask);
    printf("umask %o\n", mask);
    for (int which = 0; which < 16; which++)
        if (!getrlimit(which, &limit)) printf("limit %d %llu %llu\n", which, (unsigned long long)limit.rlim_cur, (unsigned long long)limit.rlim_max);
}

static void *thread(void *argument) {
    *(int *)argument = 1;
    return NULL;
}

static void said_at_exit(void) {
    printf("exit\n");
}

int main(int argc, char **argv) {
    pthread_t other;
    int ran = 0, status;
    pid_t child;

    entries("descriptors", "/proc/self/fd");
    entries("threads", "/proc/self/task");
    signals();
    timers();
    limits();
    environment();
    printf("no child %d\n", waitpid(-1, &status, WNOHANG));
    if (argc > 1) return 7;

    atexit(said_at_exit);
    if (pthread_create(&other, NULL, thread, &ran) || pthread_join(other, NULL)) return 2;
    printf("thread ran %d\n", ran);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        execl("/proc/self/exe", argv[0], "again", (char *)NULL);
        _exit(3);
    }
    if (waitpid(child, &status, 0) != child) return 2;
    printf("executed %d\n", WEXITSTATUS(status));
    fflush(stdout);
    child = fork();
    if (child == 0) raise(SIGTERM);
    if (waitpid(child, &status, 0) != child) return 2;
    printf("ended by %d\n", WTERMSIG(status));
    return 5;
}
