/* What a C program does with libforebay; exit code 0 if all is as forebay.h says.
 * usage: program BUFFER PFS */
#include <errno.h>
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

static char dir[4096], file[8192], place[8192];

static void *ask(void *nothing) {
    (void)nothing;
    for (int i = 0; i < 20; i++) {
        struct fb_state state;
        MUST(fb_state(file, &state, sizeof state) == 0);
        MUST(state.size_bytes == 9);
        MUST(fb_state("/proc/self", &state, sizeof state) == -1 && errno == ENOTTY);
        MUST(strstr(fb_error(), "not in a mounted buffer"));
    }
    return NULL;
}

int main(int argc, char **argv) {
    MUST(argc == 3);
    snprintf(dir, sizeof dir, "%s/step", argv[1]);
    snprintf(file, sizeof file, "%s/data", dir);
    snprintf(place, sizeof place, "%s/ckpt", argv[2]);
    MUST(mkdir(dir, 0755) == 0);
    FILE *out = fopen(file, "w");
    MUST(out && fputs("123456789", out) >= 0 && fclose(out) == 0);
    MUST(strlen(fb_version()) > 0);
    MUST(fb_crc32c(0, "123456789", 9) == 0xe3069283u);
    MUST(fb_crc32c(fb_crc32c(0, "1234", 4), "56789", 5) == 0xe3069283u);

    struct fb_state state;
    MUST(fb_state(file, &state, sizeof state) == 0);
    MUST(state.grade == FB_WRITTEN || state.grade == FB_ON_FLASH);
    MUST(state.size_bytes == 9 && state.dirty_bytes == 0 && state.drain_errno == 0);
    struct { struct fb_state state; char more[64]; } larger;
    memset(&larger, 0xff, sizeof larger);
    MUST(fb_state(file, &larger.state, sizeof larger) == 0);
    MUST(larger.more[0] == 0 && larger.more[63] == 0);
    uint32_t grade = 0;
    MUST(fb_state(file, (struct fb_state *)&grade, sizeof grade) == 0 && grade == state.grade);
    MUST(fb_state(NULL, &state, sizeof state) == -1 && errno == EINVAL);
    MUST(fb_state(file, NULL, sizeof state) == -1 && errno == EINVAL);
    MUST(fb_wait(file, 1) == -1 && errno == ENODATA);
    MUST(fb_flush(file) == -1 && errno == EINVAL);
    MUST(strstr(fb_error(), "cache"));
    MUST(fb_commit(dir, place, 1u << 31) == -1 && errno == EINVAL);

    int64_t number = fb_commit(dir, place, FB_VERIFY_MEDIUM);
    MUST(number > 0);
    struct fb_plan_status status;
    MUST(fb_commit_wait(dir, number, 60, &status, sizeof status) == 0);
    MUST(status.state == FB_DONE && status.published == 1 && strlen(status.version) == 16);
    MUST(status.files_done == 1 && status.bytes_done == 9 && status.first_errno == 0);
    MUST(fb_wait(file, -1) == 0);
    MUST(fb_commit_cancel(dir, number) == 0);
    MUST(fb_commit_status(dir, number, &status, sizeof status) == 0 && status.state == FB_DONE);
    MUST(fb_commit_status(dir, 999, &status, sizeof status) == -1 && errno == ENOENT);

    snprintf(place, sizeof place, "%s/no/such/ckpt", argv[2]);
    number = fb_commit(dir, place, FB_KEEP_OLD);
    MUST(number > 0);
    MUST(fb_commit_wait(dir, number, 60, &status, sizeof status) == 0);
    MUST(status.state == FB_FAILED && status.published == 0 && status.first_errno == ENOENT);
    MUST(strstr(fb_error(), "does not exist"));
    MUST(fb_wait(file, 1) == -1 && errno == EIO);

    snprintf(place, sizeof place, "%s/no/such", argv[2]);
    MUST(fb_stage_out(file, place, FB_REPLACE) == -1 && errno == EINVAL);
    number = fb_stage_out(file, place, 0);
    MUST(number > 0 && fb_commit_wait(file, number, 60, &status, sizeof status) == 0);
    MUST(status.state == FB_FAILED && status.first_errno == ENOENT);
    number = fb_stage_out(file, place, FB_PARENTS | FB_NO_CLOBBER);
    MUST(number > 0 && fb_commit_wait(file, number, 60, &status, sizeof status) == 0);
    MUST(status.state == FB_DONE && status.files_done == 1);
    number = fb_stage_out(file, place, FB_NO_CLOBBER);
    MUST(number > 0 && fb_commit_wait(file, number, 60, &status, sizeof status) == 0);
    MUST(status.state == FB_DONE && status.files_done == 0);

    number = fb_stage_out(file, argv[2], 0);
    MUST(number > 0 && fb_commit_wait(file, number, 60, NULL, 0) == 0);
    snprintf(place, sizeof place, "%s/data", argv[2]);
    snprintf(dir, sizeof dir, "%s/back", argv[1]);
    number = fb_stage_in(place, dir, 0);
    MUST(number > 0 && fb_commit_wait(argv[1], number, 60, &status, sizeof status) == 0);
    MUST(status.state == FB_DONE && status.version[0] == 0);

    pthread_t threads[4];
    for (int i = 0; i < 4; i++) MUST(pthread_create(&threads[i], NULL, ask, NULL) == 0);
    pid_t child = fork();
    if (child == 0) {
        ask(NULL);
        _exit(0);
    }
    for (int i = 0; i < 4; i++) MUST(pthread_join(threads[i], NULL) == 0);
    int how = -1;
    MUST(waitpid(child, &how, 0) == child && how == 0);
    return 0;
}
