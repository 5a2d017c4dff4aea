// Memory for what a piece of work makes on its way.
#pragma once

#include <stddef.h>

#include "level.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

struct Room {
  void* memory;
  size_t num_bytes;
  Room* next;  // of the same thread
};

// Returns the room, allocated where it is null, with so many bytes or more, whatever is in it: this thread's own until
// the thread ends.
extern "C" Room* lightwell_grow(Room* room, size_t num_bytes);

namespace LEVEL {

// Room for `count` things of type T: this thread's own, of this User (any type that names one), whatever is in it. It
// grows and is kept for the next call, which gives the same memory: so a User has one at a time. It begins at a line of
// the cache.
template <class User, class T>
T* scratch(long count) {
  static thread_local Room* room = nullptr;
  const size_t wanted = size_t(count) * sizeof(T);
  if (room == nullptr || wanted > room->num_bytes) room = lightwell_grow(room, wanted);
#if defined(__SANITIZE_ADDRESS__)  // nothing after the wanted bytes is read
  ASAN_UNPOISON_MEMORY_REGION(room->memory, wanted);
  ASAN_POISON_MEMORY_REGION(static_cast<char*>(room->memory) + wanted, room->num_bytes - wanted);
#endif
  return static_cast<T*>(room->memory);
}

}  // namespace LEVEL
