// The memory of `scratch.h`, which a thread gives back when it ends.
#include "scratch.h"

#include <pthread.h>
#include <stdlib.h>

namespace {

pthread_once_t once = PTHREAD_ONCE_INIT;
pthread_key_t rooms;  // the first of a thread's

void free_rooms(void* first) {
  for (Room* room = static_cast<Room*>(first); room != nullptr;) {
    Room* next = room->next;
    free(room->memory);
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
  free(room->memory);
  room->num_bytes = (num_bytes + room->num_bytes / 2 + 4095) / 4096 * 4096;
  if (posix_memalign(&room->memory, 64, room->num_bytes) != 0) abort();
  return room;
}
