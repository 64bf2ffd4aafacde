/* A disk that fails: preloaded, it lets one operation on a file below a folder fail, and from then on all that need
 * space where the disk is full. It sees what Python, TensorStore and every other library ask of libc.
 *
 *     failing_disk_arm("FOLDER\tLOG\tOPERATION\tFILE\tNUMBER\tERRNO\tLASTING")
 *
 * arms it, and so does the variable FAILING_DISK when the process begins. FILE is a path below FOLDER in which a run of
 * digits stands as '#', and one of at least twelve hexadecimal digits as '@': the NUMBERth such operation fails, once
 * or, where LASTING is 1, with all later ones that need space. Every operation is a line of LOG: what it was, its
 * number, the file, and "failed" where it was made to.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define LONGEST 4096
#define KINDS 4096

static struct {
    char folder[LONGEST], operation[32], file[LONGEST];
    long number;
    int error, lasting, log, armed, full;
} plan;

static struct {
    char *what;
    long count;
} seen[KINDS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static char *field(char **rest)
{
    char *start = strsep(rest, "\t");
    return start ? start : "";
}

void failing_disk_arm(const char *words)
{
    char copy[3 * LONGEST], *rest = copy;
    snprintf(copy, sizeof copy, "%s", words);
    snprintf(plan.folder, sizeof plan.folder, "%s", field(&rest));
    plan.log = syscall(SYS_openat, AT_FDCWD, field(&rest), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    snprintf(plan.operation, sizeof plan.operation, "%s", field(&rest));
    snprintf(plan.file, sizeof plan.file, "%s", field(&rest));
    plan.number = atol(field(&rest));
    plan.error = atoi(field(&rest));
    plan.lasting = atoi(field(&rest));
    plan.armed = 1;
}

__attribute__((constructor)) static void begin(void)
{
    const char *words = getenv("FAILING_DISK");
    if (words)
        failing_disk_arm(words);
}

/* The path that a descriptor is open at, or that a name stands for. */
static int whole_path(int folder, const char *name, char *path)
{
    char link[64];
    ssize_t length;
    if (name && name[0] == '/') {
        snprintf(path, LONGEST, "%s", name);
        return 1;
    }
    if (folder == AT_FDCWD)
        snprintf(link, sizeof link, "/proc/self/cwd");
    else
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    length = readlink(link, path, LONGEST - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    if (name)
        snprintf(path + length, LONGEST - length, "/%s", name);
    return 1;
}

static void shorten(const char *path, char *kind)
{
    while (*path) {
        size_t digits = strspn(path, "0123456789"), hexadecimal = strspn(path, "0123456789abcdef");
        if (hexadecimal >= 12) {
            *kind++ = '@';
            path += hexadecimal;
        } else if (digits) {
            *kind++ = '#';
            path += digits;
        } else
            *kind++ = *path++;
    }
    *kind = 0;
}

/* Whether this operation is to fail; it is counted and noted. */
static int fails(const char *operation, int needs_space, int folder, const char *name)
{
    char path[LONGEST], kind[LONGEST], line[3 * LONGEST];
    int before = errno, failed = 0, slot, length;
    long count;
    if (!plan.armed || !whole_path(folder, name, path))
        return 0;
    length = strlen(plan.folder);
    if (strncmp(path, plan.folder, length) || (path[length] && path[length] != '/')) {
        errno = before;
        return 0;
    }
    shorten(path[length] ? path + length + 1 : ".", kind);
    snprintf(line, sizeof line, "%s %s", operation, kind);
    pthread_mutex_lock(&lock);
    for (slot = 0; slot < KINDS - 1 && seen[slot].what && strcmp(seen[slot].what, line); slot++)
        ;
    if (!seen[slot].what)
        seen[slot].what = strdup(line);
    count = ++seen[slot].count;
    if (plan.full && needs_space)
        failed = 1;
    else if (count == plan.number && !strcmp(operation, plan.operation) && !strcmp(kind, plan.file)) {
        failed = 1;
        plan.full = plan.lasting;
    }
    pthread_mutex_unlock(&lock);
    length = snprintf(line, sizeof line, "%s\t%ld\t%s%s\n", operation, count, kind, failed ? "\tfailed" : "");
    syscall(SYS_write, plan.log, line, length);
    errno = failed ? plan.error : before;
    return failed;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) \
        real = dlsym(RTLD_NEXT, name)

#define FAIL_OR(operation, needs_space, folder, name, call) \
    return fails(operation, needs_space, folder, name) ? -1 : (call)

static int opens(int flags, int folder, const char *name)
{
    struct stat about;
    if ((flags & O_ACCMODE) == O_RDONLY && !(flags & O_CREAT))
        return 0;
    return fails("open", (flags & O_CREAT) && fstatat(folder, name, &about, 0), folder, name);
}

#define OPEN(function) \
    int function(const char *name, int flags, ...) \
    { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        REAL(int, #function, const char *, int, ...); \
        return opens(flags, AT_FDCWD, name) ? -1 : real(name, flags, mode); \
    }

#define OPENAT(function) \
    int function(int folder, const char *name, int flags, ...) \
    { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        REAL(int, #function, int, const char *, int, ...); \
        return opens(flags, folder, name) ? -1 : real(folder, name, flags, mode); \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int file, const void *bytes, size_t count)
{
    REAL(ssize_t, "write", int, const void *, size_t);
    if (!fails("write", 1, file, NULL))
        return real(file, bytes, count);
    /* A disk that runs full takes what it has room for. */
    if (plan.error == ENOSPC && count > 1)
        real(file, bytes, count / 2);
    errno = plan.error;
    return -1;
}

#define PWRITE(function, offset) \
    ssize_t function(int file, const void *bytes, size_t count, offset at) \
    { \
        REAL(ssize_t, #function, int, const void *, size_t, offset); \
        FAIL_OR("write", 1, file, NULL, real(file, bytes, count, at)); \
    }

PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int file, const struct iovec *parts, int count)
{
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    FAIL_OR("write", 1, file, NULL, real(file, parts, count));
}

#define PWRITEV(function, offset) \
    ssize_t function(int file, const struct iovec *parts, int count, offset at) \
    { \
        REAL(ssize_t, #function, int, const struct iovec *, int, offset); \
        FAIL_OR("write", 1, file, NULL, real(file, parts, count, at)); \
    }

PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

ssize_t copy_file_range(int from, off64_t *start, int to, off64_t *at, size_t count, unsigned flags)
{
    REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
    FAIL_OR("write", 1, to, NULL, real(from, start, to, at, count, flags));
}

#define SENDFILE(function, offset) \
    ssize_t function(int to, int from, offset *start, size_t count) \
    { \
        REAL(ssize_t, #function, int, int, offset *, size_t); \
        FAIL_OR("write", 1, to, NULL, real(to, from, start, count)); \
    }

SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

#define OF_FILE(function, operation) \
    int function(int file) \
    { \
        REAL(int, #function, int); \
        FAIL_OR(operation, 0, file, NULL, real(file)); \
    }

OF_FILE(fsync, "sync")
OF_FILE(fdatasync, "sync")

#define TRUNCATE(function, offset) \
    int function(int file, offset length) \
    { \
        REAL(int, #function, int, offset); \
        FAIL_OR("truncate", 0, file, NULL, real(file, length)); \
    }

TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define OF_NAME(function, operation) \
    int function(const char *name) \
    { \
        REAL(int, #function, const char *); \
        FAIL_OR(operation, 0, AT_FDCWD, name, real(name)); \
    }

OF_NAME(unlink, "remove")
OF_NAME(rmdir, "remove")

int unlinkat(int folder, const char *name, int flags)
{
    REAL(int, "unlinkat", int, const char *, int);
    FAIL_OR("remove", 0, folder, name, real(folder, name, flags));
}

/* Of what is there nothing is written: the system says that it exists, whatever the disk can do. */
static int makes(int folder, const char *name)
{
    struct stat about;
    int before = errno, absent = fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW);
    errno = before;
    return absent && fails("mkdir", 1, folder, name);
}

int mkdir(const char *name, mode_t mode)
{
    REAL(int, "mkdir", const char *, mode_t);
    return makes(AT_FDCWD, name) ? -1 : real(name, mode);
}

int mkdirat(int folder, const char *name, mode_t mode)
{
    REAL(int, "mkdirat", int, const char *, mode_t);
    return makes(folder, name) ? -1 : real(folder, name, mode);
}

int rename(const char *name, const char *to)
{
    REAL(int, "rename", const char *, const char *);
    FAIL_OR("rename", 0, AT_FDCWD, to, real(name, to));
}

int renameat(int folder, const char *name, int other, const char *to)
{
    REAL(int, "renameat", int, const char *, int, const char *);
    FAIL_OR("rename", 0, other, to, real(folder, name, other, to));
}
