// Memory for what a piece of work makes on its way.
#pragma once

#include <stdlib.h>

#include "level.h"

namespace LEVEL {

// Room for `count` things of type T: this thread's own, of this User (any type that names one), whatever is in it. It
// grows and is kept for the next call, which gives the same memory: so a User has one at a time. It begins at a line of
// the cache.
template <class User, class T>
T* scratch(long count) {
  static thread_local void* room = nullptr;
  static thread_local size_t room_bytes = 0;
  const size_t wanted = (size_t(count) * sizeof(T) + 4095) / 4096 * 4096;
  if (wanted > room_bytes) {
    free(room);
    room_bytes = wanted + room_bytes / 2;
    if (posix_memalign(&room, 64, room_bytes) != 0) abort();
  }
  return static_cast<T*>(room);
}

}  // namespace LEVEL
