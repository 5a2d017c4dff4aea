// The memory of `scratch.h`. A thread returns it to the system when it ends; the C library might keep it.
#include "threads/scratch.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

namespace {

void give_back(Room* room) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(room->memory, room->num_bytes);
#endif
  munmap(room->memory, room->num_bytes);
}

pthread_once_t once = PTHREAD_ONCE_INIT;
pthread_key_t rooms;  // the first of a thread's

void free_rooms(void* first) {
  for (Room* room = static_cast<Room*>(first); room != nullptr;) {
    Room* next = room->next;
    give_back(room);
    free(room);
    room = next;
  }
}

void make_key() {
  if (pthread_key_create(&rooms, free_rooms) != 0) abort();
}

}  // namespace

extern "C" Room* lightwell_grow(Room* room, size_t num_bytes) {
  if (room == nullptr) {
    pthread_once(&once, make_key);
    room = static_cast<Room*>(calloc(1, sizeof *room));
    if (room == nullptr) abort();
    room->next = static_cast<Room*>(pthread_getspecific(rooms));
    if (pthread_setspecific(rooms, room) != 0) abort();
  }
  if (room->memory != nullptr) give_back(room);
  room->num_bytes = (num_bytes + room->num_bytes / 2 + 4096) / 4096 * 4096;  // at least a page
  room->memory = mmap(nullptr, room->num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room->memory == MAP_FAILED) abort();
  return room;
}
