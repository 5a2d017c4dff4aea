// Threads that ask the pool for work at once while its size changes; to be run under ThreadSanitizer. Fails where a part
// did not run once; prints how many parts ran in another thread than the one that asked.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "threads/pool.h"

namespace {

constexpr long CALLERS = 4, CALLS = 400, MOST_PARTS = 23;
long elsewhere;

void run_calls(unsigned seed, bool resizes) {
  for (long call = 0; call < CALLS; ++call) {
    const long num_parts = rand_r(&seed) % MOST_PARTS;
    const pthread_t self = pthread_self();
    long runs[MOST_PARTS] = {0}, inner[MOST_PARTS] = {0};
    if (resizes) lightwell_set_num_threads(1 + rand_r(&seed) % 5);
    LEVEL::parallel(num_parts, [&](long part) {
      runs[part] += 1;
      if (!pthread_equal(pthread_self(), self)) __atomic_fetch_add(&elsewhere, 1, __ATOMIC_RELAXED);
      usleep(1);  // lets others take parts, also where there are few cores
      LEVEL::parallel(3, [&](long) { __atomic_fetch_add(&inner[part], 1, __ATOMIC_RELAXED); });
    });
    for (long part = 0; part < MOST_PARTS; ++part) {
      if (runs[part] == (part < num_parts) && inner[part] == 3 * runs[part]) continue;
      printf("part %ld of %ld ran %ld times\n", part, num_parts, runs[part]);
      exit(1);
    }
  }
}

void* run_thread(void* number) {
  run_calls(unsigned(long(number)) + 1, long(number) == 0);
  return nullptr;
}

}  // namespace

int main() {
  lightwell_set_num_threads(4);
  pthread_t threads[CALLERS];
  for (long i = 0; i < CALLERS; ++i) pthread_create(&threads[i], nullptr, run_thread, (void*)i);
  for (long i = 0; i < CALLERS; ++i) pthread_join(threads[i], nullptr);
  printf("%ld\n", elsewhere);
  return 0;
}
