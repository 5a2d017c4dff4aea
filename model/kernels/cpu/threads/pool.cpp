// The threads of `pool.h`. An idle thread looks for work for some microseconds, then sleeps: the time between the
// products of a step is shorter than that, and a thread that spins longer takes its core from others.
#include "threads/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

namespace {

constexpr long MOST = 256;     // threads
constexpr int PATIENCE = 2000; // looks for work before a thread sleeps: some tens of microseconds

constexpr unsigned long ALL_TAKEN = 0xFFFFFFFF;

using Work = void (*)(void* context, long part);

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // held by the thread with the running job
pthread_mutex_t sleepers = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t woken = PTHREAD_COND_INITIALIZER;

// The job. It changes only while the lower half of `turn` is ALL_TAKEN. A thread takes a part by changing `turn` from
// its value before the thread read the job, so it has read the right job. The fields are released and acquired, so that
// none is seen before `turn`.
Work job_work;
void* job_context;
long job_parts;
long job_threads;
// The job's number times 2**32, plus the next part to be taken.
unsigned long turn = ALL_TAKEN;
long parts_done;
long progress;  // of all jobs

long num_asleep;
long last_wanted = 1;  // threads, the caller's among them, as any thread set them last
long started = 0;      // threads of the pool
__thread long wanted;  // threads of this thread's jobs; 0 means last_wanted
__thread bool inside;

inline void pause_a_moment() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Takes and runs parts of the job numbered `number` until none is left.
void take_parts(unsigned long number) {
  for (;;) {
    unsigned long seen = __atomic_load_n(&turn, __ATOMIC_ACQUIRE);
    const Work work = __atomic_load_n(&job_work, __ATOMIC_ACQUIRE);
    void* context = __atomic_load_n(&job_context, __ATOMIC_ACQUIRE);
    const long part = long(seen & ALL_TAKEN), num_parts = __atomic_load_n(&job_parts, __ATOMIC_ACQUIRE);
    if (seen >> 32 != number || part >= num_parts) return;
    if (!__atomic_compare_exchange_n(&turn, &seen, seen + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) continue;
    work(context, part);
    lightwell_note_progress();
    __atomic_fetch_add(&parts_done, 1, __ATOMIC_RELEASE);
  }
}

void* run_thread(void* index_of_thread) {
  const long index = long(index_of_thread);
  unsigned long number = __atomic_load_n(&turn, __ATOMIC_ACQUIRE) >> 32;
  inside = true;
  for (;;) {
    int looks = 0;
    while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) >> 32 == number) {
      pause_a_moment();
      if (++looks < PATIENCE) continue;
      pthread_mutex_lock(&sleepers);
      __atomic_fetch_add(&num_asleep, 1, __ATOMIC_SEQ_CST);
      while (__atomic_load_n(&turn, __ATOMIC_SEQ_CST) >> 32 == number) pthread_cond_wait(&woken, &sleepers);
      __atomic_fetch_sub(&num_asleep, 1, __ATOMIC_SEQ_CST);
      pthread_mutex_unlock(&sleepers);
    }
    number = __atomic_load_n(&turn, __ATOMIC_ACQUIRE) >> 32;
    wanted = __atomic_load_n(&job_threads, __ATOMIC_ACQUIRE);
    if (index < wanted - 1) take_parts(number);
  }
  return nullptr;
}

// A child of fork has none of the threads, and no thread that held a lock.
void forget_threads() {
  sleepers = PTHREAD_MUTEX_INITIALIZER;
  woken = PTHREAD_COND_INITIALIZER;
  num_asleep = started = 0;
}

// Starts threads up to the wanted number, or fewer if the system refuses more.
void start_threads() {
  static bool is_known = false;
  if (!is_known) is_known = pthread_atfork(nullptr, nullptr, forget_threads) == 0;
  while (started < lightwell_num_threads() - 1) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    const int failed = pthread_create(&thread, &attributes, run_thread, (void*)started);
    pthread_attr_destroy(&attributes);
    if (failed) return;
    ++started;
  }
}

}  // namespace

extern "C" {

long lightwell_num_threads(void) { return wanted ? wanted : __atomic_load_n(&last_wanted, __ATOMIC_RELAXED); }

void lightwell_set_num_threads(long count) {
  pthread_mutex_lock(&lock);
  wanted = count < 1 ? 1 : count > MOST ? MOST : count;
  __atomic_store_n(&last_wanted, wanted, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&lock);
}

void lightwell_note_progress(void) { __atomic_fetch_add(&progress, 1, __ATOMIC_RELAXED); }

long lightwell_progress(void) { return __atomic_load_n(&progress, __ATOMIC_RELAXED); }

void lightwell_run(long num_parts, void (*work)(void* context, long part), void* context) {
  if (num_parts <= 0) return;
  const bool alone = inside || num_parts == 1 || lightwell_num_threads() == 1 || pthread_mutex_trylock(&lock) != 0;
  if (alone) {
    for (long part = 0; part < num_parts; ++part) {
      work(context, part);
      lightwell_note_progress();
    }
    return;
  }
  start_threads();
  inside = true;  // work that calls the pool again runs in its own thread
  const unsigned long before = __atomic_load_n(&turn, __ATOMIC_RELAXED), number = ((before >> 32) + 1) & ALL_TAKEN;
  __atomic_store_n(&turn, before | ALL_TAKEN, __ATOMIC_SEQ_CST);
  __atomic_store_n(&job_work, work, __ATOMIC_RELEASE);
  __atomic_store_n(&job_context, context, __ATOMIC_RELEASE);
  __atomic_store_n(&job_parts, num_parts, __ATOMIC_RELEASE);
  __atomic_store_n(&job_threads, lightwell_num_threads(), __ATOMIC_RELEASE);
  __atomic_store_n(&parts_done, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&turn, number << 32, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&num_asleep, __ATOMIC_SEQ_CST) > 0) {
    pthread_mutex_lock(&sleepers);
    pthread_cond_broadcast(&woken);
    pthread_mutex_unlock(&sleepers);
  }
  take_parts(number);
  int looks = 0;
  while (__atomic_load_n(&parts_done, __ATOMIC_ACQUIRE) < num_parts) {
    pause_a_moment();
    if (++looks >= PATIENCE) sched_yield();
  }
  inside = false;
  pthread_mutex_unlock(&lock);
}

}
