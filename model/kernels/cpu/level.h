// Export of kernels. Each file of kernels is compiled once for each level of CPU, with a namespace and names of that
// level: EXPORT(void, rms_norm)(...) is the C function rms_norm_avx512 if LEVEL is avx512.
#pragma once

#define INLINED __attribute__((always_inline))  // of a lambda: as a call, it sends vectors through memory
#define ALWAYS_INLINE inline INLINED
#define API __attribute__((visibility("default")))

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define EXPORT(RESULT, NAME) extern "C" API RESULT JOIN(NAME, LEVEL)
