// Work that threads take piece by piece from one list, in order: steps, each of which waits for the previous step.
//
// A free thread takes the next piece, so a late or delayed thread takes fewer. A piece may wait for earlier pieces.
// Those were all taken before it, so a thread is working on them, and no piece waits for one that has not begun. So any
// number of threads, also one, reaches the end of the list.
#pragma once

#include <sched.h>

#include "threads/pool.h"

namespace LEVEL {

constexpr int MOST_SPINS = 1000;  // reads of a count before the thread yields its core: some tens of microseconds

struct Share {
  long begin, end;
};

// Piece number `piece` of `count` items that `num_threads` share. Pieces become smaller: most items of a thread are
// adjacent, and yet all threads end at about the same time. {count, count} if there is no such piece.
inline Share piece_of(long count, long num_threads, long piece) {
  if (num_threads == 1) return piece == 0 ? Share{0, count} : Share{count, count};
  for (long begin = 0;; begin += num_threads * ((count - begin) / (2 * num_threads)), piece -= num_threads) {
    const long size = (count - begin) / (2 * num_threads);
    if (size <= 1) return begin + piece < count ? Share{begin + piece, begin + piece + 1} : Share{count, count};
    if (piece < num_threads) return {begin + piece * size, begin + (piece + 1) * size};
  }
}

inline long num_pieces_of(long count, long num_threads) {
  if (num_threads == 1) return count > 0;
  long pieces = 0, left = count;
  for (; left / (2 * num_threads) > 1; pieces += num_threads) left -= num_threads * (left / (2 * num_threads));
  return pieces + left;
}

inline void wait_for(const long& done, long wanted) {
  for (int spins = 0; __atomic_load_n(&done, __ATOMIC_ACQUIRE) < wanted;) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
    if (++spins > MOST_SPINS) sched_yield();
  }
}

// run(step, piece) for each piece < num_pieces(step) of each step < num_steps, in the pool's threads; before it,
// while earlier steps may still be at work, prepare(step, piece).
template <class Count, class Prepare, class Run>
void run_in_order(long num_steps, Count num_pieces, Prepare prepare, Run run) {
  struct {
    alignas(64) long taken = 0;  // pieces
    alignas(64) long done = 0;
  } counts;
  parallel(lightwell_num_threads(), [&](long) {
    long step = -1, first = 0, end = 0;  // first <= number < end are the pieces of the step
    for (;;) {
      const long number = __atomic_fetch_add(&counts.taken, 1, __ATOMIC_RELAXED);
      while (number >= end) {
        if (++step >= num_steps) return;
        first = end;
        end += num_pieces(step);
      }
      prepare(step, number - first);
      wait_for(counts.done, first);
      run(step, number - first);
      if (number == first) lightwell_note_progress();  // once a step: pieces may be shorter than it takes
      __atomic_fetch_add(&counts.done, 1, __ATOMIC_RELEASE);
    }
  });
}

}  // namespace LEVEL
