// Runs recorded calls of kernels on any machine, without Python: `tape.py` says what is recorded, and how it is written.
//
//   replay LIBRARY                   prints the number of the highest level that this CPU has
//   replay LIBRARY THREADS < TAPE    writes the memory of each call, as the call left it
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 64, MOST_MEMORIES = 64, MOST_WORDS = 16, MOST_FLOATS = 4 };

static void fail(const char* why, const char* what) {
  fprintf(stderr, "%s: %s\n", why, what);
  exit(1);
}

static void read_all(void* to, size_t size) {
  if (fread(to, 1, size, stdin) != size) fail("the tape ends too early", "");
}

static long read_long(void) {
  long number;
  read_all(&number, sizeof number);
  return number;
}

// Longs and pointers are passed apart from floats on every machine that this is for, so one type of function does for
// all kernels: each takes as many as it knows.
typedef void (*Kernel)(long, long, long, long, long, long, long, long, long, long, long, long, long, long, long, long,
                       float, float, float, float);

static void replay(void* library) {
  char name[NAME], *memories[MOST_MEMORIES];
  long sizes[MOST_MEMORIES], w[MOST_WORDS] = {0};
  float f[MOST_FLOATS] = {0};
  read_all(name, NAME);
  const long num_memories = read_long(), num_links = read_long(), num_words = read_long(), num_floats = read_long();
  if (num_memories > MOST_MEMORIES || num_words > MOST_WORDS || num_floats > MOST_FLOATS) fail("too many", name);
  for (long i = 0; i < num_memories; ++i) {
    sizes[i] = read_long();
    if (posix_memalign((void**)&memories[i], 64, sizes[i] + 64)) fail("no memory", name);
    read_all(memories[i], sizes[i]);
  }
  for (long i = 0; i < num_links; ++i) {
    char* place = memories[read_long()];
    place += read_long();
    char* target = memories[read_long()];
    target += read_long();
    memcpy(place, &target, sizeof target);
  }
  for (long i = 0; i < num_words; ++i) {
    const long memory = read_long(), number = read_long();
    w[i] = memory < 0 ? number : (long)memories[memory] + number;
  }
  for (long i = 0; i < num_floats; ++i) read_all(&f[i], sizeof f[i]);
  const Kernel kernel = (Kernel)dlsym(library, name);
  if (!kernel) fail("no such kernel", name);
  kernel(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13], w[14], w[15], f[0],
         f[1], f[2], f[3]);
  for (long i = 0; i < num_memories; ++i) {
    fwrite(memories[i], 1, sizes[i], stdout);
    free(memories[i]);
  }
}

int main(int argc, char** argv) {
  void* library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (!library) fail("cannot load", dlerror());
  if (argc == 2) return printf("%d\n", ((int (*)(void))dlsym(library, "lightwell_highest_level"))()) < 0;
  ((void (*)(long))dlsym(library, "lightwell_set_num_threads"))(atol(argv[2]));
  for (long num_calls = read_long(); num_calls > 0; --num_calls) replay(library);
  return 0;
}
