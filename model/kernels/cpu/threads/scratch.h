// Memory for the intermediate results of a piece of work.
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

// Returns the room with at least `num_bytes` bytes of any content, allocated if it is null. It belongs to this thread
// until the thread ends.
extern "C" Room* lightwell_grow(Room* room, size_t num_bytes);

namespace LEVEL {

// Room for `count` objects of type T, of any content, for this thread and this User (any type, as a name). It grows and
// is kept for the next call, which returns the same memory: so a User has one room at a time. It begins at a line of
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
