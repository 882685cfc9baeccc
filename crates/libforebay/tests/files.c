/* What a C program does with the files of libforebay; exit code 0 if all is as forebay.h says.
 * usage: files DIRECTORY, which may be in a buffer or not. */
#include <errno.h>
#include <fcntl.h>
#include <forebay.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "line %d: %s: errno %d, %s\n", __LINE__, #what, errno, fb_error()); \
            exit(1); \
        } \
    } while (0)

#define COUNT 300

static char top[4096];

static int count_names(void *context, const char *name, const struct fb_attributes *attributes) {
    MUST(strlen(name) > 0 && attributes->ino != 0);
    ++*(int *)context;
    return 0;
}

static int stop_at_once(void *context, const char *name, const struct fb_attributes *attributes) {
    (void)context, (void)name, (void)attributes;
    return 42;
}

/* Makes, looks at and removes many, in a directory of its own. */
static void *many(void *which) {
    static const char missing[] = "no/such";
    char (*texts)[128] = malloc(COUNT * sizeof *texts);
    const char *paths[COUNT];
    int *fds = malloc(COUNT * sizeof *fds), errnos[COUNT], again[3];
    struct fb_attributes *found = malloc(COUNT * sizeof *found);
    char dir[64];
    MUST(texts && fds && found);
    snprintf(dir, sizeof dir, "many.%ld.%s", (long)getpid(), (const char *)which);
    MUST(fb_mkdir(dir, 0777) == 0);
    for (int i = 0; i < COUNT; i++) {
        snprintf(texts[i], sizeof texts[i], "%s/f%d", dir, i);
        paths[i] = texts[i];
    }
    paths[200] = missing;
    MUST(fb_create_many(paths, COUNT, 0666, fds, errnos) == COUNT - 1);
    MUST(strstr(fb_error(), missing));
    for (int i = 0; i < COUNT; i++) {
        MUST(errnos[i] == (i == 200 ? ENOENT : 0) && (fds[i] >= 0) == (i != 200));
        if (i == 200) continue;
        MUST(write(fds[i], "0123456789", i % 10 + 1) == i % 10 + 1);
        MUST(fcntl(fds[i], F_GETFD) == FD_CLOEXEC && close(fds[i]) == 0);
    }
    MUST(fb_create_many(paths, 3, 0666, NULL, again) == 0 && again[0] == EEXIST && again[2] == EEXIST);
    MUST(fb_stat_many(paths, COUNT, 0, found, sizeof *found, errnos) == COUNT - 1);
    for (int i = 0; i < COUNT; i++) {
        struct stat kernel;
        MUST(errnos[i] == (i == 200 ? ENOENT : 0));
        if (i == 200) continue;
        MUST(stat(paths[i], &kernel) == 0);
        MUST(found[i].size_bytes == (uint64_t)(i % 10 + 1) && (found[i].mode & 07777) == 0666);
        MUST(found[i].ino == kernel.st_ino && found[i].size_bytes == (uint64_t)kernel.st_size);
    }
    MUST(fb_open_many(paths, 3, O_RDONLY, 0, fds, errnos) == 3);
    for (int i = 0; i < 3; i++) {
        char first;
        MUST(read(fds[i], &first, 1) == 1 && first == '0');
        MUST(fcntl(fds[i], F_GETFD) == 0 && close(fds[i]) == 0);
    }
    int names = 0;
    MUST(fb_list(dir, count_names, &names) == 0 && names == COUNT - 1);
    MUST(fb_list(dir, stop_at_once, NULL) == 42);
    MUST(fb_unlink_many(paths, COUNT, errnos) == COUNT - 1 && errnos[200] == ENOENT && errnos[0] == 0);
    names = 0;
    MUST(fb_list(dir, count_names, &names) == 0 && names == 0);
    MUST(rmdir(dir) == 0);
    free(texts);
    free(fds);
    free(found);
    return NULL;
}

int main(int argc, char **argv) {
    MUST(argc == 2);
    snprintf(top, sizeof top, "%s", argv[1]);
    MUST(chdir(top) == 0);
    umask(077);

    char path[8192];
    struct fb_attributes found, other;
    snprintf(path, sizeof path, "%s/file", top);
    int fd = fb_open(path, O_RDWR | O_CREAT | O_EXCL, 0664);
    MUST(fd >= 0 && write(fd, "123456789", 9) == 9);
    MUST(fb_open(path, O_RDWR | O_CREAT | O_EXCL, 0664) == -1 && errno == EEXIST);
    MUST(strstr(fb_error(), path));
    MUST(fb_fstat(fd, &found, sizeof found) == 0 && found.size_bytes == 9);
    MUST((found.mode & 07777) == 0664 && S_ISREG(found.mode) && found.uid == geteuid());
    MUST(fb_stat("file", 0, &other, sizeof other) == 0 && memcmp(&found, &other, sizeof found) == 0);
    MUST(fb_fsync(fd) == 0);
    MUST(ftruncate(fd, 4) == 0 && fb_stat(path, 0, &found, sizeof found) == 0 && found.size_bytes == 4);
    uint64_t ino = 0;
    MUST(fb_stat(path, 0, (struct fb_attributes *)&ino, sizeof ino) == 0 && ino == found.ino);
    MUST(fb_stat(path, 1u << 31, &found, sizeof found) == -1 && errno == EINVAL);
    MUST(fb_stat(NULL, 0, &found, sizeof found) == -1 && errno == EINVAL);

    MUST(symlink("file", "link") == 0);
    MUST(fb_stat("link", 0, &found, sizeof found) == 0 && found.ino == ino);
    MUST(fb_stat("link", FB_NO_FOLLOW, &found, sizeof found) == 0 && S_ISLNK(found.mode));
    MUST(fb_rename("file", "renamed") == 0);
    MUST(fb_stat("file", 0, &found, sizeof found) == -1 && errno == ENOENT);
    MUST(fb_open("link", O_RDONLY, 0) == -1 && errno == ENOENT);
    MUST(fb_unlink("renamed") == 0 && fb_unlink("renamed") == -1 && errno == ENOENT);
    MUST(fb_fstat(fd, &found, sizeof found) == 0 && found.nlink == 0 && found.ino == ino);
    char text[8];
    MUST(pread(fd, text, sizeof text, 0) == 4 && close(fd) == 0);
    MUST(fb_fstat(fd, &found, sizeof found) == -1 && errno == EBADF);
    MUST(fb_mkdir("dir", 0775) == 0 && fb_mkdir("dir", 0775) == -1 && errno == EEXIST);
    MUST(fb_stat("dir", 0, &found, sizeof found) == 0 && (found.mode & 07777) == 0775);
    MUST(fb_unlink("dir") == -1 && errno == EISDIR && rmdir("dir") == 0);
    MUST(fb_open("/proc/self/status", O_RDONLY, 0) >= 0);
    MUST(fb_stat_many(NULL, 3, 0, &found, sizeof found, NULL) == -1 && errno == EINVAL);
    MUST(fb_stat_many(NULL, 0, 0, NULL, 0, NULL) == 0);

    static char names[][2] = {"a", "b", "c"};
    pthread_t threads[3];
    many("main");
    for (int i = 0; i < 3; i++) MUST(pthread_create(&threads[i], NULL, many, names[i]) == 0);
    pid_t child = fork();
    if (child == 0) {
        many("child");
        _exit(0);
    }
    for (int i = 0; i < 3; i++) MUST(pthread_join(threads[i], NULL) == 0);
    int how = -1;
    MUST(waitpid(child, &how, 0) == child && how == 0);
    MUST(unlink("link") == 0);
    return 0;
}
