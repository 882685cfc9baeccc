/* Load and store from C: argv[1] is a directory; argv[2] says whether a power cut takes what is in it ("volatile"). */
#include <errno.h>
#include <fcntl.h>
#include <forebay.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "line %d: %s: errno %d, %s\n", __LINE__, #what, errno, fb_error()); \
            exit(1); \
        } \
    } while (0)

static void fails(long result, int wanted, int line)
{
    if (result != -1 || errno != wanted) {
        fprintf(stderr, "line %d: %ld, errno %d, not %d: %s\n", line, result, errno, wanted, fb_error());
        exit(1);
    }
}
#define FAILS(call, wanted) fails((long)(call), wanted, __LINE__)

static char path[4096];

static void *map_and_unmap(void *unused)
{
    for (int n = 0; n < 200; n++) {
        char *memory = fb_map(path, 0, 0);
        CHECK(memory && fb_map_size(memory) == 100000);
        CHECK(fb_persist(memory + n, 10) > 0);
        CHECK(fb_unmap(memory) == 0);
    }
    return unused;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    int grade = strcmp(argv[2], "volatile") ? FB_ON_FLASH : FB_WRITTEN;
    char read_back[16], *memory, *again, *full;
    int status, fd;

    snprintf(path, sizeof path, "%s/memory", argv[1]);
    CHECK(!fb_map(path, 0, 0) && errno == ENOENT);
    CHECK(!fb_map(path, 10, 1) && errno == EINVAL);
    CHECK(!fb_map(NULL, 10, 0) && errno == EINVAL);
    CHECK((memory = fb_map(path, 100000, 0)));
    CHECK(fb_map_size(memory) == 100000 && fb_map_size(memory + 99999) == 100000 && fb_map_size(memory + 100000) == 0);
    strcpy(memory + 5000, "stored");
    CHECK(fb_persist(memory + 5000, 7) == grade);
    CHECK((fd = open(path, O_RDWR)) >= 0 && pread(fd, read_back, 7, 5000) == 7 && !strcmp(read_back, "stored"));
    CHECK(pwrite(fd, "written", 8, 5000) == 8 && !strcmp(memory + 5000, "written") && close(fd) == 0);
    FAILS(fb_persist(memory + 99990, 11), EINVAL);
    FAILS(fb_persist(&status, 1), EINVAL);
    FAILS(fb_map_commit(memory, "x", 1, 0), EINVAL);
    FAILS(fb_map_root(memory, read_back, sizeof read_back), EINVAL);
    FAILS(fb_unmap(memory + 1), EINVAL);

    /* A child has the memory, and may use the calls. */
    pid_t child = fork();
    if (child == 0) {
        strcpy(memory, "of the child");
        _exit(fb_persist(memory, 13) == grade ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0 && !strcmp(memory, "of the child"));

    CHECK((again = fb_map(path, 0, FB_MAP_READ_ONLY)) && !strcmp(again, "of the child"));
    FAILS(fb_persist(again, 1), EACCES);
    CHECK(fb_unmap(again) == 0);
    FAILS(fb_unmap(again), EINVAL);

    pthread_t threads[4];
    for (int n = 0; n < 4; n++)
        CHECK(pthread_create(&threads[n], NULL, map_and_unmap, NULL) == 0);
    for (int n = 0; n < 4; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    CHECK(fb_unmap(memory) == 0 && unlink(path) == 0);

    CHECK((memory = fb_map(path, 5000, FB_MAP_ROOT)));
    FAILS(fb_map_root(memory, read_back, sizeof read_back), ENODATA);
    CHECK(fb_map_commit(memory, "root 1", 7, 0) == grade && fb_map_commit(memory, "root two", 9, FB_PERSISTED) == grade);
    FAILS(fb_map_root(memory, read_back, 8), ERANGE);
    FAILS(fb_map_commit(memory, NULL, 1, 0), EINVAL);
    FAILS(fb_map_commit(memory, "x", FB_ROOT_MAX + 1, 0), EMSGSIZE);
    CHECK(fb_unmap(memory) == 0 && (memory = fb_map(path, 0, FB_MAP_ROOT)) && fb_map_size(memory) == 5000);
    CHECK(fb_map_root(memory, read_back, sizeof read_back) == 9 && !strcmp(read_back, "root two"));
    CHECK(fb_unmap(memory) == 0);

    /* There is no room: that is said here, and not by a signal at a store. */
    snprintf(path, sizeof path, "%s/large", argv[1]);
    full = fb_map(path, (size_t)1 << 40, 0);
    CHECK(!full && (errno == ENOSPC || errno == EFBIG || errno == EDQUOT));
    CHECK(unlink(path) == 0);
    puts("all as it should be");
    return 0;
}
