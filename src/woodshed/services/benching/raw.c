/*
 * The least that a sandbox with its own root can cost on this kernel: one process that makes namespaces, an overlay,
 * /proc and /dev, moves into them, runs /bin/true, and removes what was written. No language runtime, no fork server,
 * no limits, no filter, no mapped owners: a yardstick, not a sandbox.
 *
 * usage: raw ROOT SCRATCH COUNT     prints the milliseconds of each of COUNT cycles, one a line
 *
 * As an ordinary user it makes a user namespace as well, since nothing else may make the others.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <ftw.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROOM 4096
#define NAMESPACES (CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET)

static char upper[ROOM], work[ROOM], merged[ROOM], path[ROOM + 64], options[3 * ROOM + 128];

static void need(int done, const char *what) {
    if (!done) {
        perror(what);
        _exit(99);
    }
}

static double now_ms(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return 1e3 * (double)at.tv_sec + (double)at.tv_nsec / 1e6;
}

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    need(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), path);
    close(fd);
}

static void map_self(uid_t uid, gid_t gid) {
    char line[64];
    put("/proc/self/setgroups", "deny");
    snprintf(line, sizeof line, "0 %u 1", uid);
    put("/proc/self/uid_map", line);
    snprintf(line, sizeof line, "0 %u 1", gid);
    put("/proc/self/gid_map", line);
}

/* Never returns. */
static void become(int user, uid_t uid, gid_t gid) {
    char *argv[] = {"true", NULL}, *env[] = {"PATH=/bin", NULL};
    if (user)
        map_self(uid, gid);
    need(mount(NULL, "/", NULL, MS_REC | (user ? MS_SLAVE : MS_PRIVATE), NULL) == 0, "propagation");
    need(mount("overlay", merged, "overlay", 0, options) == 0, "overlay");
    need(chdir(merged) == 0, merged);
    need(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0, "proc");
    need(mount("tmpfs", "dev", "tmpfs", MS_NOSUID, "mode=755,size=64k") == 0, "dev");
    need(syscall(SYS_pivot_root, ".", ".") == 0, "pivot_root");
    need(umount2(".", MNT_DETACH) == 0 && chdir("/") == 0, "leaving the old root");
    execve("/bin/true", argv, env);
    need(0, "/bin/true");
}

static int gone(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

/* What overlay leaves in its work directory is closed even to its owner. */
static void clear(void) {
    static const char *left[] = {"/work", "/work/incompat", "/work/incompat/volatile"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        strcpy(path, work);
        chmod(strcat(path, left[i]), 0700);
    }
    nftw(work, gone, 16, FTW_DEPTH | FTW_PHYS);
    nftw(upper, gone, 16, FTW_DEPTH | FTW_PHYS);
}

static double cycle(void) {
    double began = now_ms();
    int user = geteuid() != 0, status = 0;
    uid_t uid = geteuid();
    gid_t gid = getegid();
    struct clone_args how = {.flags = NAMESPACES | (user ? CLONE_NEWUSER : 0), .exit_signal = SIGCHLD};
    need(mkdir(upper, 0755) == 0 && mkdir(work, 0755) == 0, upper);
    pid_t pid = (pid_t)syscall(SYS_clone3, &how, sizeof how);
    need(pid >= 0, "clone3");
    if (pid == 0)
        become(user, uid, gid);
    need(waitpid(pid, &status, 0) == pid && status == 0, "the cycle");
    clear();
    return now_ms() - began;
}

int main(int count, char **words) {
    if (count != 4) {
        fprintf(stderr, "usage: raw ROOT SCRATCH COUNT\n");
        return 2;
    }
    snprintf(upper, sizeof upper, "%s/upper", words[2]);
    snprintf(work, sizeof work, "%s/work", words[2]);
    snprintf(merged, sizeof merged, "%s/merged", words[2]);
    /* volatile: an overlay without it syncs the whole disk at its end, and would be no limit. */
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s,volatile%s", words[1], upper, work,
             geteuid() ? ",userxattr" : "");
    need(mkdir(merged, 0755) == 0, merged);
    for (int left = atoi(words[3]); left > 0; left--)
        printf("%.4f\n", cycle());
    rmdir(merged);
    return 0;
}
