// The levels of this machine's CPU, and its vendor, family and model. Compiled for the oldest CPU, as it runs first.
#include <stdint.h>

#include "level.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <string.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

struct Registers {
  unsigned eax, ebx, ecx, edx;
};

Registers ask(unsigned leaf, unsigned subleaf) {
  Registers r = {0, 0, 0, 0};
  if (unsigned(__get_cpuid_max(0, nullptr)) >= leaf) __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
  return r;
}

bool has(unsigned word, int bit) { return word >> bit & 1; }

// The register states that the system keeps for each thread.
unsigned long kept_states() {
  if (!has(ask(1, 0).ecx, 27)) return 0;  // OSXSAVE
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (unsigned long)high << 32 | low;
}

bool may_use_tiles() {
#if defined(__linux__)
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
  return false;
#endif
}

}  // namespace

// 0: none, 1: avx2, 2: avx512, 3: avx512_bf16 (and VNNI), 4: amx.
extern "C" API int lightwell_highest_level(void) {
  const unsigned long states = kept_states();
  const Registers basic = ask(1, 0), extended = ask(7, 0), more = ask(7, 1);
  const bool vectors = (states & 0x6) == 0x6, wide = (states & 0xE6) == 0xE6, tiles = (states & 0x60000) == 0x60000;
  if (!(vectors && has(basic.ecx, 12) && has(basic.ecx, 29) && has(extended.ebx, 5) && has(extended.ebx, 8))) return 0;
  const int v4[] = {16, 17, 28, 30, 31};  // F, DQ, CD, BW, VL
  for (const int bit : v4)
    if (!wide || !has(extended.ebx, bit)) return 1;
  if (!(has(extended.ecx, 11) && has(more.eax, 5))) return 2;  // VNNI, BF16
  if (!(tiles && has(extended.edx, 22) && has(extended.edx, 24) && has(extended.edx, 25) && may_use_tiles())) return 3;
  return 4;
}

// The CPU's vendor, "GenuineIntel" or such, with its family and model as manuals and /proc/cpuinfo number them.
extern "C" API void lightwell_cpu(char* vendor, long* family, long* model) {  // vendor [13]
  const Registers name = ask(0, 0), version = ask(1, 0);
  memcpy(vendor, &name.ebx, 4);
  memcpy(vendor + 4, &name.edx, 4);
  memcpy(vendor + 8, &name.ecx, 4);
  vendor[12] = 0;
  const unsigned base = version.eax >> 8 & 0xF;
  *family = base + (base == 15 ? version.eax >> 20 & 0xFF : 0);
  *model = (version.eax >> 4 & 0xF) | (base == 6 || base == 15 ? version.eax >> 12 & 0xF0 : 0);
}

#elif defined(__aarch64__)

#if defined(__linux__)
#include <sys/auxv.h>
#endif

// 1: neon, 2: neon_bf16.
extern "C" API int lightwell_highest_level(void) {
#if defined(__linux__)
  constexpr unsigned long BF16 = 1 << 14, I8MM = 1 << 13;  // HWCAP2_BF16 and so on, where the headers know them
  const unsigned long has = getauxval(AT_HWCAP2);
  return (has & BF16) && (has & I8MM) ? 2 : 1;
#else
  return 1;
#endif
}

// Not known: no product here depends on it.
extern "C" API void lightwell_cpu(char* vendor, long* family, long* model) {
  *vendor = 0;
  *family = *model = 0;
}

#endif

// The levels that this library has: `compiled_levels` of build.py finds the text in the file.
extern "C" API const char* lightwell_levels(void) { return "lightwell levels: " COMPILED_LEVELS; }

// Which sources this library was built from: `sources_hash` of build.py.
extern "C" API uint64_t lightwell_sources(void) { return SOURCES_HASH; }
