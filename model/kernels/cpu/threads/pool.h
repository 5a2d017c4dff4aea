// One small pool of threads for all kernels. Every level of CPU shares it: it holds no arithmetic.
#pragma once

#include "level.h"

extern "C" {
// Runs work(context, part) for 0 <= part < num_parts, in this thread and the pool's; each takes the next part that is
// left. Returns when all are done. Where the pool is at work for another thread, or inside such work, this thread runs
// all parts itself.
void lightwell_run(long num_parts, void (*work)(void* context, long part), void* context);
// Parts of this thread's work run at the same time at most, its own among them. A thread that has set no number uses the
// last that any thread set.
API long lightwell_num_threads(void);
API void lightwell_set_num_threads(long count);
// Counts one more piece of work as done: each part of `lightwell_run`, and the pieces of parts that may take long.
void lightwell_note_progress(void);
// Pieces done by all threads since the process started. While it grows, a kernel that runs long is not stuck.
API long lightwell_progress(void);
}

namespace LEVEL {

template <class F>
ALWAYS_INLINE void parallel(long num_parts, F work) {
  if (num_parts <= 1) {
    if (num_parts == 1) work(0L);
    return;
  }
  lightwell_run(num_parts, [](void* context, long part) { (*static_cast<F*>(context))(part); }, &work);
}

// work(begin, end) over shares of `count` things: one share where there are fewer than `from`.
template <class F>
ALWAYS_INLINE void parallel_shares(long count, long from, F work) {
  const long threads = count < from ? 1 : lightwell_num_threads();
  const long num_shares = threads < count ? threads : count;
  parallel(num_shares, [&](long share) {
    work(share * count / num_shares, (share + 1) * count / num_shares);
  });
}

}  // namespace LEVEL
