/* Makes known calls for I/O, for the tests of `forebay trace`, which compare its records with them.
 * usage: traced WHAT DIR [NUMBER]. Any call that fails ends it with exit code 99. */
#define _GNU_SOURCE
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WANT(call) \
  do { \
    if (!(call)) { \
      perror(#call); \
      exit(99); \
    } \
  } while (0)

static const char *dir;
static char data[1 << 20];

static const char *in(const char *name) {
  static char paths[8][4096];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", dir, name);
  return path;
}

static int create(const char *name, int more) {
  int fd = open(in(name), O_RDWR | O_CREAT | more, 0644);
  WANT(fd >= 0);
  return fd;
}

/* By position, with an offset, by vectors, over copies of a descriptor, appended. */
static void calls(void) {
  int fd = create("a", 0);
  for (int i = 0; i < 100; i++) WANT(write(fd, data, 1000) == 1000);
  WANT(lseek(fd, 500, SEEK_SET) == 500);
  for (int i = 0; i < 50; i++) WANT(read(fd, data, 512) == 512);
  for (int i = 0; i < 10; i++) WANT(pread(fd, data, 100, i * 7777) == 100);
  for (int i = 0; i < 10; i++) WANT(pwrite(fd, data, 47, 200000 + i * 1001) == 47);
  struct iovec parts[2] = {{data, 30}, {data + 100, 12}};
  WANT(writev(fd, parts, 2) == 42);
  int copy = dup(fd);
  WANT(copy >= 0 && write(copy, data, 5) == 5 && write(fd, data, 6) == 6);
  WANT(close(fd) == 0 && write(copy, data, 7) == 7);
  WANT(ftruncate(copy, 300000) == 0 && fsync(copy) == 0 && fdatasync(copy) == 0);
  WANT(lseek(copy, -10, SEEK_END) == 299990 && read(copy, data, 100) == 10);
  WANT(read(copy, data, 100) == 0 && close(copy) == 0);

  fd = create("append", O_APPEND);
  WANT(write(fd, data, 10) == 10 && lseek(fd, 0, SEEK_SET) == 0 && write(fd, data, 20) == 20);
  WANT(close(fd) == 0 && close(fd) == -1 && errno == EBADF);
  WANT(open(in("missing"), O_RDONLY) == -1 && errno == ENOENT);

  int from = open(in("a"), O_RDONLY), to = create("copy", 0);
  off_t at = 1000;
  WANT(copy_file_range(from, &at, to, NULL, 4096, 0) == 4096 && at == 5096);
  at = 2000;
  WANT(sendfile(to, from, &at, 3000) == 3000 && at == 5000);
  WANT(close(from) == 0 && close(to) == 0);

  fd = open(in("copy"), O_RDWR);
  char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  WANT(map != MAP_FAILED && close(fd) == 0);
  map[0] = 1;
  WANT(msync(map, 4096, MS_SYNC) == 0 && munmap(map, 4096) == 0);
}

/* Names, absolute and not. */
static void names(void) {
  struct stat st;
  WANT(mkdir(in("d"), 0755) == 0 && chdir(in("d")) == 0);
  int fd = open("relative", O_WRONLY | O_CREAT, 0600);
  WANT(fd >= 0 && write(fd, data, 3) == 3 && close(fd) == 0);
  WANT(stat("relative", &st) == 0 && st.st_size == 3 && lstat(in("d"), &st) == 0);
  char made[] = "made.XXXXXX";
  fd = mkstemp(made);
  WANT(fd >= 0 && write(fd, data, 7) == 7 && close(fd) == 0 && unlink(made) == 0);
  int d = open(dir, O_RDONLY | O_DIRECTORY);
  WANT(d >= 0 && fstatat(d, "d/relative", &st, 0) == 0 && close(d) == 0);
  WANT(rename("relative", "other") == 0 && access("relative", F_OK) == -1);
  DIR *list = opendir(".");
  WANT(list != NULL);
  while (readdir(list)) {}
  WANT(closedir(list) == 0 && unlink("other") == 0 && chdir("..") == 0 && rmdir("d") == 0);
}

static void stdio(void) {
  FILE *f = fopen(in("stream"), "w+");
  WANT(f != NULL);
  for (int i = 0; i < 30; i++) WANT(fwrite(data, 8, 100, f) == 100);
  WANT(fprintf(f, "%0100d", 7) == 100 && fflush(f) == 0);
  WANT(fseek(f, 50, SEEK_SET) == 0 && fread(data, 1, 60, f) == 60 && fread(data, 1, 60, f) == 60);
  WANT(fclose(f) == 0);
  f = fopen(in("stream"), "a");
  WANT(f != NULL && fputs("hello", f) >= 0 && fclose(f) == 0);
  int fd = open(in("adopted"), O_WRONLY | O_CREAT, 0644);
  WANT(fd >= 0 && write(fd, "head", 4) == 4);
  f = fdopen(fd, "w");
  WANT(f != NULL && fprintf(f, "%050d", 7) == 50 && fclose(f) == 0);
  f = fopen(in("left"), "w");
  WANT(f != NULL && fprintf(f, "left open") == 9);
}

/* Calls on streams by the names that compilers make of them: of an fgets with _FORTIFY_SOURCE, of an optimized getline; and those that
 * take no lock. */
char *__fgets_chk(char *to, size_t bytes, int room, FILE *stream);

static void streams(void) {
  FILE *f = fopen(in("lines"), "w");
  WANT(f != NULL);
  for (int i = 0; i < 5; i++) WANT(fputs_unlocked("eleven here\n", f) >= 0);
  WANT(fflush_unlocked(f) == 0 && fclose(f) == 0);
  char line[64], *text = NULL;
  size_t room = 0;
  f = fopen(in("lines"), "r");
  WANT(f != NULL && __fgets_chk(line, sizeof line, sizeof line, f) == line);
  WANT(fgets_unlocked(line, sizeof line, f) == line);
  WANT(__getdelim(&text, &room, '\n', f) == 12 && getline(&text, &room, f) == 12);
  WANT(fclose(f) == 0);
  free(text);
}

static void asynchronous(void) {
  int fd = create("aio", 0);
  struct aiocb one = {.aio_fildes = fd, .aio_buf = data, .aio_nbytes = 4000, .aio_offset = 8000};
  const struct aiocb *list[1] = {&one};
  WANT(aio_write(&one) == 0);
  while (aio_error(&one) == EINPROGRESS) aio_suspend(list, 1, NULL);
  WANT(aio_return(&one) == 4000);
  struct aiocb two[2];
  memset(two, 0, sizeof two);
  struct aiocb *both[2] = {&two[0], &two[1]};
  for (int i = 0; i < 2; i++) {
    two[i].aio_fildes = fd;
    two[i].aio_buf = data;
    two[i].aio_nbytes = 100;
    two[i].aio_offset = 8000 + i * 100;
    two[i].aio_lio_opcode = LIO_READ;
  }
  WANT(lio_listio(LIO_WAIT, both, 2, NULL) == 0);
  WANT(aio_return(&two[0]) == 100 && aio_return(&two[1]) == 100);
  struct aiocb last = {.aio_fildes = create("aio-sync", 0)};
  list[0] = &last;
  WANT(aio_fsync(O_SYNC, &last) == 0);
  while (aio_error(&last) == EINPROGRESS) aio_suspend(list, 1, NULL);
  WANT(aio_return(&last) == 0);
}

static int shared;
static void *thread(void *number) {
  long n = (long)number;
  for (int i = 0; i < 3000; i++) WANT(pwrite(shared, data, 10 + n, i * 100) == 10 + n);
  return NULL;
}
static void *brief(void *number) {
  (void)number;
  WANT(pwrite(shared, data, 1, 0) == 1);
  return NULL;
}
static void threads(void) {
  shared = create("threads", 0);
  pthread_t ids[8], id;
  for (long i = 0; i < 8; i++) WANT(pthread_create(&ids[i], NULL, thread, (void *)i) == 0);
  for (int i = 0; i < 8; i++) WANT(pthread_join(ids[i], NULL) == 0);
  for (int i = 0; i < 300; i++) {
    WANT(pthread_create(&id, NULL, brief, NULL) == 0 && pthread_join(id, NULL) == 0);
  }
}

/* One position, moved by parent and child in turn; then another program. */
static void forks(const char *self) {
  int fd = create("forked", 0), status;
  WANT(write(fd, data, 10) == 10);
  for (int i = 0; i < 3; i++) {
    pid_t pid = fork();
    WANT(pid >= 0);
    if (pid == 0) {
      WANT(write(fd, data, 20) == 20);
      if (i == 2) execl(self, self, "child", dir, NULL);
      _exit(i);
    }
    WANT(waitpid(pid, &status, 0) == pid);
    WANT(WIFEXITED(status) && WEXITSTATUS(status) == (i == 2 ? 42 : i));
    WANT(write(fd, data, 30) == 30);
  }
  pid_t pid = vfork();
  if (pid == 0) {
    execl("/nonexistent", "x", NULL);
    _exit(3);
  }
  WANT(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 3);
}

static void many(long count) {
  int fd = create("many", 0);
  for (long i = 0; i < count; i++) WANT(pwrite(fd, data, 8, i * 8) == 8);
}

/* Names of each length, each with another byte at each place: all are other names. */
static void lengths(void) {
  struct stat st;
  char name[41];
  for (int length = 1; length <= 40; length++) {
    for (int at = 0; at < length; at++) {
      memset(name, 'a', sizeof name);
      name[at] = 'b';
      name[length] = 0;
      WANT(stat(name, &st) == -1 && errno == ENOENT);
    }
  }
}

/* Names in turn, all from one buffer: relative to where the program is, and to a directory that it opened. */
static void turns(void) {
  WANT(mkdir(in("one"), 0755) == 0 && mkdir(in("two"), 0755) == 0);
  int dirs[2] = {open(in("one"), O_RDONLY | O_DIRECTORY), open(in("two"), O_RDONLY | O_DIRECTORY)};
  WANT(dirs[0] >= 0 && dirs[1] >= 0);
  char name[2] = "a";
  for (int i = 0; i < 12; i++) {
    name[0] = i % 2 ? 'b' : 'a';
    WANT(chdir(in(i / 2 % 2 ? "two" : "one")) == 0);
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    WANT(fd >= 0 && write(fd, data, i + 1) == i + 1 && close(fd) == 0);
  }
  name[0] = 'a';
  for (int i = 0; i < 6; i++) {
    int fd = openat(dirs[i % 2], name, O_RDONLY);
    WANT(fd >= 0 && pread(fd, data, 1, i) == 1 && close(fd) == 0);
  }
}

/* Numbers of descriptors that are given again while copies of what had them before are still open. */
static void copies(void) {
  int kept[20];
  char name[32];
  for (int i = 0; i < 20; i++) {
    snprintf(name, sizeof name, "copy-%d", i);
    int fd = create(name, 0);
    kept[i] = dup(fd);
    WANT(kept[i] >= 0 && write(kept[i], data, i + 1) == i + 1 && close(fd) == 0);
  }
  WANT(close(kept[0]) == 0);
  int again = create("again", 0);
  WANT(write(again, data, 50) == 50);
  for (int i = 1; i < 20; i++) WANT(write(kept[i], data, i + 1) == i + 1 && close(kept[i]) == 0);
  WANT(write(again, data, 50) == 50 && close(again) == 0);
}

/* The same by threads at once, each with a file of its own. */
static void *copier(void *number) {
  char path[4096];
  snprintf(path, sizeof path, "%s/of-%ld", dir, (long)number);
  for (int i = 0; i < 2000; i++) {
    int fd = open(path, O_RDWR | O_CREAT, 0644), copy = dup(fd);
    WANT(fd >= 0 && copy >= 0 && write(fd, data, 10) == 10 && close(fd) == 0);
    WANT(write(copy, data, 20) == 20 && close(copy) == 0);
  }
  return NULL;
}
static void copiers(void) {
  pthread_t ids[4];
  for (long i = 0; i < 4; i++) WANT(pthread_create(&ids[i], NULL, copier, (void *)i) == 0);
  for (int i = 0; i < 4; i++) WANT(pthread_join(ids[i], NULL) == 0);
}

static double cpu(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

/* Least CPU time of a call, ns, over rounds. */
static void cost(void) {
  int fd = create("cost", 0);
  double least[6] = {1e9, 1e9, 1e9, 1e9, 1e9, 1e9};
  struct stat st;
  FILE *f = fopen(in("cost-stream"), "w");
  for (int round = 0; round < 100; round++) {
    double t[7];
    t[0] = cpu();
    for (int i = 0; i < 2000; i++) (void)!pwrite(fd, data, 8, 0);
    t[1] = cpu();
    WANT(lseek(fd, 0, SEEK_SET) == 0);
    for (int i = 0; i < 2000; i++) (void)!write(fd, data, 8);
    t[2] = cpu();
    for (int i = 0; i < 2000; i++) (void)!stat(in("cost"), &st);
    t[3] = cpu();
    for (int i = 0; i < 2000; i++) (void)!fwrite(data, 8, 1, f);
    t[4] = cpu();
    for (int i = 0; i < 2000; i++) (void)!pread(fd, data, 8, 0);
    t[5] = cpu();
    for (int i = 0; i < 2000; i++) (void)!close(open(in("cost"), O_RDWR));
    t[6] = cpu();
    rewind(f);
    for (int i = 0; i < 6; i++) {
      double each = (t[i + 1] - t[i]) / 2000;
      if (each < least[i]) least[i] = each;
    }
  }
  printf("pwrite %.1f write %.1f stat %.1f fwrite %.1f pread %.1f open+close %.1f\n", least[0],
         least[1], least[2], least[3], least[4], least[5]);
}

int main(int argc, char **argv) {
  if (argc < 3) return 98;
  const char *what = argv[1];
  dir = argv[2];
  long number = argc > 3 ? atol(argv[3]) : 0;
  if (!strcmp(what, "calls")) calls();
  else if (!strcmp(what, "names")) names();
  else if (!strcmp(what, "stdio")) stdio();
  else if (!strcmp(what, "streams")) streams();
  else if (!strcmp(what, "aio")) asynchronous();
  else if (!strcmp(what, "threads")) threads();
  else if (!strcmp(what, "forks")) forks(argv[0]);
  else if (!strcmp(what, "many")) many(number);
  else if (!strcmp(what, "lengths")) lengths();
  else if (!strcmp(what, "turns")) turns();
  else if (!strcmp(what, "copies")) copies();
  else if (!strcmp(what, "copiers")) copiers();
  else if (!strcmp(what, "cost")) cost();
  else if (!strcmp(what, "child")) {
    int fd = create("child", 0);
    WANT(write(fd, data, 40) == 40);
    return 42;
  } else if (!strcmp(what, "closeall")) {
    /* As daemons begin. */
    for (int fd = 0; fd < 1024; fd++) close(fd);
    int fd = open(in("closed"), O_RDWR | O_CREAT, 0644);
    if (fd != 0) return 97;
    for (long i = 0; i < number; i++)
      if (write(fd, data, 10) != 10) return 96;
    return 7;
  } else if (!strcmp(what, "killed")) {
    int fd = create("killed", 0);
    for (long i = 0; i < number; i++) WANT(write(fd, data, 100) == 100);
    kill(getpid(), SIGKILL);
  } else if (!strcmp(what, "descriptors")) {
    /* Which are open, and which one is given out next. */
    for (int fd = 0; fd < 1024; fd++)
      if (fcntl(fd, F_GETFD) >= 0) number |= 1 << (fd < 8 ? fd : 8);
    number = number * 16 + open("/dev/null", O_RDONLY);
    int out = create("descriptors", O_TRUNC);
    struct sigaction action;
    sigaction(SIGPIPE, NULL, &action);
    dprintf(out, "%ld %d\n", number, action.sa_handler == SIG_IGN);
  } else return 98;
  return 0;
}
